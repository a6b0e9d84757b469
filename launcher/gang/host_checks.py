"""The checks of all hosts of a gang: the preflight, and the check that a program brings."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.core.results import GangResult
from launcher.gang.agent_calls import Agents, GangError, LostError
from launcher.gang.outliers import find_outliers
from launcher.gang.preflight import Seen
from trainer.contract.protocol.events import CheckedEvent, ErrorEvent, Event
from trainer.contract.protocol.process_names import process_name


class CheckError(GangError):
    """A host cannot serve the job; `outcome` has its exit code and last lines."""

    def __init__(self, outcome: GangResult, message: str | None) -> None:
        self.outcome = outcome
        process = outcome.failed_process or 0
        name = process_name(process, outcome.processes_per_host)
        text = f"{name}: {message}" if message else outcome.reason
        super().__init__(text, [process])


def run_preflight(agents: Agents, run_dir: Path, platform: str) -> dict[int, Seen]:
    """Runs the preflight checks on every host: its number -> result.

    Raises LostError when a host does not answer.
    """
    start_s = time.time()
    reports = agents.call_hosts(lambda agent: agent.run_preflight.remote(str(run_dir), platform))
    half_s = (time.time() - start_s) / 2
    (port,) = agents.answers([agents[0].listen.remote()], [0])
    first = reports[0].address
    unreachable = agents.call_hosts(lambda agent: agent.unreachable.remote(first, port))
    return {
        host: Seen(report, _ahead(report.time_s, start_s + half_s, half_s), why)
        for host, (report, why) in enumerate(zip(reports, unreachable, strict=True))
    }


class ProgramCheck:
    """Collects what the standby processes report while they check their hosts."""

    def __init__(self, agents: Agents, known: Mapping[int, CheckedEvent]) -> None:
        """Creates a check of all hosts without an event in `known`."""
        self._agents = agents
        self._reports = dict(known)
        self._errors: dict[int, str] = {}

    def on_event(self, process: int, event: Event) -> None:
        """Records the result or the error of a host's check."""
        if isinstance(event, CheckedEvent):
            self._reports[process] = event
        elif isinstance(event, ErrorEvent):
            self._errors[process] = str(event.message)

    def is_complete(self) -> bool:
        """Returns whether all hosts have reported."""
        return len(self._reports) == len(self._agents)

    def reports(self, outcome: GangResult) -> dict[int, CheckedEvent]:
        """Returns the reports of all hosts: process -> its `checked` event.

        Raises LostError when a host was lost meanwhile, CheckError when a host cannot serve the
        job, and GangError when the hosts differ.
        """
        if outcome.lost:
            raise LostError(outcome.reason)
        if not outcome.ok:
            raise CheckError(outcome, self._errors.get(outcome.failed_process or 0))
        compare(self._reports, self._agents.processes_per_host)
        return self._reports


def compare(reports: Mapping[int, CheckedEvent], processes_per_host: int) -> None:
    """Raises GangError unless all hosts have the same versions, code and data."""
    odd, suspects = find_outliers(
        {process: _compared(report) for process, report in reports.items()}, processes_per_host
    )
    if odd:
        text = "the hosts differ: " + "; ".join(odd) + ". Install the same on all of them."
        raise GangError(text, suspects)


def _compared(report: CheckedEvent) -> dict[str, object]:
    """Returns the values that must be the same on all hosts."""
    return {
        "versions": report.versions,
        "code": report.code,
        "corpus_sha256": report.corpus_sha256,
    }


def _ahead(clock_s: float, here_s: float, within_s: float) -> float:
    """Returns the least lead of a host's clock over this machine's; negative: it is behind.

    The host read its clock at `here_s` of this machine's, give or take `within_s`.
    """
    ahead_s = clock_s - here_s
    return math.copysign(max(0.0, abs(ahead_s) - within_s), ahead_s)
