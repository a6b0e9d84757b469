"""Text that the trained model writes: one token at a time with a cache, in one compiled loop."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from trainer.contract.config.job import Sample
from trainer.data.tokenizer import Tokenizer
from trainer.distributed import initialize
from trainer.distributed import mesh as meshes
from trainer.model import Decoder, Params
from trainer.step.train_step import TrainProgram

REPLICATE_BYTES = 2**30
"""Parameters up to this size are made whole on every device: no collective per token."""


class Sampler:
    """Compiled once, at the first sample; every process must call it."""

    def __init__(self, trainable: TrainProgram, settings: Sample, tokenizer: Tokenizer):
        self._trainable, self._temperature = trainable, settings.temperature
        self._tokenizer = tokenizer
        prompt = self._tokenizer.encode(settings.prompt.encode()).astype(np.int32)
        self._prompt = len(prompt)
        self._given = np.zeros(len(prompt) + settings.tokens, np.int32)
        self._given[: len(prompt)] = prompt
        self._whole = meshes.replicated(trainable.mesh)
        self._made_whole = jax.jit(lambda params: params, out_shardings=self._whole)
        self._compiled: Callable[[Params, np.ndarray], jax.Array] | None = None

    def sample(self, params: Params) -> str:
        """The prompt and what follows, up to the end of the document."""
        return self._tokenizer.decode(self.tokens(params)[1:].tolist())

    def tokens(self, params: Params) -> np.ndarray:
        """The separator, the prompt, and as many tokens as were asked for."""
        placed = self._replicated_if_small(params)
        return np.asarray(self._ready(placed)(placed, self._given))

    def _ready(self, params: Params) -> Callable[[Params, np.ndarray], jax.Array]:
        if self._compiled is None:
            write = jax.jit(self._write, out_shardings=self._whole)
            self._compiled = write.lower(params, self._given).compile()
            initialize.wait_for_compilers("sample", self._trainable.job.deadlines)
        return self._compiled

    def _replicated_if_small(self, params: Params) -> Params:
        if sum(array.nbytes for array in params.values()) > REPLICATE_BYTES:
            return params
        return self._made_whole(params)

    def _write(self, params: Params, given: jax.Array) -> jax.Array:
        """`given` with all places from the prompt's end on written by the model."""
        model = self._trainable.network.bind(params)
        assert isinstance(model, Decoder)
        window = self._trainable.job.data.seq_len
        key = jax.random.key(self._trainable.job.seed)

        def one_token(place: jax.Array, state: tuple[jax.Array, tuple[jax.Array, jax.Array]]):
            tokens, cache = state
            logits, cache = model.decode(tokens[place][None, None], place, cache, window)
            chosen = _choose(logits[0, 0], jax.random.fold_in(key, place), self._temperature)
            following = jnp.where(place + 1 < self._prompt, tokens[place + 1], chosen)
            return tokens.at[place + 1].set(following), cache

        start = (given, model.empty_cache(1, len(given)))
        return jax.lax.fori_loop(0, len(given) - 1, one_token, start)[0]


def _choose(logits_V: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    """A token: the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    return jax.random.categorical(key, logits_V / temperature).astype(jnp.int32)
