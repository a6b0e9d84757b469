"""The schedule of a pipeline: stages of layers that micro-batches pass through, one tick at a time.

In each tick every stage applies layers to one micro-batch, and passes the result on. With v rounds,
the layers are in v groups, and a stage has a part of each: a micro-batch passes through all stages
v times. Micro-batches do so in groups of as many as there are stages: when the last stage has
applied its part of a round, the first one is free for the next round, so no result waits.

The first micro-batch reaches the last stage after p - 1 ticks, so M micro-batches take v M + p - 1
ticks in each pass. In p - 1 of them a stage is idle: this is the bubble.

GPipe runs all ticks of the forward pass before those of the backward pass, and keeps activations of
all of them. 1F1B runs a tick of the backward pass after one of the forward pass as soon as the last
stage has a result, and keeps those of 2 p - 1 ticks at most. The number of ticks is the same.

References:
    GPipe, section 2.3: https://arxiv.org/abs/1811.06965
    1F1B: PipeDream-Flush, section 2.2 of https://arxiv.org/abs/2104.04473
    Rounds: the interleaved schedule, section 2.2 of https://arxiv.org/abs/2104.04473
"""

from dataclasses import replace

from trainer.contract.config.job import Job
from trainer.contract.planning.parameter_shapes import Parameter
from trainer.contract.planning.plan import ArrayPlan, Plan

LARGE_BUBBLE = 0.25
"""Share of the time from which the plan warns of a bubble: that of GPipe's rule, which asks for at
least four micro-batches per stage, is below 0.2."""


def places(stages: int, micro_batches: int, rounds: int) -> int:
    """Returns the length of a stage's order of work, in ticks.

    The stage is idle where the last group has fewer micro-batches than there are stages.
    """
    groups, last = divmod(micro_batches - 1, stages)
    return ((groups + 1) * rounds - 1) * stages + last + 1


def ticks(stages: int, micro_batches: int, rounds: int) -> int:
    """Returns the ticks of a pass. Stage i begins its work in tick i."""
    return places(stages, micro_batches, rounds) + stages - 1


def alternates(plan: Plan) -> bool:
    """Returns whether stages run forward and backward passes in turn (1F1B)."""
    return plan.mesh["pipeline"] > 1 and plan.pipeline_schedule == "1f1b"


def kept_ticks(stages: int, micro_batches: int) -> int:
    """Returns the ticks of which stages keep activations at the same time, with 1F1B.

    The first stage runs the backward pass of a micro-batch 2 (p - 1) ticks after its forward pass.
    """
    return min(2 * stages - 1, ticks(stages, micro_batches, rounds=1))


def ticks_of(plan: Plan) -> int:
    """Returns the ticks of each pass of a step."""
    return ticks(plan.mesh["pipeline"], plan.batch.grad_accum_steps, plan.pipeline_rounds)


def repeats(plan: Plan) -> float:
    """Returns the times that a layer runs in each pass of a step: micro-batches and idle ticks."""
    return ticks_of(plan) / plan.pipeline_rounds


def layer_runs(job: Job, plan: Plan) -> int:
    """Returns the layers that a device runs in each pass, counted once per run."""
    of_tick = job.decoder.layers // (plan.mesh["pipeline"] * plan.pipeline_rounds)
    return of_tick * ticks_of(plan)


def uses(array: ArrayPlan, plan: Plan) -> float:
    """Returns the times that each pass of a step uses a weight.

    The weights outside of the layers serve all micro-batches of a pipeline at once, except where
    passes alternate.
    """
    if plan.mesh["pipeline"] == 1 or "layer" in array.axes:
        return repeats(plan)
    return plan.batch.grad_accum_steps if alternates(plan) else 1


def bubble(stages: int, micro_batches: int, rounds: int) -> float:
    """Returns the share of ticks in which a stage is idle."""
    return 1 - rounds * micro_batches / ticks(stages, micro_batches, rounds)


def stretch(plan: Plan) -> float:
    """Returns the time of the layers in a step, relative to a step without a bubble."""
    return repeats(plan) / plan.batch.grad_accum_steps


def in_rounds(parameter: Parameter, rounds: int) -> Parameter:
    """Returns a parameter as devices store it: with rounds, layers are in two dims.

    (L, ...) becomes (rounds, L / rounds, ...) without a change of the order, and a stage has a part
    of the second dim.
    """
    if rounds == 1 or parameter.axes[0] != "layer":
        return parameter
    layers, *rest = parameter.shape
    shape, axes = (rounds, layers // rounds, *rest), ("round", *parameter.axes)
    return replace(parameter, shape=shape, axes=axes)
