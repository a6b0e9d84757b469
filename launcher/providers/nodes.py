"""Ray nodes that are processes on this machine: started, waited for, made anew when they are lost.

Everything is read from the nodes' logs: no call into Ray, so that Ctrl-C works at any moment and a
lost node is known at once, not after Ray's health checks.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.host.processes import Reaped
from launcher.providers.errors import ProviderError

Node = dict[str, Any]
"""What ray_nodes.py starts: name, flags, folder, env, log, after."""

START_TIMEOUT_S = 120.0
START_TIMEOUT_PER_HOST_S = 30.0
"""Four hosts take 13 s on two idle cores; a machine that trains beside gets twenty times that."""
NODE_IS_UP = "Ray runtime started."
TAIL_LINES = 15


class Nodes:
    """A head and one node per host, in the care of a reaper.

    `make(process, generation)` describes a host's node; the replacement of a lost one is of the
    next generation. `replace_after_s`: how long after a loss it is started; None: never.
    """

    def __init__(
        self,
        reaped: Reaped,
        folder: Path,
        environment: Mapping[str, str],
        make: Callable[[int, int], Node],
        replace_after_s: float | None,
    ) -> None:
        self._reaped, self._folder, self._environment = reaped, folder, environment
        self._make, self._replace_after_s = make, replace_after_s
        self._inside: Callable[[int], list[str]] | None = None
        self._head: Node = {}
        self._hosts: list[Node] = []
        self._generations: list[int] = []
        self._lost_at_s: dict[int, float] = {}

    def start(
        self, head: Node, hosts: int, inside: Callable[[int], list[str]] | None = None
    ) -> None:
        """All nodes at once; `inside(process)` is the prefix of commands in a host's namespace."""
        self._head, self._inside = head, inside
        self._generations = [1] * hosts
        self._hosts = [self._make(process, 1) for process in range(hosts)]
        if inside is None:
            self._run("nodes", [head, *self._hosts], [])
            return
        self._run("head", [head], [])
        for process, node in enumerate(self._hosts):
            self._run(node["name"], [node], inside(process))

    def wait_until_up(self, on_status: Callable[[str], None]) -> None:
        """Raises ProviderError with the nodes that are missing and the end of their logs."""
        nodes = [self._head, *self._hosts]
        limit_s = START_TIMEOUT_S + START_TIMEOUT_PER_HOST_S * len(nodes)
        deadline = time.monotonic() + limit_s
        waiting = list(nodes)
        while waiting:
            up = [node for node in waiting if _is_up(node)]
            if up:
                waiting = [node for node in waiting if node not in up]
                on_status(f"{len(nodes) - len(waiting)} of {len(nodes)} Ray nodes are up")
            answers = self._reaped.answers(0.05)
            over = time.monotonic() > deadline
            ended = answers is None or any("exited" in a or "failed" in a for a in answers)
            ended = ended or any(self._has_ended(node) for node in waiting)
            if waiting and (ended or over):
                why = f"within {limit_s:.0f} s" if over else "and will not: a Ray node ended"
                raise ProviderError(self._missing(waiting, why))

    @property
    def is_headless(self) -> bool:
        return self._has_ended(self._head)

    def alive(self) -> set[int]:
        """The hosts whose nodes are up."""
        return {
            process
            for process, node in enumerate(self._hosts)
            if _is_up(node) and not self._has_ended(node)
        }

    def replace_lost(self, now_s: float) -> None:
        """Start what is due to take the place of lost nodes; does not wait for it."""
        for process, node in enumerate(self._hosts):
            if self._replace_after_s is None or not self._has_ended(node):
                continue
            lost_at_s = self._lost_at_s.setdefault(process, now_s)
            if now_s - lost_at_s >= self._replace_after_s:
                del self._lost_at_s[process]
                self._replace(process)

    def _replace(self, process: int) -> None:
        self._generations[process] += 1
        node = self._hosts[process] = self._make(process, self._generations[process])
        self._run(node["name"], [node], self._inside(process) if self._inside else [])

    def _run(self, name: str, nodes: Sequence[Node], prefix: Sequence[str]) -> None:
        """In one process that imports Ray once; it says in its log when a node has ended."""
        for node in nodes:
            Path(node["folder"]).mkdir()
        listing = self._folder / f"{name}.json"
        listing.write_text(json.dumps(nodes))
        command = [*prefix, sys.executable, "-m", "launcher.providers.ray_nodes", str(listing)]
        self._reaped.start(name, command, self._environment, self._folder / f"{name}.starter.log")

    def _has_ended(self, node: Node) -> bool:
        starters = [self._folder / f"{name}.starter.log" for name in ("nodes", node["name"])]
        return any(f'{{"ended": "{node["name"]}"' in _text(log) for log in starters)

    def _missing(self, waiting: list[Node], why: str) -> str:
        names = ", ".join(node["name"] for node in waiting)
        ended = next((node for node in waiting if self._has_ended(node)), waiting[0])
        text = _text(ended["log"]) or "".join(_text(p) for p in self._folder.glob("*.starter.log"))
        tail = "\n".join(f"  {line}" for line in text.splitlines()[-TAIL_LINES:])
        return f"{names} did not come up {why}. The end of the log of {ended['name']}:\n{tail}"


def _is_up(node: Node) -> bool:
    return NODE_IS_UP in _text(node["log"])


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
