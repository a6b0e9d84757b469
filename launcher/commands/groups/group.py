"""A group of runs: one command at a time runs it, and stops all of its runs after a signal."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from launcher.commands.groups.member import Member
from launcher.core.errors import UsageError
from launcher.core.files import lock

M = TypeVar("M", bound=Member)


@contextmanager
def only_command(runs: Path, name: str, kind: str) -> Iterator[None]:
    """Keeps another command from running the same group. Raises UsageError when one does.

    `kind`: what the group is, such as `sweep`.
    """
    path = runs / f".{name}.{kind}"
    runs.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not lock(file):
            raise UsageError(f"{name}: another command runs this {kind} now ({path})")
        yield


def stop_running(members: Sequence[M]) -> list[M]:
    """Stops the running ones with a checkpoint, all at the same time, and returns them."""
    for member in members:
        member.read()
    running = [member for member in members if member.is_running]
    with ThreadPoolExecutor(max_workers=max(1, len(running))) as stopping:
        list(stopping.map(Member.stop, running))
    return running
