"""Checks before a run on real TPUs whether its step fits, with the TPU compiler.

The compiler runs in its own process, once for each plan.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from launcher.core.errors import JobError, docs_link
from launcher.core.files import NoStateFolderError, make_state_folder, replace_file, state_folder
from launcher.planning.compiler import compilation, preliminary
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcessError
from trainer.contract.config.loader import dump
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.planning.chips import GiB
from trainer.contract.protocol import versions
from trainer.contract.protocol.reports import CompileReport

TIMEOUT_S = 600.0
VERDICTS = "verdicts"
SKIP = "--no-compile-check"
CODE_BYTES = GiB
"""More than the code of any step: that of llama3-8b on v6e-256 has 0.03 GiB."""


class DoesNotFitError(JobError):
    """Raised when the step of a launch exceeds device memory, with its size and a remedy."""


def require_fit(launch: LaunchSpec) -> None:
    """Raises DoesNotFitError when the step does not fit.

    The TPU compiler decides that, or its cached verdict. When the compiler fails, prints the reason
    and lets the launch continue. Without the compiler, or for devices other than TPUs, prints
    nothing.
    """
    console = Console(stderr=True)
    if not isinstance(launch, TrainingLaunch) or lacks_compiler(launch.plan.world):
        return
    memory = _memory(launch)
    try:
        # The key of a verdict does not cover the code of a custom model.
        known = None if isinstance(launch.job.model, CustomModel) else _remembered(memory)
        verdict = known or _compile(launch, memory, console)
    except TrainerProcessError as error:
        console.print(Text(f"not checked whether it fits: {error}", style="yellow"), soft_wrap=True)
        return
    if not verdict.fits:
        raise DoesNotFitError(
            f"{describe_misfit(verdict)}. Nothing was started",
            hint="`launch plan --search` with the same arguments lists what would fit. "
            f"{SKIP} starts the job without this check. {docs_link('does-not-fit')}",
        )


def _compile(launch: TrainingLaunch, memory: Path | None, console: Console) -> CompileReport:
    what = f"compiling the step for {launch.plan.world.accelerator}: does it fit? ({SKIP} skips it)"
    with console.status(what), compilation(launch, TIMEOUT_S) as call:
        verdict = _certain(preliminary(call)) or call.answer(CompileReport)
    if memory:
        with suppress(OSError):  # no writable home: the compiler runs again next time
            make_state_folder(VERDICTS)
            replace_file(memory, json.dumps(asdict(verdict)))
    return verdict


def _certain(early: CompileReport | None) -> CompileReport | None:
    """Returns a preliminary report if the step fits whatever the size of its code.

    An evaluation, which is compiled after the step, needs less: it is the forward pass of the same
    micro-batches, and keeps nothing for a backward pass.
    """
    if early is None or early.hbm_needed_bytes is None:
        return None
    fits = early.hbm_needed_bytes + CODE_BYTES <= early.hbm_available_bytes
    return early if fits else None


def _remembered(memory: Path | None) -> CompileReport | None:
    if memory is None:
        return None
    try:
        return TypeAdapter(CompileReport).validate_json(memory.read_bytes())
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


def describe_misfit(verdict: CompileReport) -> str:
    """Describes in one line a step that does not fit."""
    if verdict.hbm_needed_bytes is None:
        return "does not fit"
    return f"does not fit: needs {memory_share(verdict)}"


def memory_share(verdict: CompileReport) -> str:
    """Returns the memory that a step needs, of the memory of a device."""
    needed, available = verdict.hbm_needed_bytes or 0, verdict.hbm_available_bytes
    return f"{needed / GiB:.1f} GiB of {available / GiB:.1f} GiB HBM per device"
