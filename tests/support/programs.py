"""The processes of a run that can be hit: each host's trainer, agent and Ray node."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until


def trainer_of(traces: Traces, process: int) -> int:
    """The process id of a host's trainer."""

    return _named(traces, "trainer", process)


def standby_of(traces: Traces, process: int, **variables: str) -> int:
    """The process id of the process that waits for a host's next attempt.

    `variables`: the values of other variables in its environment; "" for none.
    """
    return _named(traces, "standby", process, variables)


def standbys(traces: Traces) -> list[int]:
    """All processes that wait for the next attempt, or for their start."""
    return [process for process in traces.processes() if _has_name(process, "standby")]


def is_training(process: int) -> bool:
    """Whether it is a trainer that has been started; False for one that has ended."""
    return _has_name(process, "trainer")


def node_of(traces: Traces, process: int) -> int:
    """The raylet of a host."""

    def is_it(_: int, command: str) -> bool:
        is_raylet = command.split(" ", 1)[0].endswith("raylet/raylet")
        return is_raylet and f"host-{process:04d}" in command

    return _newest(traces, is_it)


def agent_of(traces: Traces, process: int) -> int:
    """The actor that runs on a host."""
    return agents_of(traces, process)[-1]


def agents_of(traces: Traces, host: int) -> list[int]:
    """The actors that run on a host, one for each of its processes, the newest last."""
    node = node_of(traces, host)

    def is_it(number: int, command: str) -> bool:
        return command.startswith("ray::Agent") and psutil.Process(number).ppid() == node

    return _by_age(traces, is_it)


def slots(agent: int, kind: str) -> list[Path]:
    """The memory that an agent holds, as files."""
    found: dict[int, Path] = {}
    for path in Path(f"/proc/{agent}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was just closed
            if str(path.readlink()).startswith(f"/memfd:slipway-{kind}"):
                found[path.stat().st_ino] = path  # a mapping has a descriptor of its own
    return list(found.values())


def reaper_of_nodes(traces: Traces) -> int:
    """The reaper whose children are the Ray nodes: the first that the launch started."""
    starter = next(n for n, command in traces.processes().items() if "node_starter" in command)
    return psutil.Process(starter).ppid()


def _named(
    traces: Traces, name: str, process: int, variables: Mapping[str, str] | None = None
) -> int:
    wanted = {"SLIPWAY_PROCESS_ID": str(process), **(variables or {})}

    def is_it(number: int, _: str) -> bool:
        found = _environment_of(number)
        is_of_host = all(found.get(name, "") == value for name, value in wanted.items())
        return is_of_host and _has_name(number, name)

    return _newest(traces, is_it)


def _has_name(process: int, name: str) -> bool:
    try:
        return Path(f"/proc/{process}/comm").read_text() == f"{name}\n"
    except OSError:
        return False


def _environment_of(process: int) -> dict[str, str]:
    entries = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _newest(traces: Traces, is_it: Callable[[int, str], bool]) -> int:
    """As soon as there is one; what an attempt before has left may still be ending."""
    return _by_age(traces, is_it)[-1]


def _by_age(traces: Traces, is_it: Callable[[int, str], bool]) -> list[int]:
    found: list[tuple[float, int]] = []

    def look() -> bool:
        for number, command in traces.processes().items():
            try:
                if is_it(number, command):
                    found.append((psutil.Process(number).create_time(), number))
            except (OSError, psutil.NoSuchProcess):
                continue  # it has just ended
        return bool(found)

    wait_until(look)
    return [number for _, number in sorted(found)]
