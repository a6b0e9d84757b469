"""`launch plan --compile`, and the same check before a run on real TPUs: does the step fit?

The TPU compiler answers in a process of its own, once for each plan.
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
from trainer.contract import versions
from trainer.contract.config.loader import dump
from trainer.contract.config.model import Model, OwnModel
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.planning.chips import GiB


def tell(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> int:
    """The plan with the compiler's verdict; returns the exit code of `launch`."""
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
    """The fields of trainer.analysis.compile_report.CompileReport. Raises TrainerProcessError."""
    with compilation(launch) as call:
        return call.answer()


def _estimate(launch: TrainingLaunch) -> dict[str, int] | None:
    """Bytes by part, which the compiler does not tell; None: of a model of the user's own."""
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
    """Of a step that does not fit, in one line."""
    if verdict["hbm_needed_bytes"] is None:
        return "does not fit"
    return f"does not fit: needs {_of(verdict)}"


def _of(verdict: dict[str, Any]) -> str:
    needed, available = verdict["hbm_needed_bytes"], verdict["hbm_available_bytes"]
    return f"{needed / GiB:.1f} GiB of {available / GiB:.1f} GiB HBM per device"


TIMEOUT_S = 600.0
VERDICTS = "verdicts"
SKIP = "--no-compile-check"


class DoesNotFitError(Exception):
    """The step of a launch needs more memory than its devices have; says how much, and the way."""


def refuse_unless_it_fits(launch: LaunchSpec, console: Console) -> None:
    """Ask the TPU compiler, or what it said of the same plan before. Raises DoesNotFitError.

    Where it does not answer the launch goes on, and the reason is told; without the compiler, or
    for other devices than TPUs, nothing is.
    """
    if not isinstance(launch, TrainingLaunch) or lacks_compiler(launch.plan.world):
        return
    memory = _memory(launch)
    try:
        # The code of a model of the user's own is in no key.
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
        with suppress(OSError):  # no home to write to: it is asked again the next time
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
    """The file of what was said of this job and plan, of this code and these versions.

    None: this user has no home.
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
