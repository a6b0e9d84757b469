"""The model: a decoder-only transformer in Flax NNX.

Letters in array names, here and wherever arrays are named by their dims:

    B rows of a batch     S positions of a sequence    D d_model     V padded vocabulary
    H query heads         K key/value heads            h head_dim    F d_ff
    L layers              W positions in a decoding cache            M micro-batches
    G parts of a head's pairs in rotary positions (h / 2)
    R token shards (over all axes that split tokens)   T tokens of one of them
"""

from trainer.contract.config.job import Job
from trainer.contract.config.model import OwnModel
from trainer.contract.planning.plan import Plan
from trainer.model.custom import CustomNetwork
from trainer.model.decoder import Cache, Decoder
from trainer.model.parameters import Network, Params

AnyNetwork = Network | CustomNetwork


def network_of(job: Job, plan: Plan) -> AnyNetwork:
    """Of the decoder, or of the user's own model. Raises PlanError where that is not as planned."""
    if not isinstance(job.model, OwnModel):
        return Network.of(job, plan)
    network = CustomNetwork.of(job)
    network.check_planned(plan.parameters)
    return network


__all__ = ["AnyNetwork", "Cache", "CustomNetwork", "Decoder", "Network", "Params", "network_of"]
