"""Before a run on real TPUs: whether its step fits, as their compiler says, once for each plan."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher.commands.verdict import refusal
from launcher.compilation import compilation
from launcher.files import NoStateFolderError, make_state_folder, replace_file, state_folder
from launcher.launch import Launch
from launcher.plan import TrainingLaunch
from launcher.trainer_call import NoAnswerError
from trainer import versions
from trainer.spec.compiler import lacks_compiler
from trainer.spec.config import dump
from trainer.spec.model import OwnModel

TIMEOUT_S = 600.0
VERDICTS = "verdicts"
SKIP = "--no-compile-check"


class DoesNotFitError(Exception):
    """The step of a launch needs more memory than its devices have; says how much, and the way."""


def refuse_unless_it_fits(launch: Launch, console: Console) -> None:
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
    except NoAnswerError as error:
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
