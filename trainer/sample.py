"""Text that the trained model writes: one token at a time with a cache, in one compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np

from trainer import distributed
from trainer import mesh as meshes
from trainer.data.tokenizer import Tokenizer
from trainer.model import Params
from trainer.spec.job import Sample
from trainer.train_step import Trainable

REPLICATE_BYTES = 2**30
"""Parameters up to this size are made whole on every device: no collective per token."""


def sample(trainable: Trainable, params: Params, settings: Sample, ours: Tokenizer) -> str:
    """The prompt and what follows, up to the end of the document. Every process must call it."""
    prompt = ours.encode(settings.prompt.encode()).astype(np.int32)
    length = len(prompt) + settings.tokens
    given = np.zeros(length, np.int32)
    given[: len(prompt)] = prompt

    def write(params: Params, given: jax.Array) -> jax.Array:
        return _decode(trainable, params, given, len(prompt), settings.temperature)

    whole = meshes.replicated(trainable.mesh)
    placed = _replicated_if_small(trainable, params)
    compiled = jax.jit(write, out_shardings=whole).lower(placed, given).compile()
    # Collectives give up on a process that compiles longer than the others.
    distributed.barrier("sample")
    tokens = compiled(placed, given)
    return ours.decode(np.asarray(tokens)[1:].tolist())


def _replicated_if_small(trainable: Trainable, params: Params) -> Params:
    if sum(array.nbytes for array in params.values()) > REPLICATE_BYTES:
        return params
    return jax.jit(lambda p: p, out_shardings=meshes.replicated(trainable.mesh))(params)


def _decode(
    trainable: Trainable, params: Params, given: jax.Array, prompt: int, temperature: float
) -> jax.Array:
    """`given` with all places from `prompt` on written by the model."""
    model = trainable.network.bind(params)
    window = trainable.job.data.seq_len
    key = jax.random.key(trainable.job.seed)

    def one_token(place: jax.Array, state: tuple[jax.Array, tuple[jax.Array, jax.Array]]):
        tokens, cache = state
        logits, cache = model.decode(tokens[place][None, None], place, cache, window)
        chosen = _choose(logits[0, 0], jax.random.fold_in(key, place), temperature)
        following = jnp.where(place + 1 < prompt, tokens[place + 1], chosen)
        return tokens.at[place + 1].set(following), cache

    start = (given, model.empty_cache(1, len(given)))
    return jax.lax.fori_loop(0, len(given) - 1, one_token, start)[0]


def _choose(logits_V: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    """A token: the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    return jax.random.categorical(key, logits_V / temperature).astype(jnp.int32)
