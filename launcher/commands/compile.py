"""`launch plan --compile`, and the same check before a run on real TPUs: does the step fit?

The TPU compiler runs in its own process, once for each plan.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from launcher.commands.search import Advice, advise
from launcher.core.errors import JobError
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, JOB_FAILED, OK, fail
from launcher.core.files import NoStateFolderError, make_state_folder, replace_file, state_folder
from launcher.core.formatting import format_bytes, format_seconds
from launcher.core.signals import ending_on_signals
from launcher.planning.compiler import compilation
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcessError
from launcher.ui import collectives_view
from launcher.ui.plan_view import plan_as_json, print_plan
from trainer.contract.config.loader import dump
from trainer.contract.config.model import Model, OwnModel
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.planning.chips import GiB
from trainer.contract.protocol import versions


def tell(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> int:
    """Prints the plan with the compiler's verdict; returns the exit code of `launch`."""
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    try:
        status = errors.status(f"compiling the step for {launch.plan.world.accelerator}")
        with status, ending_on_signals():
            verdict = ask(launch)
    except TrainerProcessError as error:
        return fail(errors, f"--compile: {error}", BAD_USAGE)
    except KeyboardInterrupt:
        return fail(errors, "interrupted; the compiler is ended", INTERRUPTED)
    assert isinstance(launch, TrainingLaunch), "else there is no verdict"
    verdict["estimate"] = _estimate(launch)
    advice = advise(launch, verdict)
    if as_json:
        verdict["advice"] = asdict(advice) if advice else None
        print(json.dumps(json.loads(plan_as_json(launch)) | verdict, indent=2))
    else:
        _print(Console(), verdict, advice)
    return OK if verdict["fits"] else fail(errors, refusal(verdict), JOB_FAILED)


def ask(launch: LaunchSpec) -> dict[str, Any]:
    """Returns the fields of trainer.analysis.compile_report.CompileReport.

    Raises TrainerProcessError.
    """
    with compilation(launch) as call:
        return call.answer()


def _estimate(launch: TrainingLaunch) -> dict[str, int] | None:
    """Estimates bytes by part, which the compiler does not report.

    Returns None for a custom model.
    """
    if not isinstance(launch.job.model, Model):
        return None
    return footprint(launch.job, launch.plan).parts


def _print(console: Console, verdict: dict[str, Any], advice: Advice | None) -> None:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in verdict["memory"].items())
    lines = [f"compiled in {format_seconds(verdict['compile_s'])}; per device: {parts}"]
    if estimate := verdict["estimate"]:
        lines.append(
            f"of the temporaries, by estimate: gradients {format_bytes(estimate['gradients'])}, "
            f"activations kept for the backward pass {format_bytes(estimate['kept'])}"
        )
    if verdict["evaluation_bytes"]:
        lines.append(f"an evaluation needs {format_bytes(verdict['evaluation_bytes'])}")
    lines.append(verdict["message"] or f"fits: needs {_of(verdict)}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if collectives := verdict["collectives"]:
        console.print(Padding(collectives_view.table(collectives), (1, 0, 0, 0)))
        console.print(Text(collectives_view.summary(collectives)), soft_wrap=True)
        if strategies := verdict["strategies"]:
            console.print(Text(collectives_view.shares(strategies)), soft_wrap=True)
    if advice:
        console.print(Text(advice.text), soft_wrap=True)


def refusal(verdict: dict[str, Any]) -> str:
    """Describes in one line a step that does not fit."""
    if verdict["hbm_needed_bytes"] is None:
        return "does not fit"
    return f"does not fit: needs {_of(verdict)}"


def _of(verdict: dict[str, Any]) -> str:
    needed, available = verdict["hbm_needed_bytes"], verdict["hbm_available_bytes"]
    return f"{needed / GiB:.1f} GiB of {available / GiB:.1f} GiB HBM per device"


TIMEOUT_S = 600.0
VERDICTS = "verdicts"
SKIP = "--no-compile-check"


class DoesNotFitError(JobError):
    """Raised when the step of a launch exceeds device memory, with its size and a remedy."""


def refuse_unless_it_fits(launch: LaunchSpec, console: Console) -> None:
    """Raises DoesNotFitError when the TPU compiler, or its remembered verdict, finds no fit.

    When the compiler fails, prints the reason and lets the launch continue. Without the compiler,
    or for devices other than TPUs, prints nothing.
    """
    if not isinstance(launch, TrainingLaunch) or lacks_compiler(launch.plan.world):
        return
    memory = _memory(launch)
    try:
        # The key of a verdict does not cover the code of a custom model.
        known = None if isinstance(launch.job.model, OwnModel) else _remembered(memory)
        verdict = known or _ask(launch, memory, console)
    except TrainerProcessError as error:
        console.print(Text(f"not checked whether it fits: {error}", style="yellow"), soft_wrap=True)
        return
    if not verdict["fits"]:
        raise DoesNotFitError(
            f"{refusal(verdict)}. Nothing was started. What would fit: the same words after "
            f"`launch plan --search`. To start it all the same: {SKIP}"
        )


def _ask(launch: TrainingLaunch, memory: Path | None, console: Console) -> dict[str, Any]:
    what = f"compiling the step for {launch.plan.world.accelerator}: does it fit? ({SKIP} skips it)"
    with console.status(what), compilation(launch, TIMEOUT_S) as call:
        verdict = call.answer()
    if memory:
        with suppress(OSError):  # no writable home: the compiler runs again next time
            make_state_folder(VERDICTS)
            replace_file(memory, json.dumps(verdict))
    return verdict


def _remembered(memory: Path | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    try:
        return json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _memory(launch: TrainingLaunch) -> Path | None:
    """Returns the file of the verdict on this job and plan, for this code and these versions.

    Returns None when this user has no home.
    """
    parts = (
        dump(launch.job),
        launch.plan.model_dump_json(),
        versions.code_sha256(),
        json.dumps(versions.versions()),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    with suppress(NoStateFolderError):
        return state_folder() / VERDICTS / f"{key}.json"
