"""How much memory a step takes on each device: an estimate from the plan alone, in pure Python.

Exact are the parameters, the moments and the batch. Gradients and the activations that are kept
for the backward pass follow from the model. What is worked on besides is what the TPU compiler was
seen to do, and `tests/trainer/test_footprint.py` holds it against the compiler: a GPU's may differ.
"""

from dataclasses import asdict, dataclass

from trainer.contract.config.job import Job
from trainer.contract.estimates.activations import kept_per_token, worked_on_per_token
from trainer.contract.estimates.roofline import own_bytes
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.plan import ArrayPlan, Plan
from trainer.contract.planning.planner import DTYPE_BYTES, FLOAT32_BYTES

BATCH_BYTES = 5 * 4
"""Of a token: its id, target, segment, position and weight."""
LOGIT_BYTES = 256 * 2**20
"""Of one chunk's float32 logits over all devices that share rows; more is cut into chunks."""


@dataclass(frozen=True)
class Footprint:
    """Bytes per device at the moment of a step that needs the most."""

    state: int
    """Parameters and moments."""
    batch: int
    gradients: int
    kept: int
    """Activations that wait for the backward pass."""
    working: int
    """Of the layer, or the piece of logits, that is worked on."""

    @property
    def certain(self) -> int:
        """What no compiler can do without."""
        return self.state + self.batch + self.gradients + self.kept

    @property
    def total(self) -> int:
        return self.certain + self.working

    @property
    def parts(self) -> dict[str, int]:
        return asdict(self)


def footprint(job: Job, plan: Plan) -> Footprint:
    """Of a training step; evaluation needs less."""
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    trained = sum(array.bytes_per_device for array in plan.trained)
    tokens = plan.batch.tokens_per_device
    accumulates = plan.batch.micro_batches > 1
    return Footprint(
        state=parameters + optimizer_state.bytes_per_device(job.optimizer, plan),
        batch=BATCH_BYTES * tokens * plan.batch.micro_batches,
        gradients=(2 if accumulates else 1) * trained,
        kept=job.decoder.layers * tokens * kept_per_token(job, plan),
        working=max(_of_a_layer(job, plan, tokens), _of_logits(job, plan, tokens)),
    )


def _of_a_layer(job: Job, plan: Plan, tokens: int) -> int:
    """Its activations while they are differentiated, its gathered weights, and their gradients."""
    layers = [array for array in plan.parameters if array.name.startswith("layers.")]
    weights = sum(_gathered_bytes(array, plan) for array in layers) // job.decoder.layers
    return tokens * worked_on_per_token(job, plan) + weights


def _of_logits(job: Job, plan: Plan, tokens: int) -> int:
    """Of a chunk: logits and their gradient; and the weights that they are products of."""
    width = DTYPE_BYTES[plan.compute_dtype]
    logits = min(FLOAT32_BYTES * tokens * plan.padded_vocab, LOGIT_BYTES) // plan.mesh["tensor"]
    weights = width * plan.padded_vocab * job.decoder.d_model // plan.mesh["tensor"]
    copies = 1 if job.lora else 2
    return logits + logits * width // FLOAT32_BYTES + copies * weights


def _gathered_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Of a parameter and its gradient, whole but for what tensor parallelism splits."""
    copies = 2 if array.is_trained else 1
    return copies * own_bytes(array, plan) * (plan.mesh["fsdp"] if "fsdp" in array.spec else 1)
