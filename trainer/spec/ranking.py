"""Which alternative of a job is likely the best: by bounds of its step and its memory."""

from dataclasses import dataclass

from trainer.spec import accelerators
from trainer.spec.alternatives import Alternative, alternatives
from trainer.spec.footprint import Footprint, footprint
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.spec.roofline import Bounds, bounds


@dataclass(frozen=True)
class Candidate:
    """An alternative with its figures."""

    alternative: Alternative
    bounds: Bounds
    footprint: Footprint

    @property
    def order(self) -> tuple[float, ...]:
        """What is likely the faster one is the smaller one: as if half of it overlapped.

        By the bound alone a step that is as long at its collectives as at its arithmetic were as
        good as one that has none. Where this is equal to three figures, the fewest changes.
        """
        likely_s = (self.bounds.step_s + self.bounds.serial_s) / 2
        return float(f"{likely_s:.3g}"), len(self.alternative.changes)


@dataclass(frozen=True)
class Ranking:
    """All legal alternatives of a job on its cluster."""

    hbm_bytes: int
    """Of a device."""
    own: Candidate
    """The job as it is."""
    all_by_speed: list[Candidate]
    """The likely fastest first, whether they fit or not."""

    @property
    def fitting(self) -> list[Candidate]:
        """Those that fit by estimate, the likely fastest first."""
        return [one for one in self.all_by_speed if one.footprint.total <= self.hbm_bytes]

    @property
    def least(self) -> Candidate:
        """What needs the least memory by estimate."""
        return min(self.all_by_speed, key=lambda one: one.footprint.total)

    @property
    def doubtful(self) -> list[Candidate]:
        """Those that may fit though the estimate says no, the smallest first."""
        size = self.hbm_bytes
        found = [
            one for one in self.all_by_speed if one.footprint.certain <= size < one.footprint.total
        ]
        return sorted(found, key=lambda one: one.footprint.total)


def rank(job: Job, plan: Plan) -> Ranking | None:
    """None where no facts of the devices are known."""
    world = plan.world
    hbm_bytes = None if world.on_cpu else accelerators.parse(world.accelerator).hbm_bytes
    if hbm_bytes is None or bounds(job, plan) is None:
        return None
    every = [_candidate(alternative) for alternative in alternatives(job, plan)]
    return Ranking(hbm_bytes, every[0], sorted(every, key=lambda one: one.order))


def _candidate(alternative: Alternative) -> Candidate:
    best = bounds(alternative.job, alternative.plan)
    assert best is not None, "known of one plan of a world, known of all"
    return Candidate(alternative, best, footprint(alternative.job, alternative.plan))
