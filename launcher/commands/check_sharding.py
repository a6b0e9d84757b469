"""`launch plan --check-sharding`: where the step's shardings are ambiguous or would change."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from launcher.commands.plan_result import PlanResult, plan_result
from launcher.core.errors import InterruptError, UsageError
from launcher.core.formatting import format_bytes, pluralize
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.planning.compiler import of_training
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcess, TrainerProcessError
from launcher.ui.plan_view import print_plan
from trainer.contract.protocol.reports import ShardingFinding, ShardingReport, SourceLocation

TIMEOUT_S = 600.0
CALLERS = 2
"""Maximum number of frames shown of a source location."""
STYLES = {"ambiguous": "bold red", "reshard": "yellow", "constraint": "dim"}


@dataclass(frozen=True, kw_only=True)
class CheckedPlanResult(PlanResult):
    """The plan of a run, with the result of `--check-sharding`."""

    explicit: Sequence[ShardingFinding]
    """Findings under explicit axis types, most bytes first."""


def check_sharding(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> None:
    """Prints the plan with the findings. Raises UsageError when the step cannot be traced."""
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    try:
        status = errors.status("tracing the step under explicit axis types")
        with status, ending_on_signals():
            report = trace_step(launch)
    except TrainerProcessError as error:
        raise UsageError(f"--check-sharding: {error}") from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; the trace has ended") from None
    if as_json:
        print_json(CheckedPlanResult(**vars(plan_result(launch)), explicit=report.findings))
    else:
        _print(Console(), report.findings)
    if report.stopped:
        why = f"warning: the backward pass is not in it: {report.stopped}"
        errors.print(Text(why, style="yellow"), soft_wrap=True)


def trace_step(launch: LaunchSpec) -> ShardingReport:
    """Traces the step and returns the report. Raises TrainerProcessError."""
    training = of_training(launch)
    if (stages := training.plan.mesh["pipeline"]) > 1:
        raise TrainerProcessError(
            f"found mesh.pipeline {stages}, and the check has no stages. Set mesh.pipeline=1, "
            "which computes the same layers"
        )
    with TrainerProcess(
        "trainer.analysis.explicit", training.job, training.plan, TIMEOUT_S
    ) as call:
        return call.answer(ShardingReport)


def _print(console: Console, found: Sequence[ShardingFinding]) -> None:
    by_place: dict[str, list[ShardingFinding]] = {}
    for one in found:
        by_place.setdefault(_where(one.place), []).append(one)
    ranked = sorted(by_place.items(), key=lambda item: -_bytes(item[1]))
    lines = [Text("per device and step, under explicit axis types", style="bold")]
    for where, changes in ranked:
        lines.append(Text(where, style="cyan"))
        lines += [line for one in changes for line in _lines(one)]
    console.print()
    for line in [*(lines if found else ()), Text(_summary(found, by_place))]:
        console.print(line, soft_wrap=True)


def _lines(one: ShardingFinding) -> list[Text]:
    """Formats a finding: its change, how often it occurs, and why JAX would reject it."""
    times = f"{one.times:,} x"
    text = Text(f"{format_bytes(one.bytes):>10} {times:>7}  {_direction(one):<8}  ")
    text.append(f"{one.kind:<10}", style=STYLES[one.kind])
    change = f": {one.old} -> {one.new}" if one.old else ""
    text.append(f"  {one.operation}{change}")
    return [text, *([Text(f"{'':21}{one.reason}", style="dim")] if one.reason else [])]


def _direction(one: ShardingFinding) -> str:
    return "backward" if one.backward else "forward"


def _where(place: SourceLocation) -> str:
    return " < ".join(map(str, place[:CALLERS])) or "nobody's line"


def _bytes(found: Sequence[ShardingFinding]) -> int:
    return sum(one.bytes for one in found)


def _summary(found: Sequence[ShardingFinding], by_place: dict[str, list[ShardingFinding]]) -> str:
    """Describes the number of places of each kind."""
    kinds = [{one.kind for one in changes} for changes in by_place.values()]
    places = {kind: sum(kind in found for found in kinds) for kind in STYLES}
    return (
        f"explicit axis types: ambiguous at {pluralize(places['ambiguous'], 'place')}, operations "
        f"reshard at {places['reshard']}, the model's own constraints at {places['constraint']}; "
        f"{format_bytes(_bytes(found))} per device and step"
    )
