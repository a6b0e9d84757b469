"""Starts, awaits and replaces Ray nodes that are processes on this machine.

The state is read from the nodes' logs, without calls into Ray. Ctrl-C therefore works at any
moment, and a lost node is known immediately, not after Ray's health checks.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.core.errors import HostError
from launcher.host.process_tree import ProcessTree
from launcher.host.reaper_messages import Exited, Failed, Killed
from launcher.providers.ray.node import NodeSpec, is_up, text_of

START_TIMEOUT_S = 120.0
START_TIMEOUT_PER_HOST_S = 30.0
"""Four hosts take 13 s on two idle cores; the limit is 20 times that, for a machine that trains."""
POLL_INTERVAL_S = 0.05
STARTS = 2
"""Attempts to start a host's node before giving up."""
TAIL_LINES, RAYLET_LINES = 15, 5
GENERATION = re.compile(r"(?<=-\d{4})-\d+$")
RAYLET_LOG = "session_latest/logs/raylet.out"
RAYLET_ERROR = re.compile(r"^\[.*\] [EF] .*|.*Check failed.*", re.MULTILINE)


class Nodes:
    """One node per host, and a separate head if one is given, owned by a reaper.

    `make(process, generation)` describes a host's node; the replacement of a lost node has the
    next generation. It starts `replace_after_s` after the loss; None disables replacement.
    """

    def __init__(
        self,
        reaped: ProcessTree,
        folder: Path,
        environment: Mapping[str, str],
        make: Callable[[int, int], NodeSpec],
        replace_after_s: float | None,
    ) -> None:
        self._reaped, self._folder, self._environment = reaped, folder, environment
        self._make, self._replace_after_s = make, replace_after_s
        self._inside: Callable[[int], list[str]] | None = None
        self._heads: list[NodeSpec] = []
        """One head node, or none."""
        self._hosts: list[NodeSpec] = []
        self._generations: list[int] = []
        self._lost_at_s: dict[int, float] = {}
        self._starters: dict[str, str] = {}
        """Node name -> name of the process that started the node."""
        self._exited: set[str] = set()
        self._is_over = False
        """Whether the reaper and all nodes have ended."""

    def start(
        self, head: NodeSpec | None, hosts: int, inside: Callable[[int], list[str]] | None = None
    ) -> None:
        """Starts all nodes. `inside(process)` is the prefix of commands in a host's namespace."""
        self._heads, self._inside = [head] if head else [], inside
        self._generations = [1] * hosts
        self._hosts = [self._make(process, 1) for process in range(hosts)]
        if inside is None:
            self._run("nodes", self._all, [])
            return
        self._run("head", self._heads, [])
        for process, node in enumerate(self._hosts):
            self._run(node.name, [node], inside(process))

    def wait_until_up(self, on_status: Callable[[str], None]) -> None:
        """Waits until all nodes are up.

        A host's node that ends before it is up is started once more. Ray's fixed timeouts for some
        of its own processes are too short on a busy machine. Raises HostError with the missing
        nodes and the end of the log of one of them.
        """
        total = len(self._all)
        limit_s = START_TIMEOUT_S + START_TIMEOUT_PER_HOST_S * total
        deadline = time.monotonic() + limit_s
        up = 0
        while up < total:
            waiting = [node for node in self._all if not is_up(node)]
            if total - len(waiting) > up:
                up = total - len(waiting)
                on_status(f"{up} of {total} Ray nodes are up")
            self._note_exits(POLL_INTERVAL_S)
            if self._is_over:
                raise HostError(self._missing(waiting, "the Ray nodes ended"))
            for node in filter(self._has_ended, waiting):
                if not self._start_again(node):
                    raise HostError(self._missing(waiting, "a Ray node ended"))
                on_status(f"the Ray node of {node.name} ended during its start; starting it again")
            if waiting and time.monotonic() > deadline:
                raise HostError(self._missing(waiting, f"waited {limit_s:.0f} s"))

    def _note_exits(self, wait_s: float) -> None:
        """Records which starters have ended, or that everything has."""
        answers = self._reaped.answers(wait_s)
        self._is_over = self._is_over or answers is None
        for answer in answers or []:
            match answer:
                case Failed() | Killed():
                    self._is_over = True
                case Exited(name=name):
                    self._exited.add(name)
                case _:
                    pass

    def _start_again(self, node: NodeSpec) -> bool:
        """Starts a host's node again. Returns False for the head and when no attempts are left."""
        if node in self._heads or self._generations[self._hosts.index(node)] >= STARTS:
            return False
        self._replace(self._hosts.index(node))
        return True

    @property
    def _all(self) -> list[NodeSpec]:
        return [*self._heads, *self._hosts]

    @property
    def head_is_down(self) -> bool:
        """Whether the head has ended, alone or with all nodes."""
        self._note_exits(0.0)
        return self._is_over or any(map(self._has_ended, self._heads))

    def alive(self) -> set[int]:
        """Returns the hosts whose nodes are up."""
        return {
            process
            for process, node in enumerate(self._hosts)
            if is_up(node) and not self._has_ended(node)
        }

    def replace_lost(self, now_s: float) -> None:
        """Starts the replacements of lost nodes that are due, without waiting for them."""
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
        self._run(node.name, [node], self._inside(process) if self._inside else [])

    def _run(self, name: str, nodes: Sequence[NodeSpec], prefix: Sequence[str]) -> None:
        """Starts nodes from one process, which imports Ray once and logs when a node has ended."""
        for node in nodes:
            Path(node.folder).mkdir()
            self._starters[node.name] = name
        listing = self._folder / f"{name}.json"
        listing.write_text(json.dumps([asdict(node) for node in nodes]))
        command = [
            *prefix,
            sys.executable,
            "-m",
            "launcher.providers.ray.node_starter",
            str(listing),
        ]
        self._reaped.start(name, command, self._environment, self._folder / f"{name}.starter.log")

    def _has_ended(self, node: NodeSpec) -> bool:
        """Returns whether the node's starter has logged its end or has itself ended."""
        starter = self._starters[node.name]
        log = text_of(self._folder / f"{starter}.starter.log")
        return starter in self._exited or f'{{"ended": "{node.name}"' in log

    def _missing(self, waiting: list[NodeSpec], why: str) -> str:
        names = ", ".join(GENERATION.sub("", node.name) for node in waiting)
        ended = next((node for node in waiting if self._has_ended(node)), waiting[0])
        text = text_of(ended.log) or "".join(text_of(p) for p in self._folder.glob("*.starter.log"))
        report = [f"{names} did not start ({why}). End of the log of {ended.name}:"]
        report += _tail(text, TAIL_LINES)
        if errors := RAYLET_ERROR.findall(text_of(Path(ended.folder) / RAYLET_LOG)):
            report += ["and of its raylet:", *_tail("\n".join(errors), RAYLET_LINES)]
        return "\n".join(report)


def _tail(text: str, lines: int) -> list[str]:
    return [f"  {line}" for line in text.splitlines()[-lines:]]
