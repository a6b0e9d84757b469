"""Parameters as a flat dict, and the model bound to them.

A run's state is `{"layers.attention.query.kernel": array, ...}`, with the names of
`trainer/contract/planning/parameter_shapes.py`: the hot path passes few plain leaves, and a
checkpoint has readable names.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.job import Job
from trainer.contract.planning.parameter_shapes import parameters
from trainer.contract.planning.plan import Plan
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.model.decoder import Decoder, Vocabulary
from trainer.model.lora import attach

Params = dict[str, jax.Array]

ADAPTERS = 0x10124
"""Apart from the numbers that NNX gives to the draws of a model."""


@dataclass(frozen=True)
class Network:
    """The model without its numbers: makes initial parameters, and a module from parameters."""

    job: Job
    vocabulary: Vocabulary
    dtype: jnp.dtype
    graph: nnx.GraphDef

    @property
    def is_random(self) -> bool:
        """Whether a step takes random keys."""
        return self.job.decoder.dropout > 0

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "Network":
        """The network of a job, with the vocabulary and the compute dtype of its plan."""
        if plan.world.on_cpu:
            job = _written_out(job)
        vocabulary = Vocabulary(vocab_size(job), plan.padded_vocab)
        dtype = jnp.dtype(plan.compute_dtype)
        module = abstract(job, vocabulary, dtype, plan.attention, plan.experts)
        return cls(job, vocabulary, dtype, nnx.graphdef(module))

    def initial(self) -> Params:
        """Parameters in float32 from the job's seed alone; call it under jit."""
        with nnx.use_eager_sharding(False):
            module = _decoder(self.job, self.vocabulary, self.dtype)
        return {name: variable[...] for name, variable in named_parameters(module).items()}

    def bind(self, params: Params) -> Decoder:
        """The module that computes with `params`."""
        paths = [(tuple(name.split(".")), value) for name, value in params.items()]
        return nnx.merge(self.graph, nnx.from_flat_state(paths))


def _written_out(job: Job) -> Job:
    """The job with every layer of its own in the program, in place of one in a loop.

    XLA's CPU devices run a program's collectives in its order, with one exception: one that does
    not need a loop's result can overtake those inside the loop, on one device and not on another.
    Then all wait for ever. (The collectives' edges in XLA's ThunkExecutor end when a thunk has been
    scheduled, and a loop counts as scheduled while it still runs.)
    """
    return job.model_copy(update={"model": job.decoder.model_copy(update={"scan_layers": False})})


def abstract(
    job: Job,
    vocabulary: Vocabulary,
    dtype: jnp.dtype,
    attention: str = "plain",
    experts: str = "room",
) -> Decoder:
    """The module with shapes in place of arrays; nothing is computed."""
    with nnx.use_eager_sharding(False):
        return nnx.eval_shape(lambda: _decoder(job, vocabulary, dtype, attention, experts))


def _decoder(
    job: Job,
    vocabulary: Vocabulary,
    dtype: jnp.dtype,
    attention: str = "plain",
    experts: str = "room",
) -> Decoder:
    """With the job's adapters, which change nothing of how the rest begins."""
    key = jax.random.key(job.seed)
    module = Decoder(nnx.Rngs(params=key), job.decoder, vocabulary, dtype, attention, experts)
    if job.lora:
        rngs = nnx.Rngs(params=jax.random.fold_in(key, ADAPTERS))
        attach(module, rngs, job.lora, parameters(job.decoder, vocabulary.padded))
    return module


def named_parameters(module: Decoder) -> dict[str, nnx.Param]:
    """The module's variables by dotted name; each has its logical axes as `out_sharding`."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): variable for path, variable in flat}
