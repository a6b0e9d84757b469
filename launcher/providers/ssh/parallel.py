"""Runs a call on all hosts in parallel and reports all failures together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from launcher.core.errors import HostError
from launcher.core.formatting import pluralize
from launcher.providers.ssh.connection import Connection, Host, SshError

T = TypeVar("T")
MAX_PARALLEL = 64


def everywhere(hosts: Sequence[Host], what: Callable[[int], T]) -> list[T]:
    """Calls `what(number)` for every host in parallel; returns the results in the order of hosts.

    Each call has its own deadline. Raises HostError with every host that cannot be used.
    """
    with ThreadPoolExecutor(min(MAX_PARALLEL, len(hosts))) as pool:
        calls = [pool.submit(what, number) for number in range(len(hosts))]
        try:
            failures = [call.exception() for call in calls]
        except BaseException:  # Ctrl-C: no caller waits for the other calls
            pool.shutdown(wait=False, cancel_futures=True)
            Connection.end_all()
            raise
    problems = []
    for host, failure in zip(hosts, failures, strict=True):
        if isinstance(failure, SshError):
            problems.append(f"  {host.name}: {failure}")
        elif failure is not None:
            raise failure
    if problems:
        how_many = f"{len(problems)} of {pluralize(len(hosts), 'host')} cannot be used"
        raise HostError("\n".join([f"{how_many}:", *problems]))
    return [call.result() for call in calls]
