"""`launch plan`: shows the plan of a run, or what the compiler or a trace says about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from launcher.commands.plan_result import plan_result
from launcher.core.errors import UsageError
from launcher.core.json_output import print_json
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.ui import plan_view, sharding_view
from trainer.contract.planning.plan import ArrayPlan, Plan


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What `launch plan` shows."""

    shardings: bool = False
    """Whether the layout of every parameter is listed."""
    compiled: bool | None = None
    """Whether the TPU compiler is asked; None leaves that to `searched`."""
    keep: bool = False
    """Whether the compiled programs are kept for the run."""
    searched: bool = False
    """Whether alternatives are ranked."""
    check_sharding: bool = False
    """Whether the step is traced for ambiguous shardings."""
    draw: str | None = None
    """Name of the array to draw."""
    as_json: bool = False

    def check(self) -> None:
        """Raises UsageError for options that exclude each other."""
        if self.check_sharding and self.compiled:
            raise UsageError("--check-sharding and --compile: one of them at a time")
        if self.keep and not self.compiled:
            raise UsageError("--keep: keeps what --compile compiles. Add --compile")
        if self.keep and (self.searched or self.draw):
            other = "--search" if self.searched else "--draw"
            raise UsageError(f"--keep and {other}: one of them at a time")


@dataclass(frozen=True, kw_only=True)
class ArrayPart:
    """A part of an array, and the devices that hold it."""

    index: Sequence[int]
    """Index of the part along each dim that is split."""
    devices: Sequence[int]
    """Numbers of the devices."""


@dataclass(frozen=True, kw_only=True)
class ArrayParts:
    """An array that `--draw` names, and which devices hold which part of it."""

    name: str
    shape: Sequence[int]
    spec: Sequence[str | None]
    """Mesh axis of each dim; None for a dim that is not split."""
    parts: Sequence[ArrayPart]

    @classmethod
    def of(cls, array: ArrayPlan, plan: Plan) -> "ArrayParts":
        """Returns the parts of an array by the plan."""
        held = sharding_view.holders(array, plan)
        parts = [ArrayPart(index=index, devices=devices) for index, devices in held.items()]
        return cls(name=array.name, shape=array.shape, spec=array.spec, parts=parts)


def show_plan(spec: LaunchSpec, options: PlanOptions) -> None:
    """Shows a plan. Raises JobError when the step does not fit, UsageError for wrong options."""
    if options.draw:
        _draw(spec, options.draw, as_json=options.as_json)
    elif options.check_sharding:
        from launcher.commands.check_sharding import check_sharding

        check_sharding(spec, shardings=options.shardings, as_json=options.as_json)
    elif options.searched:
        from launcher.commands.search import search

        search(spec, compiled=options.compiled, as_json=options.as_json)
    elif options.keep:
        from launcher.commands.keep import keep_programs

        keep_programs(spec, shardings=options.shardings, as_json=options.as_json)
    elif options.compiled:
        from launcher.commands.compile import compile_plan

        compile_plan(spec, shardings=options.shardings, as_json=options.as_json)
    else:
        _print(spec, options)


def show_dry_run(spec: LaunchSpec, *, as_json: bool) -> None:
    """Prints what a run would create to get its hosts, or else its plan."""
    from launcher.executors.registry import executor_for

    executor = executor_for(spec.cluster, simulated=spec.plan.world.simulated)
    if not as_json and (created := executor.describe(spec)):
        print(created, end="")
    else:
        _print(spec, PlanOptions(as_json=as_json))


def _print(spec: LaunchSpec, options: PlanOptions) -> None:
    if options.as_json:
        print_json(plan_result(spec))
    else:
        plan_view.print_plan(Console(), spec, shardings=options.shardings)


def _draw(spec: LaunchSpec, pattern: str, *, as_json: bool) -> None:
    if not isinstance(spec, TrainingLaunch):
        raise UsageError("--draw: a job with `command` has no arrays that are planned")
    try:
        arrays = sharding_view.matching(spec.plan, pattern)
    except sharding_view.NoSuchArrayError as error:
        raise UsageError(f"--draw {error}") from None
    if as_json:
        print_json([ArrayParts.of(array, spec.plan) for array in arrays])
        return
    for array in arrays:
        Console().print(sharding_view.picture(array, spec.plan))
