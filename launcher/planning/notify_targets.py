"""The targets of a job's notifications, and what can be known about them before a run."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from launcher.planning.user_config import load_user_config
from trainer.contract.config.job import BaseJob
from trainer.contract.config.notify import AnyTarget, CommandTarget, UrlTarget, is_http_url

AnyJob = TypeVar("AnyJob", bound=BaseJob)
RESOLVE_TIMEOUT_S = 2.0
"""Seconds for all names of servers together to be resolved."""


def targets_of(job: BaseJob) -> tuple[AnyTarget, ...]:
    """Returns the job's targets, each once; without that key, those of the user's configuration.

    Raises ConfigError when the configuration file has problems.
    """
    targets = load_user_config().notify if job.notify is None else job.notify
    return tuple(dict.fromkeys(targets))


def with_targets(job: AnyJob) -> AnyJob:
    """Returns a job that has the same targets for every user and on every machine."""
    return job.model_copy(update={"notify": targets_of(job)})


def warnings(job: BaseJob) -> list[str]:
    """Returns a sentence for each target that a notification would not reach from here."""
    targets = targets_of(job)
    unresolved = _unresolved(frozenset(target.server for target in targets if target.server))
    return [f"notify: {problem}" for each in targets for problem in _problems(each, unresolved)]


def _problems(target: AnyTarget, unresolved: frozenset[str]) -> Iterator[str]:
    if target.server in unresolved:
        yield f"{target.label}: the name {target.server} cannot be resolved from this machine"
    if isinstance(target, CommandTarget) and shutil.which(target.command[0]) is None:
        yield f"{target.label}: there is no such program on this machine"
    if isinstance(target, UrlTarget) and target.url_secret:
        url = os.environ.get(target.url_secret)
        if url is not None and not is_http_url(url):
            yield f"{target.label} is not a URL (https://...)"


@cache
def _unresolved(names: frozenset[str]) -> frozenset[str]:
    """Returns the names that are not resolved in time; the resolver itself has no deadline."""
    resolved: set[str] = set()

    def resolve(name: str) -> None:
        try:
            socket.getaddrinfo(name, None)
        except (OSError, UnicodeError):
            return
        resolved.add(name)

    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RESOLVE_TIMEOUT_S / len(threads))
    return names - resolved
