"""Finds out why an agent failed: its host is gone, or only the agent is. Imports Ray late."""

import re
import socket
import time
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from launcher.providers.ray import private
from launcher.providers.ray.client import bounded, first_line

ENDING_S = 0.7
"""Seconds for which a node must still answer after its agent has ended: a raylet that ends takes
its agents with it, and may close its port after them (within 20 ms on an idle machine)."""
POLL_INTERVAL_S, CONNECT_S, STATE_TIMEOUT_S = 0.2, 2.0, 10.0
MEMORY = re.compile(
    r"(?:was|running was) (?P<used>[\d.]+\s?\w+) (?:used )?/ (?P<limit>[\d.]+\s?\w+)"
)
THRESHOLD = re.compile(r"threshold of (?:\d+B \()?(?P<value>\d+(?:\.\d+)?%?)")
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


@dataclass(frozen=True)
class AgentEnd:
    """The end of an agent, or the error that one of its methods raised."""

    why: str
    """The reason, in one line."""
    host_lives: bool


def explain(error: Exception, seen_at: float) -> AgentEnd:
    """Returns what a `RayError` of a call to an agent means.

    `seen_at`: the monotonic seconds at which the call failed. May take until ENDING_S after that.
    """
    from ray.exceptions import OutOfMemoryError, RayTaskError

    if isinstance(error, OutOfMemoryError):
        return AgentEnd(out_of_memory(str(error)), host_lives=True)
    if isinstance(error, RayTaskError):
        return AgentEnd(f"Slipway's own agent failed: {_in_one_line(error)}", True)
    if _node_lives(getattr(error, "actor_id", None), until=seen_at + ENDING_S):
        why = "its agent ended, and the program with it, although its Ray node is alive"
        return AgentEnd(why, host_lives=True)
    return AgentEnd(f"the agent of this host is gone: {first_line(error)}", host_lives=False)


def out_of_memory(text: str) -> str:
    """Returns what Ray's memory monitor did, with its figures, and the remedy."""
    figures = MEMORY.search(text)
    used = f"{figures['used']} of {figures['limit']} of memory were used" if figures else ""
    threshold = THRESHOLD.search(text)
    limit = f"its threshold is {threshold['value']}" if threshold else ""
    why = ", ".join(filter(None, [used, limit])) or text.strip().splitlines()[0]
    return (
        f"out of memory: Ray's memory monitor killed the agent, and the program with it ({why}). "
        "Use less memory per host, or start that Ray with RAY_memory_monitor_refresh_ms=0"
    )


def _in_one_line(error: Any) -> str:
    """Returns the exception and the frame that raised it, without Ray's traceback."""
    frames = list(FRAME.finditer(str(error)))
    cause = error.cause
    text = f"{type(cause).__name__}: {cause}" if cause else str(error).strip().splitlines()[-1]
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({PurePath(last['file']).name}:{last['line']} in {last['function']})"


def _node_lives(actor_id: str | None, until: float) -> bool:
    """Returns whether the Ray node of an actor answers now, and keeps answering `until` then."""
    while True:
        try:
            if not bounded("querying a node", STATE_TIMEOUT_S, lambda: _answers(actor_id)):
                return False
        except Exception:  # Ray itself is stuck or gone, whatever it raises
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(POLL_INTERVAL_S)


def _answers(actor_id: str | None) -> bool:
    """Returns whether Ray reports the actor's node alive, not draining, and its raylet answers."""
    import ray

    state = private.state()
    actor = state.actors(actor_id) if actor_id else None
    if not actor:
        return False
    node_id = actor["Address"]["NodeID"]
    node = next((n for n in ray.nodes() if n["NodeID"] == node_id and n["Alive"]), None)
    if node is None or node_id in state.state.get_draining_nodes():
        return False
    try:
        at = (node["NodeManagerAddress"], node["NodeManagerPort"])
        socket.create_connection(at, CONNECT_S).close()
    except OSError:
        return False
    return True
