"""Compiles all programs of a launch for each of its processes, before there are any hosts."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.core.errors import UsageError
from launcher.planning.compiler import at_once, of_training
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import POLL_INTERVAL_S, TrainerProcess, TrainerProcessError
from trainer.contract.planning.plan import World
from trainer.contract.protocol.reports import KeptPrograms
from trainer.contract.storage.kept_programs import file_name, store_of

TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class KeptStore:
    """Programs that were compiled for the processes of a run."""

    folder: str
    """Folder with a file for each process; a run of this name brings them to its hosts."""
    hosts: Sequence[int]
    """Numbers of hosts on which the run finds programs, ascending."""
    files: int
    programs: int
    bytes: int
    """Size of all files."""
    compilations: int
    """Number of programs that were compiled now: the others were known here."""
    compile_s: float
    """Seconds that it took."""


def keep(launch: LaunchSpec) -> KeptStore:
    """Compiles for every process of the launch and of the smaller worlds that it may shrink to.

    Replaces what was kept for runs of this name. Raises TrainerProcessError when a process cannot
    compile, UsageError when the devices have no such programs, or the folder cannot be written.
    """
    training = of_training(launch)
    if lack := _lacks_programs(training.plan.world):
        raise UsageError(f"--keep: {lack}")
    worlds = [*(of_training(one) for one in launch.fallback_specs()), training]
    began = time.monotonic()
    folder = store_of(launch.run_dir)
    with _replacing(folder) as making:
        kept = _compile(worlds, making)
    return KeptStore(
        folder=str(folder),
        hosts=[one.plan.world.hosts for one in worlds],
        files=len(kept),
        programs=sum(one.programs for one in kept),
        bytes=sum(one.bytes for one in kept),
        compilations=sum(one.compilations for one in kept),
        compile_s=time.monotonic() - began,
    )


def _lacks_programs(world: World) -> str:
    """Returns why no programs can be kept for a world, or "" when they can."""
    if world.on_cpu:
        return ""
    if world.platform == "tpu":
        return (
            f"{world.accelerator}: libtpu compiles for a description of TPUs, but loads a program "
            "only where the TPUs are. Leave out --keep, or add --simulate"
        )
    return f"{world.accelerator}: only CPU devices can be compiled for without the hardware"


def _compile(worlds: Sequence[TrainingLaunch], folder: Path) -> list[KeptPrograms]:
    """Writes a file for each process of the worlds, several at once.

    All compilers have ended afterwards, also after an error.
    """
    waiting = [(one, process) for one in worlds for process in range(one.plan.world.processes)]
    kept: list[KeptPrograms] = []
    running: dict[TrainerProcess, str] = {}
    slots = at_once()
    with ExitStack() as calls:
        while waiting or running:
            while waiting and len(running) < slots:
                launch, process = waiting.pop()
                call = calls.enter_context(_compiler(launch, process, folder))
                running[call] = f"process {process} of {launch.plan.world.processes}"
            time.sleep(POLL_INTERVAL_S)
            for call in [one for one in running if one.is_over]:
                kept.append(_answer(call, running.pop(call)))
    return kept


def _compiler(launch: TrainingLaunch, process: int, folder: Path) -> TrainerProcess:
    """Starts the compiler for one process, with the environment that the process will have."""
    path = folder / file_name(launch.plan.world.processes, process)
    return TrainerProcess(
        "trainer.ahead.keep", launch.job, launch.plan, TIMEOUT_S,
        arguments=[str(process), str(path)], environment=launch.environment(process),
    )  # fmt: skip


def _answer(call: TrainerProcess, what: str) -> KeptPrograms:
    try:
        return call.answer(KeptPrograms)
    except TrainerProcessError as error:
        raise TrainerProcessError(f"{what}: {error}") from None


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Yields a folder that takes the place of `folder` at the end, and is removed after an error.

    Raises UsageError when it cannot be created or renamed.
    """
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        making.mkdir(parents=True)
        yield making
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    except OSError as error:
        raise UsageError(
            f"--keep: {folder} cannot be written: {error.strerror}. Say --runs DIR for another "
            "place"
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
