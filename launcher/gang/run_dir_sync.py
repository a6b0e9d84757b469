"""Copies of the run's folder on hosts that do not share it.

The files that programs read are sent to the hosts before the start. The files that programs write
are fetched as they grow.
"""

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.core.errors import HostError
from launcher.providers.ray.client import bounded, first_line
from trainer.contract.protocol.process_names import file_stem
from trainer.contract.records import replay_file
from trainer.contract.storage import kept_programs

READ = ("job.yaml", "run_id", "plans/*.json")
BY_THE_FIRST = ["metrics.jsonl", "samples.jsonl", replay_file.FILE]
MADE_BY_THE_FIRST = ["sample.txt"]
"""Files that process 0 appends to, and files that it creates."""
FETCH_S = 1.0
LAST_TIMEOUT_S = 30.0
"""Seconds to fetch what is still on the hosts when all programs have ended."""


def log_of(process: int, processes_per_host: int) -> str:
    """Returns the path of a process's log in the run's folder."""
    return f"logs/{file_stem(process, processes_per_host)}.log"


def not_sharing(agents: Mapping[int, Any], run_dir: Path) -> list[int]:
    """Returns the processes of these agents whose hosts do not see the run's folder.

    Looks for a new file: copies of earlier attempts have all other files. Raises HostError when
    an agent does not answer.
    """
    import ray
    from ray.exceptions import RayError

    seen_by = run_dir / f".seen-by-hosts-{secrets.token_hex(8)}"
    seen_by.touch()
    try:
        calls = [agent.file_exists.remote(str(seen_by)) for agent in agents.values()]
        sees = bounded(
            "looking for the run's folder on the hosts", LAST_TIMEOUT_S, lambda: ray.get(calls)
        )
    except RayError as error:
        raise HostError(f"an agent ended right after its start: {first_line(error)}") from error
    finally:
        seen_by.unlink()
    return [process for process, is_there in zip(agents, sees, strict=True) if not is_there]


class Copies:
    """Copies on the hosts of the processes `apart`; does nothing when all share the folder."""

    def __init__(
        self,
        agents: Sequence[Any],
        apart: Collection[int],
        run_dir: Path,
        processes_per_host: int = 1,
    ) -> None:
        self._agents, self._apart, self._run_dir = list(agents), sorted(apart), run_dir
        self._processes_per_host = processes_per_host
        self._asked: dict[Any, int] = {}
        """Pending calls and their processes."""
        self._ask_at: dict[int, float] = {}
        self._made: set[str] = set()
        """Files of which a part has arrived."""

    def send(self) -> list[tuple[int, Any]]:
        """Prepares the hosts' folders for a start. Returns each process and a call to wait for."""
        self._asked, self._ask_at, self._made = {}, dict.fromkeys(self._apart, 0.0), set()
        if not self._apart:
            return []
        return [(process, self._send_to(process)) for process in self._apart]

    def add(self, agent: Any) -> Any:
        """Copies the folder to one more host, as that of a spare; returns the call."""
        self._agents.append(agent)
        self._apart.append(len(self._agents) - 1)
        return self._send_to(self._apart[-1])

    def fetch(self) -> None:
        """Writes what has arrived and requests more, without waiting."""
        import ray

        if self._asked:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for call in ready:
                self._take(self._asked.pop(call), call)
        now = time.monotonic()
        for process in [p for p, at in self._ask_at.items() if now >= at]:
            del self._ask_at[process]
            self._asked[self._agents[process].written.remote()] = process

    def finish(self, lost: Collection[int]) -> None:
        """Fetches all that is left on hosts that answer, within LAST_TIMEOUT_S."""
        import ray

        deadline = time.monotonic() + LAST_TIMEOUT_S
        rest = {process for process in self._apart if process not in lost}
        for call, process in self._asked.items():
            if process in rest and ray.wait([call], timeout=_left(deadline))[0]:
                self._take(process, call)
        while rest and time.monotonic() < deadline:
            calls = {self._agents[process].written.remote(): process for process in rest}
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_left(deadline))
            rest = {calls[call] for call in ready if self._take(calls[call], call)}
        self._asked, self._ask_at = {}, {}

    def _send_to(self, process: int) -> Any:
        first = process - process % self._processes_per_host
        local = range(first, first + self._processes_per_host)
        patterns = (*READ, *(kept_programs.PATTERN.format(process=one) for one in local))
        paths = [path for pattern in patterns for path in self._run_dir.glob(pattern)]
        files = {str(path.relative_to(self._run_dir)): path.read_bytes() for path in paths}
        folder = str(self._run_dir)
        return self._agents[process].receive.remote(folder, files, *self._written_by(process))

    def _take(self, process: int, call: Any) -> bool:
        """Writes a call's result. Returns whether it had data; a lost host gets no more calls."""
        import ray
        from ray.exceptions import RayError

        try:
            written: Mapping[str, bytes] = ray.get(call)
        except RayError:
            return False
        for name in written.keys() & {n for names in self._written_by(process) for n in names}:
            is_new = name in MADE_BY_THE_FIRST and name not in self._made
            self._made.add(name)
            with (self._run_dir / name).open("wb" if is_new else "ab") as file:
                file.write(written[name])
        self._ask_at[process] = time.monotonic() + (0.0 if written else FETCH_S)
        return bool(written)

    def _written_by(self, process: int) -> tuple[list[str], list[str]]:
        """Returns the files that a process appends to, and the files that it creates."""
        log = [log_of(process, self._processes_per_host)]
        return ([*log, *BY_THE_FIRST], MADE_BY_THE_FIRST) if process == 0 else (log, [])


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
