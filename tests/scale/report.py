"""That many hosts from the start of their Ray nodes to the first report of each, as a program.

    python -m tests.scale.report real|fed HOSTS DEADLINE_S RUN_DIR

A process of its own, since Ray keeps the first token that a process has used. Up to MOST_NODES real
hosts are got as a run gets them, more as `crowded` does; `fed` ones only send events, for FED_S.
After DEADLINE_S the programs are stopped. Prints one JSON object: see `Heard`.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launcher.core.events import Listener
from launcher.gang.connect import gather
from launcher.gang.monitor import GangMonitor
from launcher.health.lost_hosts import SILENCE_S
from launcher.providers.local import provider
from tests.support.load_many_nodes import MOST_NODES, Stub, crowded, nodes_for
from tests.support.measure_loader import fed
from tests.support.worlds import cpu_world
from trainer.contract.protocol.events import Event, InitializedEvent, StepEvent, WarningEvent

FED_S = 2 * SILENCE_S
"""Long enough for a host that is not listened to to look silent."""


@dataclass
class Heard(Listener):
    """What the hosts said, in seconds from the start of their nodes."""

    began: float = field(default_factory=time.monotonic)
    met: dict[int, int] = field(default_factory=dict)
    """With how many processes, itself among them, each has met."""
    reported_s: dict[int, float] = field(default_factory=dict)
    """When each was first heard to have made a step."""
    warnings: list[str] = field(default_factory=list)
    outcome: str = ""
    """How it ended."""

    def on_event(self, event: Event) -> None:
        match event:
            case InitializedEvent(process=int(process), processes=int(processes)):
                self.met[process] = processes
            case StepEvent(process=int(process)):
                self.reported_s.setdefault(process, time.monotonic() - self.began)
            case WarningEvent(message=str(message)):
                self.warnings.append(message)
            case _:
                pass


class Until(GangMonitor):
    """Lets programs run until then."""

    def __init__(self, end: float) -> None:
        self._end = end

    def should_stop(self) -> bool:
        return time.monotonic() > self._end


def report(kind: str, processes: int, deadline_s: float, run_dir: Path) -> Heard:
    """Until all have ended by themselves, or the deadline."""
    heard = Heard()
    nodes = 1 if kind == "fed" else nodes_for(processes)
    with provider.start(cpu_world(nodes, 1)) as hosts:
        if kind == "fed":
            gathered = fed(hosts, processes, run_dir, heard, lasts_s=FED_S)
        elif processes <= MOST_NODES:
            gathered = gather(hosts, cpu_world(processes, 1), run_dir, heard)
        else:
            gathered = crowded(hosts, processes, run_dir, heard)
        with gathered as gang:
            monitor = Until(heard.began + deadline_s)
            heard.outcome = gang.run(Stub(processes), None, monitor).reason
    return heard


if __name__ == "__main__":
    heard = report(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
    print(json.dumps(asdict(heard)))
