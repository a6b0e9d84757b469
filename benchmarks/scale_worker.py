"""One driver and its hosts, for scale.py: prints their figures as one JSON object.

    python -m benchmarks.scale_worker real|fed HOSTS SECONDS STEP_S FOLDER

Uses the parts of a real run: RunController with its monitor, its run folder and the panel of a
terminal, over the Gang and its polls through Ray. Only the allocation of hosts differs.
"""

import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from launcher.controller.controller import RunController
from launcher.core.events import Listener
from launcher.core.signals import Interrupts
from launcher.gang.gang import Gang
from launcher.gang.host_pool import HostPool
from launcher.planning.spec import LaunchSpec
from launcher.providers.local import provider
from launcher.providers.ray.host_cluster import HostCluster
from launcher.runs.directory import RunDir
from launcher.ui.progress import RunDisplay
from tests.support.launch_plans import planned
from tests.support.load_many_nodes import STUB, crowded, nodes_for
from tests.support.measure_loader import fed
from tests.support.worlds import cpu_world
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import Event, HeartbeatEvent, InitializedEvent, StepEvent

SETTLE_S = 3.0
"""Seconds from the last host's first event to the measurement: starts are over."""


@dataclass
class Figures:
    """Figures of one driver. Each time of the start is counted from the one before."""

    nodes_s: float = 0.0
    agents_s: float = 0.0
    met_s: float = 0.0
    reported_s: float = 0.0
    events: int = 0
    """Events that were handled during the measurement."""
    measured_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of all threads of the process, including Ray's."""
    handling_s: float = 0.0
    """Wall time in `RunController.on_event`."""
    late_s: list[float] = field(default_factory=list)
    """Delays from an event to its handling; every 16th is kept."""


class Measured(RunController):
    """Attempts of a run that end after the measurement."""

    def __init__(
        self, launch: LaunchSpec, run: RunDir, display: RunDisplay, seconds: float, figures: Figures
    ) -> None:
        self._interrupted = Interrupts()
        super().__init__(launch, run, display, self._interrupted)
        self._processes = launch.plan.world.processes
        self._seconds, self._figures = seconds, figures
        self._met: set[int] = set()
        self._reported: set[int] = set()
        self._programs_began = self._all_met = 0.0
        self._begins = self._ends = float("inf")
        self._first = self._cpu_s = 0.0
        """Time of the first measured event, and CPU time of the process until then."""

    def run_on(self, held: "Held") -> None:
        """Runs until the attempt has ended itself."""
        self._hosting = held
        self._programs_began = time.monotonic()
        try:
            self.run()
        except KeyboardInterrupt:
            pass  # raised by this object

    def on_event(self, event: Event) -> None:
        began = time.perf_counter()
        super().on_event(event)
        handling_s = time.perf_counter() - began
        now = time.monotonic()
        if self._begins <= now < self._ends:
            self._note(event, now, handling_s)
        elif self._begins > now:
            self._note_start(event, now)

    def _note_start(self, event: Event, now: float) -> None:
        process, figures = -1 if event.process is None else event.process, self._figures
        if isinstance(event, InitializedEvent):
            self._met.add(process)
            if len(self._met) == self._processes:
                figures.met_s, self._all_met = now - self._programs_began, now
        elif isinstance(event, HeartbeatEvent | StepEvent) and self._begins == float("inf"):
            self._reported.add(process)
            if len(self._reported) == self._processes:
                figures.reported_s = now - (self._all_met or self._programs_began)
                self._begins = now + SETTLE_S

    def _note(self, event: Event, now: float, handling_s: float) -> None:
        figures = self._figures
        if figures.events == 0:
            self._cpu_s, self._first = time.process_time(), now
        figures.events += 1
        figures.handling_s += handling_s
        if event.time is not None and figures.events % 16 == 0:
            figures.late_s.append(time.time() - event.time)
        if now - self._first >= self._seconds:
            figures.cpu_s = time.process_time() - self._cpu_s
            figures.measured_s = now - self._first
            self._ends = now
            self._interrupted.on_signal(signal.SIGTERM, None)


class Held(HostPool):
    """Hosts and agents that exist already."""

    def __init__(
        self, listener: Listener, launch: LaunchSpec, hosts: HostCluster, gang: Gang
    ) -> None:
        super().__init__(listener, launch)
        self._hosts, self._held_gang = hosts, gang

    def gang(self, launch: LaunchSpec) -> Gang:
        return self._held_gang

    def unknown(self, gang: Gang) -> list[int]:
        return []

    def alive(self, world: World) -> int:
        return world.processes

    def dismiss(self) -> None: ...


def measure(kind: str, processes: int, seconds: float, step_s: float, folder: Path) -> Figures:
    """Starts the nodes, measures the run, and waits for its end."""
    figures = Figures()
    cluster = folder / "cluster.yaml"
    cluster.write_text(
        f"{{accelerator: cpu, hosts: {processes}, devices_per_host: 1, provider: {{kind: local}}}}"
    )
    command = json.dumps([sys.executable, "-I", "-S", str(STUB), "1000000", str(step_s)])
    job = f"name: many\ncommand: {command}\nretries: {{failures: 0}}\n"
    launch = planned(folder / "job.yaml", job, str(cluster))
    nodes = nodes_for(processes) if kind == "real" else 1
    began = time.monotonic()
    with (
        Path(os.devnull).open("w") as nowhere,
        RunDir.create(launch) as run,
        RunDisplay(Console(file=nowhere, force_terminal=True), launch) as display,
        provider.start(cpu_world(nodes, 1)) as hosts,
    ):
        figures.nodes_s = time.monotonic() - began
        attempts = Measured(launch, run, display, seconds, figures)
        if kind == "real":
            gathered = crowded(hosts, processes, launch.run_dir, attempts)
        else:
            gathered = fed(hosts, processes, launch.run_dir, attempts, step_s)
        with gathered as gang:
            figures.agents_s = time.monotonic() - began - figures.nodes_s
            attempts.run_on(Held(attempts, launch, hosts, gang))
    return figures


def main() -> None:
    kind, processes, seconds, step_s, folder = sys.argv[1:]
    figures = measure(kind, int(processes), float(seconds), float(step_s), Path(folder))
    late_s = statistics.quantiles(figures.late_s, n=100) if len(figures.late_s) > 1 else [0.0] * 99
    about = {k: v for k, v in vars(figures).items() if k != "late_s"}
    print(json.dumps({**about, "late_median_s": late_s[49], "late_most_s": late_s[98]}))


if __name__ == "__main__":
    main()
