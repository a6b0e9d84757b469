"""The model: a decoder-only transformer in Flax NNX.

Array names end with a letter per dim: `query_BSHh` has rows, positions, heads and features. A
letter means the same in every module of the trainer:

    B rows of a batch     S positions of a sequence    D d_model     V padded vocabulary
    H query heads         K key/value heads            h head_dim    F d_ff
    g query heads of a key/value head (H / K)          G rotary frequencies (h / 2)
    L layers              M micro-batches              P rows of the learned positions
    W positions of the keys: those of the sequence (S), or of a decoding cache
    R token shards (over all axes that split tokens)   T tokens of one token shard
    I chunks of a token shard, one per iteration of the loss

Pipeline:

    Y stages              U ticks of a pass
    c rounds              q places in the order of a stage's work
    s ticks of which stages keep activations

Mixture of experts:

    E experts             k choices of a token (the experts that it uses)
    N choices of all tokens of a sequence, or of a device (k per token)
    C capacity of an expert in a sequence, in slots    Q slots of all experts (E C)
    J groups of experts   e experts of a group        j groups that a token uses
    X devices along `expert`

Latent attention:

    r width of a latent   p plain features of a head   o rotated features of a head (h - p)
    v value features of a head

Packed documents on GPUs:

    d documents of a row  b their starts, and an end (d + 1)

Muon:

    Z stacked matrices    m rows of a matrix           n columns of a matrix

Sums that devices make by themselves:

    A parts along `fsdp`  O elements of such a part of all weights

Any array:

    1 a dim of size 1     x any number of further dims
"""

from collections.abc import Callable

from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.plan import Plan
from trainer.model.custom import CustomNetwork
from trainer.model.decoder import Cache, Decoder
from trainer.model.parameters import Network, Params

AnyNetwork = Network | CustomNetwork


Once = Callable[[str, Callable[[], None]], None]
"""Calls a function, which has a name, unless it has returned before."""


def network_of(job: Job, plan: Plan, once: Once = lambda _, check: check()) -> AnyNetwork:
    """Returns the network of the decoder or of a custom model, which `once` checks.

    A custom model that was checked before is imported and traced at its first use. Raises PlanError
    when a custom model cannot be built or differs from the plan.
    """
    if not isinstance(job.model, CustomModel):
        return Network.of(job, plan)
    network = CustomNetwork(job)
    once("check", lambda: network.check_planned(plan.parameters))
    return network


__all__ = ["AnyNetwork", "Cache", "CustomNetwork", "Decoder", "Network", "Params", "network_of"]
