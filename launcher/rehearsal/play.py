"""Rehearses one run: the real controller on stubs of hosts, until the run or the time is over."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from launcher.controller.controller import RunController
from launcher.core.errors import HostError, JobError
from launcher.core.events import Listener
from launcher.core.results import AttemptResult
from launcher.core.signals import Interrupts
from launcher.core.states import RunState
from launcher.core.usage import Usage
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.rehearsal.attempt import RehearsedGang
from launcher.rehearsal.clock import HorizonReachedError, VirtualClock
from launcher.rehearsal.faults import Fault
from launcher.rehearsal.hosts import StubHosts, Unit
from launcher.rehearsal.record import RehearsedRun
from launcher.rehearsal.storage import Storage
from launcher.rehearsal.timings import Timings
from launcher.requests.inbox import Received
from launcher.runs.goodput import Goodput, Part
from trainer.contract.protocol.events import Event

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The time of a run, divided into parts that add up to it. In seconds, or as shares."""

    steps: float
    """Steps that counted."""
    repeated: float
    """Steps and other work that were lost and done again."""
    detection: float
    """From a fault that hits the program until its attempt has ended."""
    restart: float
    """Starts of attempts: hosts, agents, checks, programs, restores; and their ends in order."""
    saves: float
    """Saves, as far as steps waited for them."""
    waiting: float
    """Backing off, and waiting for hosts."""

    @classmethod
    def of(cls, goodput: Goodput, detection_s: float) -> Self:
        """Returns the parts of a run, given the seconds of detection within the lost ones."""
        seconds = goodput.seconds
        steps_s = seconds[Part.STEPS] + seconds[Part.DATA_WAIT]
        saves_s = seconds[Part.SAVE] + seconds[Part.COMMIT]
        detection_s = min(detection_s, seconds[Part.LOST])
        waiting_s = seconds[Part.WAITING]
        known_s = steps_s + saves_s + waiting_s + seconds[Part.LOST]
        return cls(
            steps=steps_s,
            repeated=seconds[Part.LOST] - detection_s,
            detection=detection_s,
            restart=max(0.0, goodput.wall_s - known_s),
            saves=saves_s,
            waiting=waiting_s,
        )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is rehearsed: a run, how long its parts take, and for how long."""

    launch: TrainingLaunch
    fallbacks: Sequence[LaunchSpec]
    """The same job on fewer hosts, see `LaunchSpec.fallback_specs`."""
    timings: Timings
    horizon_s: float

    @classmethod
    def of(cls, launch: TrainingLaunch, timings: Timings, horizon_s: float) -> Self:
        """Returns the scenario of a launch as it is."""
        fallbacks = launch.fallback_specs()
        return cls(launch=launch, fallbacks=fallbacks, timings=timings, horizon_s=horizon_s)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A rehearsed run."""

    state: RunState
    """FINISHED, FAILED or OVER_BUDGET; RUNNING when the time was over first."""
    reason: str
    parts: Parts
    wall_s: float
    steps: int
    """Steps that are done."""
    attempts: int
    usage: Usage

    @property
    def goodput(self) -> float:
        """Share of the time in steps that counted."""
        return self.parts.steps / self.wall_s if self.wall_s else 0.0


@dataclass
class _Silence:
    """Stands for the display of a run, and for the requests of commands: there are none."""

    ends: Counter[str] = field(default_factory=Counter[str])

    def on_event(self, event: Event) -> None: ...

    def on_line(self, process: int, line: str) -> None: ...

    def status(self, text: str) -> None: ...

    def stopping(self, why: str = "") -> None: ...

    def attempt(self, launch: LaunchSpec) -> None: ...

    def attempt_ended(self, ending: AttemptResult) -> None:
        self.ends[ending.end_reason] += 1

    def take(self) -> list[Received]:
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Stage:
    """The surroundings of a rehearsed run."""

    def __init__(self, hosts: StubHosts, silence: _Silence) -> None:
        self.clock = hosts.clock
        self._hosts, self._silence = hosts, silence

    def host_pool(self, listener: Listener, whole: object) -> StubHosts:
        del whole
        self._hosts.listener = listener
        return self._hosts

    def requests(self, run: object, at_once: object) -> _Silence:
        del run, at_once
        return self._silence


def rehearse(scenario: Scenario, faults: Sequence[Fault]) -> Outcome:
    """Runs the controller with these faults until the run ends or the time is over."""
    launch = scenario.launch
    clock, storage, silence = VirtualClock(scenario.horizon_s), Storage(), _Silence()
    run = RehearsedRun(clock)

    def start(hosts: StubHosts, _: LaunchSpec, units: Sequence[Unit]) -> RehearsedGang:
        return RehearsedGang(hosts, units, run, storage)

    hosts = StubHosts(launch, clock, scenario.timings, faults, start)
    stage = _Stage(hosts, silence)
    controller = RunController(launch, run, silence, Interrupts(), stage, scenario.fallbacks)
    run.begin(launch)  # after the controller observes it
    state, reason = RunState.RUNNING, ""
    try:
        over = controller.run()
        state, reason = over.state, over.reason
    except HorizonReachedError:
        pass
    except (HostError, JobError) as error:
        state, reason = RunState.FAILED, str(error)
    usage = run.usage().until(clock.now_s)
    run.account.close(clock.now_s)
    goodput = run.account.goodput()
    return Outcome(
        state=state,
        reason=reason,
        parts=Parts.of(goodput, run.detection_s),
        wall_s=goodput.wall_s,
        steps=run.step,
        attempts=run.attempts,
        usage=usage,
    )
