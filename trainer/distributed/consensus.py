"""One verdict for all processes: each reports success or an error, and process 0 combines them.

Agreement goes through the coordinator's key-value store, from any thread and without a collective.
A failed process can thus report its error, and a missing process is named. Every wait has a
deadline. Every name is used once in an attempt.
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import jax

from trainer.contract.protocol.environment import PROCESSES_PER_HOST
from trainer.contract.protocol.process_names import process_name
from trainer.distributed.private import distributed as jax_distributed

SLACK_S = 10.0
"""Extra seconds that other processes wait: process 0 must send them the verdict after a timeout."""
ACKNOWLEDGE_S = 10.0
"""Limit on process 0's wait until the other processes have read a failure: it holds the store."""


class AgreementError(Exception):
    """A process has an error or does not respond; the message is the same on every process."""


def agree(
    name: str,
    error: Exception | None = None,
    kinds: Sequence[type[Exception]] = (),
    deadline_s: float = 300.0,
) -> None:
    """Returns once every process has called it without an error.

    Raises AgreementError on all processes, with the hosts that have an error or did not respond in
    time. When the first error is one of `kinds`, raises that kind instead.
    """
    client = jax_distributed.global_state.client
    if client is None:
        if error:
            raise error
        return
    verdict = _verdict(client, f"slipway/{name}", _encoded(error), deadline_s)
    if verdict:
        known = {kind.__name__: kind for kind in kinds}
        raise known.get(verdict["kind"], AgreementError)(verdict["text"])


def broadcast(name: str, value: str | None, deadline_s: float = 300.0) -> str:
    """Returns process 0's `value` on all processes. Raises AgreementError after the deadline."""
    client = jax_distributed.global_state.client
    if jax.process_index() == 0:
        assert value is not None, "process 0 needs a value to broadcast"
        if client is not None:
            client.key_value_set(f"slipway/{name}", value)
        return value
    published = _get(client, f"slipway/{name}", deadline_s)
    if published is None:
        raise AgreementError(f"{_no_response(0, deadline_s)['text']} ({name})")
    return published


def publish(name: str, value: str) -> None:
    """Makes a value of this process known to all; does nothing for a single process."""
    client = jax_distributed.global_state.client
    if client is not None:
        client.key_value_set(f"slipway/{name}/{jax.process_index()}", value)


def published(name: str, process: int, deadline_s: float = 300.0) -> str:
    """Returns what another process has published. Raises AgreementError after the deadline."""
    client = jax_distributed.global_state.client
    value = _get(client, f"slipway/{name}/{process}", deadline_s)
    if value is None:
        raise AgreementError(f"{_no_response(process, deadline_s)['text']} ({name})")
    return value


def _encoded(error: Exception | None) -> str:
    return json.dumps({"kind": type(error).__name__, "text": str(error)} if error else None)


def _verdict(client: Any, key: str, report: str, deadline_s: float) -> dict[str, str] | None:
    """Reports to process 0. Returns the problem of all processes, or None when none has one."""
    process = jax.process_index()
    client.key_value_set(f"{key}/reports/{process}", report)
    if process != 0:
        verdict = _get(client, f"{key}/verdict", deadline_s + SLACK_S)
        if verdict is None:
            return _no_response(0, deadline_s)
        result = json.loads(verdict)
        if result:
            # Process 0 may end before this call returns.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                client.key_value_set(f"{key}/acknowledged/{process}", "")
        return result
    problems = _collect(client, key, deadline_s)
    text = "; ".join(problem["text"] for problem in problems)
    result = {"kind": problems[0]["kind"], "text": text} if problems else None
    client.key_value_set(f"{key}/verdict", json.dumps(result))
    client.key_value_delete(f"{key}/reports/")
    if result:
        _wait_for_acknowledgements(client, key)
    return result


def _wait_for_acknowledgements(client: Any, key: str) -> None:
    ends = time.monotonic() + ACKNOWLEDGE_S
    for process in range(1, jax.process_count()):
        _get(client, f"{key}/acknowledged/{process}", max(0.1, ends - time.monotonic()))


def _collect(client: Any, key: str, deadline_s: float) -> list[dict[str, str]]:
    """Returns the problems of all processes; hosts with the same problem are named together."""
    ends = time.monotonic() + deadline_s
    hosts: dict[tuple[str, str], list[str]] = {}
    for process in range(jax.process_count()):
        report = _get(client, f"{key}/reports/{process}", max(0.1, ends - time.monotonic()))
        problem = _no_response(process, deadline_s) if report is None else json.loads(report)
        if problem:
            hosts.setdefault((problem["kind"], problem["text"]), []).append(_name(process))
    return [
        {"kind": kind, "text": text if not kind else f"{', '.join(names)}: {text}"}
        for (kind, text), names in hosts.items()
    ]


def _no_response(process: int, deadline_s: float) -> dict[str, str]:
    return {"kind": "", "text": f"no response from {_name(process)} within {deadline_s:.0f} s"}


def _name(process: int) -> str:
    """Returns the name of a process of this attempt."""
    return process_name(process, int(os.environ.get(PROCESSES_PER_HOST, 1)))


def _get(client: Any, key: str, timeout_s: float) -> str | None:
    """Returns the value of `key`, or None when no process has set it in time."""
    try:
        return client.blocking_key_value_get(key, int(timeout_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise
