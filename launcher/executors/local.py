"""`--detach`: the run continues in a separate process, which no terminal can end.

The command forks after all checks, once the run's folder is created and locked. The fork inherits
the lock, so that a process holds the run at every moment.
"""

import os
from pathlib import Path

from rich.console import Console

from launcher.core import output
from launcher.core.exit_codes import JOB_FAILED
from launcher.runs.directory import RunDir, RunFolderError, run_word

HELD = "held"


def detach(run: RunDir, console: Console) -> bool:
    """Returns True in the process that continues the run, False in the command's own process.

    The command's process prints how to find the run again. It raises RunFolderError when the other
    process could not start.
    """
    output.settle()
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        if answer != HELD:
            raise RunFolderError(f"{run.folder}: the run could not be detached: {answer}")
        _tell(run.folder, console)
        return False
    os.close(reading)
    try:
        _leave_terminal(run.folder / "logs" / "launch.log")
        output.reopen()
        run.hold()
        answer = HELD
    except OSError as error:
        answer = str(error)
    os.write(writing, answer.encode())
    os.close(writing)
    if answer != HELD:
        os._exit(JOB_FAILED)  # the command's own process reports the reason
    return True


def _tell(folder: Path, console: Console) -> None:
    word = run_word(folder)
    console.print(
        f"{folder.name} runs on its own. What it prints: {folder}/logs/launch.log",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for what, command in (
        ("follow it", f"launch attach {word}"),
        ("follow what its hosts print", f"launch logs {word} -f"),
        ("see how it stands", f"launch status {word}"),
        ("stop it, with a checkpoint", f"launch stop {word}"),
    ):
        console.print(f"  {what:30}{command}", highlight=False, markup=False, soft_wrap=True)


def _leave_terminal(log: Path) -> None:
    """Starts a new session, closes inherited descriptors, and redirects output to a file."""
    os.setsid()
    _close_inherited()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, number in ((nothing, 0), (log_file, 1), (log_file, 2)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(log_file)


def _close_inherited() -> None:
    """Closes descriptors that the caller's shell passed on; Python's own are not inheritable.

    Otherwise a pipe or a lock of the caller would stay open as long as the run.
    """
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        try:
            if number > 2 and os.get_inheritable(number):
                os.close(number)
        except OSError:
            continue  # the descriptor of the listing itself
