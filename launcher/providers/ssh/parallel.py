"""The same on all hosts at once; what fails is told of all of them together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from launcher.core.errors import ProviderError
from launcher.core.formatting import pluralize
from launcher.providers.ssh.connection import Connection, Host, HostError

T = TypeVar("T")
AT_ONCE = 64


def everywhere(hosts: Sequence[Host], what: Callable[[int], T]) -> list[T]:
    """`what(number)` for every host, in parallel; the results in the order of hosts.

    Each call has a deadline of its own. Raises ProviderError with every host where it failed.
    """
    with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
        calls = [pool.submit(what, number) for number in range(len(hosts))]
        try:
            failures = [call.exception() for call in calls]
        except BaseException:  # Ctrl-C: nobody waits for the other calls any more
            pool.shutdown(wait=False, cancel_futures=True)
            Connection.end_all()
            raise
    problems = []
    for host, failure in zip(hosts, failures, strict=True):
        if isinstance(failure, HostError):
            problems.append(f"  {host.name}: {failure}")
        elif failure is not None:
            raise failure
    if problems:
        how_many = f"{len(problems)} of {pluralize(len(hosts), 'host')} cannot be used"
        raise ProviderError("\n".join([f"{how_many}:", *problems]))
    return [call.result() for call in calls]
