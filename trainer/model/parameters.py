"""Parameters as a flat dict, and the model bound to them.

The dict is `{"layers.attention.query.kernel": array, ...}`, with the names of
`trainer/contract/planning/parameter_shapes.py`. The hot path thus passes few plain leaves, and a
checkpoint has readable names.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.job import Job
from trainer.contract.planning.parameter_shapes import parameters
from trainer.contract.planning.plan import MoEKind, Plan
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.model.decoder import Decoder
from trainer.model.embeddings import Vocabulary
from trainer.model.lora import attach
from trainer.model.pipeline import in_rounds

Params = dict[str, jax.Array]

ADAPTERS = 0x10124
"""Number folded into the key of adapters; NNX counts the draws of a model in smaller numbers."""


@dataclass(frozen=True)
class Network:
    """The decoder without parameter values: initializes parameters and binds a module to them."""

    job: Job
    vocabulary: Vocabulary
    dtype: jnp.dtype
    attention: str
    """Kernel of the plan, or `blocks` on CPU devices: see attention_kernels.py."""
    moe: MoEKind
    chunks: int

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "Network":
        """Returns the network of a job, with the vocabulary and the compute dtype of its plan."""
        attention = plan.attention
        if plan.world.on_cpu:
            job, attention = _written_out(job), "blocks"
        vocabulary = Vocabulary(vocab_size(job), plan.padded_vocab)
        dtype = jnp.dtype(plan.compute_dtype)
        return cls(job, vocabulary, dtype, attention, plan.moe, plan.batch.chunks)

    @cached_property
    def graph(self) -> nnx.GraphDef:
        """The module without values; only a trace needs it."""
        built = list[nnx.GraphDef]()

        def build() -> None:
            module = _decoder(
                self.job, self.vocabulary, self.dtype, self.attention, self.moe, self.chunks
            )
            built.append(nnx.graphdef(module))

        # Not `nnx.eval_shape`: under `jax.set_mesh` it takes logical axes for axes of the mesh.
        with nnx.use_eager_sharding(False):
            jax.eval_shape(build)
        return built[0]

    def initial(self, seed: jax.Array) -> Params:
        """Initializes parameters in float32 from a seed alone; call it under jit."""
        with nnx.use_eager_sharding(False):
            module = _decoder(self.job, self.vocabulary, self.dtype, seed=seed)
        rounds = self.job.mesh.pipeline_rounds
        return {
            name: in_rounds(variable[...], rounds)
            if variable.out_sharding[0] == "layer"
            else variable[...]
            for name, variable in named_parameters(module).items()
        }

    def bind(self, params: Params) -> Decoder:
        """Returns the module that computes with `params`."""
        paths = [(tuple(name.split(".")), value) for name, value in params.items()]
        return nnx.merge(self.graph, nnx.from_flat_state(paths))


def _written_out(job: Job) -> Job:
    """Returns the job with its layers unrolled, not in a loop.

    XLA's CPU devices run the collectives of a program in its order, with one exception. A
    collective that does not need a loop's result can overtake those inside the loop, on one device
    and not on another. Then all devices deadlock. (The edges between collectives in XLA's
    ThunkExecutor end when a thunk is scheduled, and a running loop already counts as scheduled.)
    """
    return job.model_copy(update={"model": job.decoder.model_copy(update={"scan_layers": False})})


def abstract(
    job: Job,
    vocabulary: Vocabulary,
    dtype: jnp.dtype,
    attention: str = "reference",
    moe: MoEKind = "capacity",
) -> Decoder:
    """Returns the module with shapes in place of arrays; computes nothing."""
    with nnx.use_eager_sharding(False):
        return nnx.eval_shape(lambda: _decoder(job, vocabulary, dtype, attention, moe))


def _decoder(
    job: Job,
    vocabulary: Vocabulary,
    dtype: jnp.dtype,
    attention: str = "reference",
    moe: MoEKind = "capacity",
    chunks: int = 1,
    seed: jax.Array | int = 0,
) -> Decoder:
    """Builds the decoder with the job's adapters, which do not change its other initial values."""
    key = jax.random.key(seed)
    module = Decoder(
        nnx.Rngs(params=key), job.decoder, vocabulary, dtype, attention, moe, chunks,
        job.mesh.pipeline_rounds,
    )  # fmt: skip
    if job.lora:
        rngs = nnx.Rngs(params=jax.random.fold_in(key, ADAPTERS))
        attach(module, rngs, job.lora, parameters(job.decoder, vocabulary.padded))
    return module


def named_parameters(module: Decoder) -> dict[str, nnx.Param]:
    """Returns the module's variables by dotted name; `out_sharding` has their logical axes."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): variable for path, variable in flat}
