"""The schedule of a pipeline: stages of layers that micro-batches pass through, one tick at a time.

In each tick every stage applies its layers to one micro-batch, and passes the result on. The first
micro-batch reaches the last stage after p - 1 ticks, so a step of M micro-batches takes M + p - 1
ticks in each pass. In the others a stage is idle: this is the bubble.

References:
    GPipe, section 2.3: https://arxiv.org/abs/1811.06965
"""

from collections.abc import Mapping

from trainer.contract.planning.plan import ArrayPlan, Plan

LARGE_BUBBLE = 0.25
"""Share of the time from which the plan warns of a bubble: that of GPipe's rule, which asks for at
least four micro-batches per stage, is below 0.2."""


def ticks(stages: int, micro_batches: int) -> int:
    """Returns the ticks of a pass."""
    return micro_batches + stages - 1


def repeats(plan: Plan) -> int:
    """Returns the times that a layer runs in each pass of a step: micro-batches and idle ticks."""
    return ticks(plan.mesh["pipeline"], plan.batch.grad_accum_steps)


def uses(array: ArrayPlan, plan: Plan) -> int:
    """Returns the times that each pass of a step uses a weight.

    The weights outside of the layers serve all micro-batches of a pipeline at once.
    """
    if plan.mesh["pipeline"] == 1 or "layer" in array.axes:
        return repeats(plan)
    return 1


def bubble(mesh: Mapping[str, int], micro_batches: int) -> float:
    """Returns the share of ticks in which a stage is idle."""
    return (mesh["pipeline"] - 1) / ticks(mesh["pipeline"], micro_batches)


def stretch(plan: Plan) -> float:
    """Returns the time of the layers in a step, relative to a step without a bubble."""
    return repeats(plan) / plan.batch.grad_accum_steps
