"""Calls to the agents of a gang, and the errors for agents that do not answer. Imports Ray late."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self

from launcher.core.errors import JobError
from launcher.gang.agent_ends import explain
from launcher.gang.monitor import ENDING_TIMEOUT_S
from trainer.contract.protocol.process_names import process_name

ANSWER_TIMEOUT_S = 60.0
"""Seconds for a call that an agent answers immediately: find a port, start a process."""
STACKS_TIMEOUT_S, STACKS_DELAY_S = 10.0, 0.5
"""Seconds for a host to dump the stacks of its program, and for the dump to arrive here."""


class GangError(JobError):
    """The hosts cannot run the program together; the message names the host and the reason."""

    def __init__(self, message: str, suspects: Collection[int] = ()) -> None:
        """Creates the error. `suspects`: the processes whose hosts are the reason."""
        super().__init__(message)
        self.suspects = suspects


class LostError(GangError):
    """A host no longer answers."""


class AgentError(GangError):
    """The agent of a host failed, not the host itself."""


class Agents(tuple[Any, ...]):
    """The agents of a gang, in the order of processes."""

    processes_per_host: int

    def __new__(cls, agents: Iterable[Any], processes_per_host: int = 1) -> Self:
        made = super().__new__(cls, agents)
        made.processes_per_host = processes_per_host
        return made

    def name_of(self, process: int) -> str:
        """Returns the name of a process for messages."""
        return process_name(process, self.processes_per_host)

    def call(self, call: Callable[[Any], Any]) -> list[Any]:
        """Calls all agents; returns their answers in the order of processes.

        Raises LostError when an agent does not answer.
        """
        return self.answers([call(agent) for agent in self], range(len(self)))

    def call_hosts(self, call: Callable[[Any], Any]) -> list[Any]:
        """Calls the first agent of each host; returns their answers in the order of hosts.

        Raises LostError when an agent does not answer.
        """
        first_of_hosts = range(0, len(self), self.processes_per_host)
        return self.answers([call(self[process]) for process in first_of_hosts], first_of_hosts)

    def answers(self, calls: Sequence[Any], processes: Sequence[int]) -> list[Any]:
        """Returns the answers of the agents of `processes`.

        Raises LostError when a host does not answer in time, AgentError when only its agent failed.
        """
        import ray

        _, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
        if late:
            names = {self.name_of(processes[calls.index(call)]) for call in late}
            raise LostError(
                f"no answer from {', '.join(sorted(names))} within {ANSWER_TIMEOUT_S:.0f} s"
            )
        return [self._answer(call, process) for call, process in zip(calls, processes, strict=True)]

    def _answer(self, call: Any, process: int) -> Any:
        import ray
        from ray.exceptions import RayError

        try:
            return ray.get(call)
        except RayError as error:
            end = explain(error, time.monotonic())
            kind = AgentError if end.host_lives else LostError
            raise kind(f"{self.name_of(process)}: {end.why}", [process]) from error


def end_agents(agents: Sequence[Any]) -> None:
    """Ends agents with all that runs on their hosts; waits for it up to ENDING_TIMEOUT_S."""
    import ray

    calls = [agent.stop.remote() for agent in agents]
    ray.wait(calls, num_returns=len(calls), timeout=ENDING_TIMEOUT_S)
    for agent in agents:
        ray.kill(agent)


def collect_stacks(agents: Sequence[Any]) -> dict[int, str]:
    """Returns the stacks of every program, by process, without those that do not come in time."""
    import ray

    calls = [agent.stacks.remote(STACKS_TIMEOUT_S) for agent in agents]
    ray.wait(calls, num_returns=len(calls), timeout=STACKS_TIMEOUT_S + STACKS_DELAY_S)
    answers = {process: _stacks(call) for process, call in enumerate(calls)}
    return {process: text for process, text in answers.items() if text}


def _stacks(call: Any) -> str:
    """Returns the stacks that a host has sent by now, or "" when it has not."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(call, timeout=0)
    except RayError:
        return ""
