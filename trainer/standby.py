"""A process that is ready before its attempt starts: it has imported everything and waits."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.contract.protocol import versions
from trainer.contract.protocol.environment import START_FD
from trainer.contract.protocol.start import Start

OPTIONS = ("--check", "--standby")
COMMAND_NAME = Path("/proc/self/comm")


def wait_for_run(fd: int) -> list[str] | None:
    """Imports the trainer and waits on the pipe `fd` for a run, in whose folder it then works.

    Returns the arguments of the run, or None when none came. If the run has other code than this
    process, the process replaces itself by one with the run's code.
    """
    imported = versions.code_sha256()
    received = _import_and_wait(fd)
    if received is None:
        return None
    assert received.arguments is not None and received.cwd is not None
    _move_to(received.cwd)
    if versions.code_sha256() != imported or _has_trainer_of_its_own(received.cwd):
        _replace(received.arguments)
    return list(received.arguments)


def wait_for_start(fd: int, code: Callable[[], str]) -> bool:
    """Imports the trainer and waits on the pipe `fd`; returns whether the start came.

    The start changes this process's environment. `code` returns the hash of the code on disk: if
    that has changed since the imports, the process replaces itself by one with the new code.
    """
    imported = code()
    received = _import_and_wait(fd)
    os.close(fd)
    if received is None:
        return False
    del os.environ[START_FD]
    if code() != imported:
        _replace([])
    return True


def import_trainer() -> None:
    """Imports what training needs, and lets Python's garbage collector never examine it.

    Otherwise each collection would examine all of it again, also during the start of a run.
    """
    gc.disable()
    try:
        import trainer.train  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def name_process(name: str) -> None:
    """Sets the name that `ps` and `pgrep` show; does nothing where that is not possible."""
    try:
        COMMAND_NAME.write_text(name)
    except OSError:
        pass


def _import_and_wait(fd: int) -> Start | None:
    """Returns the next line, whose changes it makes in the environment; None when none comes.

    While it waits, the kernel knows the process as "standby"; see `name_process`.
    """
    import_trainer()
    name_process("standby")
    # Without a buffer, what follows the line stays in the pipe for the next wait.
    with open(fd, "rb", buffering=0, closefd=False) as pipe:
        line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    received = Start.decode(line)
    received.apply(os.environ)
    return received


def _move_to(folder: str) -> None:
    """Works in a folder as if `python -m trainer` had started there."""
    before = str(Path.cwd())
    os.chdir(folder)
    sys.path[:] = [str(Path.cwd()) if entry == before else entry for entry in sys.path]


def _has_trainer_of_its_own(folder: str) -> bool:
    """Returns whether `python -m trainer` in a folder would run another package than this one."""
    other = Path(folder, "trainer", "__init__.py")
    return other.exists() and not other.samefile(Path(__file__).with_name("__init__.py"))


def _replace(arguments: Sequence[str]) -> None:
    """Replaces this process by one with the arguments, or with its own without `OPTIONS`."""
    own = [word for word in sys.orig_argv[1:] if word not in OPTIONS]
    os.execv(sys.executable, [sys.executable, *own, *arguments])
