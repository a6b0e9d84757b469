"""`launch plan --check-sharding`: where the step's shardings are ambiguous or would change."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher.core.errors import InterruptError, UsageError
from launcher.core.formatting import format_bytes, pluralize
from launcher.core.signals import ending_on_signals
from launcher.planning.compiler import of_training
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcess, TrainerProcessError
from launcher.ui.plan_view import plan_as_json, print_plan

TIMEOUT_S = 600.0
CALLERS = 2
"""Maximum number of frames shown of a source location."""
STYLES = {"ambiguous": "bold red", "reshard": "yellow", "constraint": "dim"}


def check_sharding(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> None:
    """Prints the plan with the findings. Raises UsageError when the step cannot be traced."""
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    try:
        status = errors.status("tracing the step under explicit axis types")
        with status, ending_on_signals():
            report = ask(launch)
    except TrainerProcessError as error:
        raise UsageError(f"--check-sharding: {error}") from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; the trace has ended") from None
    if as_json:
        content = json.loads(plan_as_json(launch))
        print(json.dumps(content | {"explicit": report["explicit"]}, indent=2))
    else:
        _print(Console(), report["explicit"])
    if report["stopped"]:
        why = f"warning: the backward pass is not in it: {report['stopped']}"
        errors.print(Text(why, style="yellow"), soft_wrap=True)


def ask(launch: LaunchSpec) -> dict[str, Any]:
    """Returns the output of trainer.analysis.explicit. Raises TrainerProcessError."""
    training = of_training(launch)
    with TrainerProcess(
        "trainer.analysis.explicit", training.job, training.plan, TIMEOUT_S
    ) as call:
        return call.answer()


def _print(console: Console, found: list[dict[str, Any]]) -> None:
    by_place: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_place.setdefault(_where(one["place"]), []).append(one)
    ranked = sorted(by_place.items(), key=lambda item: -_bytes(item[1]))
    lines = [Text("per device and step, under explicit axis types", style="bold")]
    for where, changes in ranked:
        lines.append(Text(where, style="cyan"))
        lines += [line for one in changes for line in _lines(one)]
    console.print()
    for line in [*(lines if found else ()), Text(_summary(found, by_place))]:
        console.print(line, soft_wrap=True)


def _lines(one: dict[str, Any]) -> list[Text]:
    """Formats a finding: its change, how often it occurs, and why JAX would reject it."""
    times = f"{one['times']:,} x"
    text = Text(f"{format_bytes(one['bytes']):>10} {times:>7}  {one['pass']:<8}  ")
    text.append(f"{one['kind']:<10}", style=STYLES[one["kind"]])
    change = f": {one['from']} -> {one['to']}" if one["from"] else ""
    text.append(f"  {one['operation']}{change}")
    return [text, *([Text(f"{'':21}{one['reason']}", style="dim")] if one["reason"] else [])]


def _where(place: list[dict[str, Any]]) -> str:
    frames = [f"{f['file']}:{f['line']} in {f['function']}" for f in place[:CALLERS]]
    return " < ".join(frames) or "nobody's line"


def _bytes(found: list[dict[str, Any]]) -> int:
    return sum(one["bytes"] for one in found)


def _summary(found: list[dict[str, Any]], by_place: dict[str, list[dict[str, Any]]]) -> str:
    """Describes the number of places of each kind."""
    kinds = [{one["kind"] for one in changes} for changes in by_place.values()]
    places = {kind: sum(kind in found for found in kinds) for kind in STYLES}
    return (
        f"explicit axis types: ambiguous at {pluralize(places['ambiguous'], 'place')}, operations "
        f"reshard at {places['reshard']}, the model's own constraints at {places['constraint']}; "
        f"{format_bytes(_bytes(found))} per device and step"
    )
