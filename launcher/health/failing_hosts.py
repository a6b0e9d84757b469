"""Decides which hosts the next attempt should avoid. Pure."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from trainer.contract.protocol.process_names import process_name

FAILURES = 2
"""Attempts that end on a host before it is avoided: one may be bad luck."""


class FailingHosts:
    """The failures of a run's hosts, by what identifies a host from one attempt to the next."""

    def __init__(self, processes_per_host: int = 1) -> None:
        self._processes_per_host = processes_per_host
        self._failures: Counter[Hashable] = Counter()

    def record(
        self, hosts: Mapping[int, Hashable], failed: int | None, slow: Collection[int]
    ) -> dict[int, str]:
        """Records the end of an attempt; returns the processes to avoid, and why.

        `hosts`: the host of each process. `failed`: the process whose failure ended the attempt, if
        any. `slow`: the processes that were stragglers when it ended.
        """
        avoided = {process: f"{self._name(process)} was slow to the end" for process in slow}
        if failed is not None:
            self._failures[hosts[failed]] += 1
            if (count := self._failures[hosts[failed]]) >= FAILURES:
                avoided[failed] = f"{count} attempts ended on {self._name(failed)}"
        return avoided

    def _name(self, process: int) -> str:
        return process_name(process, self._processes_per_host)
