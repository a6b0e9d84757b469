"""The model: a decoder-only transformer in Flax NNX.

Letters in array names, here and wherever arrays are named by their dims:

    B rows of a batch     S positions of a sequence    D d_model     V padded vocabulary
    H query heads         K key/value heads            h head_dim    F d_ff
    g query heads of a key/value head (H / K)          G rotary frequencies (h / 2)
    L layers              M micro-batches              P rows of the learned positions
    W key positions: those of the sequence (S), or those of a decoding cache
    R token shards (over all axes that split tokens)   T tokens of one token shard

Mixture of experts:

    E experts             k choices of a token (the experts that it uses)
    N choices of a sequence (S k)
    C capacity of an expert in a sequence, in slots    P slots of all experts (E C)

`trainer/step/loss.py` also uses C for chunks, and `trainer/step/muon.py` N for matrices.
"""

from trainer.contract.config.job import Job
from trainer.contract.config.model import OwnModel
from trainer.contract.planning.plan import Plan
from trainer.model.custom import CustomNetwork
from trainer.model.decoder import Cache, Decoder
from trainer.model.parameters import Network, Params

AnyNetwork = Network | CustomNetwork


def network_of(job: Job, plan: Plan) -> AnyNetwork:
    """Returns the network of the decoder or of a custom model.

    Raises PlanError when a custom model cannot be built or differs from the plan.
    """
    if not isinstance(job.model, OwnModel):
        return Network.of(job, plan)
    network = CustomNetwork.of(job)
    network.check_planned(plan.parameters)
    return network


__all__ = ["AnyNetwork", "Cache", "CustomNetwork", "Decoder", "Network", "Params", "network_of"]
