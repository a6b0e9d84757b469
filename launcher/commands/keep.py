"""`launch plan --compile --keep`: compiles the programs of a run, and keeps them for its hosts."""

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from launcher.commands.plan_result import PlanResult, plan_result
from launcher.core.errors import InterruptError, UsageError
from launcher.core.formatting import format_bytes, format_seconds, pluralize
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.planning.kept_programs import KeptStore, keep
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcessError
from launcher.ui.forecast_view import elapsed
from launcher.ui.plan_view import print_plan


@dataclass(frozen=True, kw_only=True)
class KeptPlanResult(PlanResult):
    """The plan of a run, with the result of `--keep`."""

    kept: KeptStore


def keep_programs(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> None:
    """Prints the plan, and what was kept where. Raises UsageError when that is not possible."""
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    what = f"compiling for each process on {pluralize(launch.plan.world.hosts, 'host')}"
    try:
        with ending_on_signals(), elapsed(Console(stderr=True), what):
            kept = keep(launch)
    except TrainerProcessError as error:
        raise UsageError(f"--keep: {error}") from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; the compilers have ended, nothing was kept") from None
    if as_json:
        print_json(KeptPlanResult(**vars(plan_result(launch)), kept=kept))
    else:
        Console().print(Text(_describe(kept)), soft_wrap=True)


def _describe(kept: KeptStore) -> str:
    *smaller, largest = kept.hosts
    sizes = " or ".join([*map(str, smaller), pluralize(largest, "host")])
    return (
        f"kept {pluralize(kept.programs, 'program')}, {format_bytes(kept.bytes)}, for the "
        f"processes of {sizes} in {kept.folder}\n"
        f"{pluralize(kept.compilations, 'compilation')} in {format_seconds(kept.compile_s)}; a "
        "run of this name starts with them, unless --no-hot is given"
    )
