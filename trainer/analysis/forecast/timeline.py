"""Resources of a device over time: what each one does, and what the core waits for."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

CORE = "core"
"""The resource that runs the schedule, one instruction after the other."""


@dataclass(frozen=True)
class Cost:
    """What an instruction occupies, and which part of the step it counts for."""

    seconds: float
    part: str
    resources: tuple[str, ...] = (CORE,)
    """Resources that it needs at the same time, each of which does one thing at a time."""


def _sums() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass
class Timeline:
    """The time of a step so far. The parts always add up to `now_s`."""

    now_s: float = 0.0
    """When the core begins the next instruction."""
    parts: defaultdict[str, float] = field(default_factory=_sums)
    """Seconds of the core by part: its work, and its waits for other resources."""
    busy: defaultdict[str, float] = field(default_factory=_sums)
    """Seconds that each resource works."""
    free_s: dict[str, float] = field(default_factory=dict)
    """When each resource other than the core is free."""

    def run(self, cost: Cost) -> None:
        """Runs an instruction that the core waits for."""
        self.wait(self.start(cost), cost.part)

    def start(self, cost: Cost) -> float:
        """Starts an instruction as soon as its resources are free, and returns when it ends."""
        others = [name for name in cost.resources if name != CORE]
        begin = max([self.now_s, *(self.free_s.get(name, 0.0) for name in others)])
        end = begin + cost.seconds
        for name in cost.resources:
            self.busy[name] += cost.seconds
        self.free_s |= dict.fromkeys(others, end)
        return end

    def wait(self, until_s: float, part: str) -> None:
        """Lets the core wait until a time, if it has not passed, on account of a part."""
        waited = max(0.0, until_s - self.now_s)
        self.parts[part] += waited
        self.now_s += waited

    def copy(self) -> "Timeline":
        """Returns a timeline that can continue on its own."""
        return Timeline(self.now_s, self.parts.copy(), self.busy.copy(), self.free_s.copy())

    def repeat(self, before: "Timeline", times: int) -> None:
        """Repeats what has happened since `before` for a number of times."""
        passed = times * (self.now_s - before.now_s)
        for sums, old in ((self.parts, before.parts), (self.busy, before.busy)):
            for name in sums:
                sums[name] += times * (sums[name] - old[name])
        self.now_s += passed
        self.free_s = {name: free + passed for name, free in self.free_s.items()}


def longest(timelines: Iterable[Timeline]) -> Timeline:
    """Returns the timeline that ends last."""
    return max(timelines, key=lambda one: one.now_s)
