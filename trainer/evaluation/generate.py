"""Text generation: one token at a time with a key/value cache, in one compiled loop.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.contract.config.eval import Sample
from trainer.data.tokenizer import Tokenizer
from trainer.distributed import initialize
from trainer.distributed import mesh as meshes
from trainer.model import Decoder, Params
from trainer.model.seed import seed_of
from trainer.programs import executables
from trainer.step.train_step import TrainProgram

ONE_DEVICE_BYTES = 2**30
"""Maximum size of parameters for which one device generates the text: no collective per token."""


class Sampler:
    """Generates text. Compiles once, at the first sample; every process must call it.

    A small model runs on one device of process 0, and the other processes wait. A larger one runs
    on all devices, on which its parameters are split.
    """

    def __init__(self, program: TrainProgram, settings: Sample, tokenizer: Tokenizer):
        self._program, self._temperature = program, settings.temperature
        self._tokenizer = tokenizer
        prompt = self._tokenizer.encode(settings.prompt.encode()).astype(np.int32)
        self._prompt = len(prompt)
        given = np.zeros(len(prompt) + settings.tokens, np.int32)
        given[: len(prompt)] = prompt
        self._arguments = given, seed_of(program.job)
        self._one_device = meshes.of_one_device(program.mesh)
        self._whole = meshes.replicated(program.mesh)
        self._replicated = jax.jit(_identity, out_shardings=self._whole)
        self._compiled: Callable[[Params, np.ndarray, np.ndarray], jax.Array] | None = None
        self._samples = 0

    def sample(self, params: Params) -> str | None:
        """Returns the prompt and its continuation, up to the end of the document.

        Returns None where only another process has generated them.
        """
        tokens = self.tokens(params)
        return None if tokens is None else self._tokenizer.decode(tokens[1:].tolist())

    def tokens(self, params: Params) -> np.ndarray | None:
        """Returns the document separator, the prompt and the generated tokens, as an int32 array.

        Its length is 1 + the prompt's tokens + `tokens` of the settings. The model attends to the
        last `data.seq_len` tokens. Returns None where only another process has generated them.
        Raises TimeoutError when a process takes longer than `deadlines.compile_s`.
        """
        self._samples += 1
        if not _is_small(params):
            compiled = self._ready(params, self._program.mesh)
            self._wait()  # collectives time out on a process that still compiles
            return np.asarray(compiled(params, *self._arguments))
        whole = executables.call(self._replicated, params, result=self._whole)
        found = self._on_one_device(whole) if self._has_the_device() else None
        self._wait()
        return found

    def prepare(self, params: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        """Compiles the programs of a sample for such parameters, with shardings."""
        if not _is_small(params):
            self._program_for(params, self._program.mesh)
            return
        executables.shared(self._replicated, params, result=self._whole)
        if self._has_the_device():
            there = meshes.replicated(self._one_device)
            of_one = jax.tree.map(lambda leaf: leaf.update(sharding=there), params)
            self._program_for(of_one, self._one_device)

    def _on_one_device(self, params: Params) -> np.ndarray:
        """Generates with replicated parameters."""
        there = meshes.replicated(self._one_device)
        of_one = jax.tree.map(lambda leaf: meshes.copy_on(there, leaf), params)
        return np.asarray(self._ready(of_one, self._one_device)(of_one, *self._arguments))

    def _has_the_device(self) -> bool:
        """Returns whether this process has the device that generates alone."""
        return self._one_device.devices.item().process_index == jax.process_index()

    def _wait(self) -> None:
        name = f"sample {self._samples}"
        initialize.wait_for_compilers(name, self._program.job.deadlines)

    def _ready(
        self, params: Params, mesh: jax.sharding.Mesh
    ) -> Callable[[Params, np.ndarray, np.ndarray], jax.Array]:
        if self._compiled is None:
            self._compiled = self._program_for(params, mesh)
        return self._compiled

    def _program_for(self, params: Any, mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
        write = jax.jit(self._write, out_shardings=meshes.replicated(mesh))
        with jax.set_mesh(mesh):
            return executables.compiled(write, params, *self._arguments)

    def _write(self, params: Params, given: jax.Array, seed: jax.Array) -> jax.Array:
        """Returns `given` with all tokens after the prompt generated by the model."""
        model = self._program.network.bind(params)
        assert isinstance(model, Decoder)
        window = self._program.job.data.seq_len
        key = jax.random.key(seed)

        def one_token(position: jax.Array, state: tuple[jax.Array, tuple[jax.Array, jax.Array]]):
            tokens, cache = state
            logits, cache = model.decode(tokens[position][None, None], position, cache, window)
            chosen = _choose(logits[0, 0], jax.random.fold_in(key, position), self._temperature)
            following = jnp.where(position + 1 < self._prompt, tokens[position + 1], chosen)
            return tokens.at[position + 1].set(following), cache

        start = (given, model.empty_cache(1, len(given)))
        return jax.lax.fori_loop(0, len(given) - 1, one_token, start)[0]


def _is_small(params: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> bool:
    sizes = (leaf.size * leaf.dtype.itemsize for leaf in params.values())
    return sum(sizes) <= ONE_DEVICE_BYTES


def _identity(params: Params) -> Params:
    return params


def _choose(logits_V: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    """Returns the likeliest token at temperature 0, else a random one."""
    if temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    return jax.random.categorical(key, logits_V / temperature).astype(jnp.int32)
