"""Memory of a step on each device: an estimate from the plan alone, in pure Python.

Parameters, moments and batch are exact. Gradients and the activations that are kept for the
backward pass follow from the model. Working memory follows the observed behaviour of the TPU
compiler; `tests/integration/trainer/test_footprint.py` compares it with the compiler. GPU compilers
may differ.
"""

from dataclasses import asdict, dataclass

from trainer.contract.config.job import Job
from trainer.contract.estimates.activations import (
    by_layers,
    kept_per_token,
    offloaded_per_token,
    worked_on_per_token,
)
from trainer.contract.estimates.traffic import activation_bytes, own_bytes, read_bytes
from trainer.contract.planning import optimizer_state, pipeline
from trainer.contract.planning.array_plans import DTYPE_BYTES, FLOAT32_BYTES
from trainer.contract.planning.layer_stacks import layer_stacks
from trainer.contract.planning.plan import ArrayPlan, Plan
from trainer.contract.planning.teacher import of_teacher

BATCH_BYTES = 5 * 4
"""Bytes of a token in a batch: its id, target, segment, position and weight."""
COPIED_LAYERS = 2
"""Layers whose offloaded activations are in HBM at a time: one is used, and the next is copied."""
STREAMS = 4
"""Residual streams and gradients of them that a stage sends and receives in a tick."""
LOGIT_BYTES = 256 * 2**20
"""Maximum bytes of float32 logits per chunk, over all devices that share rows."""


@dataclass(frozen=True)
class Footprint:
    """Peak memory of a step, in bytes per device."""

    state: int
    """Parameters, moments that are not offloaded, and the weights of a teacher."""
    batch: int
    gradients: int
    kept: int
    """Activations kept for the backward pass."""
    working: int
    """Working memory of one layer, or of one chunk of logits. Or what the offloaded moments of two
    parameters need beyond the activations, which are no longer kept during the update."""

    @property
    def certain(self) -> int:
        """Bytes that no compiler can avoid."""
        return self.state + self.batch + self.gradients + self.kept

    @property
    def total(self) -> int:
        return self.certain + self.working

    @property
    def parts(self) -> dict[str, int]:
        return asdict(self)


def footprint(job: Job, plan: Plan) -> Footprint:
    """Returns the footprint of a training step; evaluation needs less."""
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    trained = sum(array.bytes_per_device for array in plan.trained)
    tokens = plan.batch.tokens_per_device
    kept = (
        tokens * by_layers(job, plan, runs_at_once(job, plan), kept_per_token)
        + _between_stages(job, plan)
        + _teacher_features(plan, tokens)
    )
    return Footprint(
        state=parameters
        + optimizer_state.bytes_per_device(job.optimizer, plan)
        - optimizer_state.offloaded_bytes(job.optimizer, plan)
        + plan.teacher_bytes,
        batch=BATCH_BYTES * tokens * plan.batch.grad_accum_steps,
        gradients=(2 if accumulates(plan) else 1) * trained,
        kept=kept,
        working=max(
            _of_a_layer(job, plan, tokens),
            _of_a_teachers_layer(job, plan, tokens),
            logits_bytes(job, plan, tokens),
            optimizer_state.moved_bytes(job.optimizer, plan) - kept,
        ),
    )


def accumulates(plan: Plan) -> bool:
    """Returns whether gradients of micro-batches are added to those of the ones before."""
    if plan.mesh["pipeline"] > 1:
        return pipeline.alternates(plan)
    return plan.batch.grad_accum_steps > 1


def runs_at_once(job: Job, plan: Plan) -> int:
    """Returns the number of layers' runs whose activations are kept at the same time.

    Where passes alternate, those of a tick are also in memory beside those of all kept ticks, when
    they are written or read.
    """
    stages = plan.mesh["pipeline"]
    if stages == 1:
        return job.decoder.layers
    if not pipeline.alternates(plan):
        return pipeline.layer_runs(job, plan)
    kept = pipeline.kept_ticks(stages, plan.batch.grad_accum_steps)
    return job.decoder.layers // stages * (kept + 1)


def _between_stages(job: Job, plan: Plan) -> int:
    """Returns the bytes of activations that enter and leave a stage of a pipeline.

    They are those of all ticks, or of one tick where passes alternate.
    """
    if plan.mesh["pipeline"] == 1:
        return 0
    if pipeline.alternates(plan):
        return STREAMS * activation_bytes(job, plan)
    return (2 * pipeline.ticks_of(plan) + plan.batch.grad_accum_steps) * activation_bytes(job, plan)


def _teacher_features(plan: Plan, tokens: int) -> int:
    """Returns the bytes of the features that a teacher has computed; 0 without one."""
    width = DTYPE_BYTES[plan.compute_dtype]
    return tokens * plan.teacher.model.d_model * width if plan.teacher else 0


def _of_a_layer(job: Job, plan: Plan, tokens: int) -> int:
    """Returns a layer's live activations, gathered weights and their gradients, in bytes.

    Offloaded activations of other layers are on their way to the host or back.
    """
    last = layer_stacks(job.decoder)[-1]
    layers = [array for array in plan.parameters if array.name.startswith(f"{last.name}.")]
    count = last.count // plan.mesh["pipeline"]
    weights = sum(_gathered_bytes(array, plan) for array in layers) // count
    copied = COPIED_LAYERS * offloaded_per_token(job, plan)
    return tokens * (worked_on_per_token(job, plan) + copied) + weights


def _of_a_teachers_layer(job: Job, plan: Plan, tokens: int) -> int:
    """Returns the same of a teacher, whose weights have no gradients; 0 without one."""
    found = of_teacher(job, plan)
    return _of_a_layer(*found, tokens) if found else 0


def logits_bytes(job: Job, plan: Plan, tokens: int) -> int:
    """Returns the bytes of a chunk of logits, its gradient, and the output weights.

    With a teacher, the chunk has the logits of both models.
    """
    width, parts = DTYPE_BYTES[plan.compute_dtype], plan.mesh["pipeline"] * plan.mesh["tensor"]
    models = 2 if plan.teacher else 1
    logits = min(FLOAT32_BYTES * models * tokens * plan.padded_vocab, LOGIT_BYTES) // parts
    weights = width * plan.padded_vocab // parts
    copies = (1 if job.lora else 2) * job.decoder.d_model
    if plan.teacher:
        copies += plan.teacher.model.d_model
    return logits + logits * width // FLOAT32_BYTES + copies * weights


def _gathered_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Returns the bytes of a parameter and its gradient when gathered over `fsdp`."""
    gradient = own_bytes(array, plan) if array.is_trained else 0
    shards = plan.mesh["fsdp"] if "fsdp" in array.spec else 1
    return (read_bytes(array, plan) + gradient) * shards
