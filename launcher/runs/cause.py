"""Why a run did not finish: the reason, the errors of the programs, and their last output."""

from contextlib import closing
from dataclasses import dataclass

from launcher.core.printable import plain
from launcher.core.states import RunState
from launcher.runs.host_logs import HostLogs
from launcher.runs.run_record import RunRecord
from launcher.runs.status import describe

STATES = (RunState.FAILED, RunState.CANCELLED, RunState.LOST)
"""States of a run whose report begins with the cause."""
MOST_HOSTS = 8
"""Maximum number of hosts whose output is shown, and of different errors."""
LAST_LINES = 200


@dataclass(frozen=True)
class LastOutput:
    """The end of a log, with the stacks that were taken of a hanging program."""

    host: int
    """Number of the host; of the process where hosts have several."""
    text: str


@dataclass(frozen=True)
class Cause:
    """The cause of a run's end."""

    text: str
    errors: list[str]
    """Errors that the programs reported, with their tracebacks."""
    outputs: list[LastOutput]
    """The host on which the end began is the first."""


def cause(record: RunRecord, characters: int) -> Cause | None:
    """Returns why a run failed or was lost; None for any other run.

    Each text is cut to its last `characters`.
    """
    if record.status.state not in STATES:
        return None
    errors = {plain(error.message or "")[-characters:]: None for error in record.errors}
    shown = [*filter(None, errors)][:MOST_HOSTS]
    return Cause(describe(record.status), shown, _outputs(record, characters))


def _outputs(record: RunRecord, characters: int) -> list[LastOutput]:
    began = record.ends[-1].process if record.ends else None
    hosts = HostLogs(record.folder, LAST_LINES).hosts
    in_order = sorted(hosts, key=lambda host: (host != began, host))
    return [LastOutput(host, _tail(record, host)[-characters:]) for host in in_order[:MOST_HOSTS]]


def _tail(record: RunRecord, host: int) -> str:
    lines: list[str] = []
    with closing(HostLogs(record.folder, LAST_LINES, host)) as logs:
        logs.read(lambda _, line: lines.append(plain(line)))
        logs.finish(lambda _, line: lines.append(plain(line)))
    return "\n".join(lines)
