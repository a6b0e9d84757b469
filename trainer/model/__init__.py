"""The model: a decoder-only transformer in Flax NNX.

Letters in array names, here and wherever arrays are named by their dims:

    B rows of a batch     S positions of a sequence    D d_model     V padded vocabulary
    H query heads         K key/value heads            h head_dim    F d_ff
    L layers              W positions in a decoding cache            M micro-batches
    G parts of a head's pairs in rotary positions (h / 2)
    R token shards (over all axes that split tokens)   T tokens of one of them
"""

from trainer.model.decoder import Cache, Decoder
from trainer.model.parameters import Network, Params

__all__ = ["Cache", "Decoder", "Network", "Params"]
