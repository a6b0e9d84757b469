"""Reapers in tests: their answers, processes and open files."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from launcher.host.process_tree import ProcessTree
from launcher.host.reaper_messages import Answer
from tests.support.processes import wait_until

TIMEOUT_S = 30.0
WAIT = "until [ -e {} ]; do sleep 0.02; done"
"""A shell waits for a file."""


@contextmanager
def closed(reaped: ProcessTree) -> Iterator[ProcessTree]:
    """A reaper that does not outlive its test."""
    try:
        yield reaped
    finally:
        assert reaped.close()


def wait_for_answers(reaped: ProcessTree, count: int) -> list[Answer]:
    answers: list[Answer] = []
    wait_until(
        lambda: answers.extend(reaped.answers(1.0) or []) or len(answers) >= count, TIMEOUT_S
    )
    return answers


def answers_to_the_end(reaped: ProcessTree) -> list[Answer]:
    """What a reaper says until it ends by itself."""
    answers: list[Answer] = []

    def has_ended() -> bool:
        more = reaped.answers(1.0)
        answers.extend(more or [])
        return more is None

    wait_until(has_ended, TIMEOUT_S)
    return answers


def reaper_of(reaped: ProcessTree) -> psutil.Process:
    """The child of the guard."""
    (process,) = psutil.Process(reaped.pid).children()
    return process


def relays_of(reaped: ProcessTree) -> list[psutil.Process]:
    """The processes that write the logs of a reaper's commands."""
    return list(filter(is_relay, psutil.Process(reaped.pid).children(recursive=True)))


def is_relay(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("log_writer.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def open_files(pid: int) -> list[str]:
    """What a process holds, without what it closes meanwhile."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(str(entry.readlink()))
    return names
