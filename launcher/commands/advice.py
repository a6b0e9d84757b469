"""What would be better than a job as it is, once the compiler has said what that needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.display import format_bytes
from launcher.plan import TrainingLaunch
from trainer.spec.ranking import Candidate, Ranking, rank

CLEARLY_FASTER = 0.9
"""Of the step's bound, or less."""
SAFE_SHARE = 0.9
"""Of the memory, which an estimate may come up to."""


@dataclass(frozen=True)
class Advice:
    """One way on, or that there is none."""

    text: str
    overrides: tuple[str, ...] = ()
    hbm_estimate_bytes: int | None = None
    step_s: float | None = None
    """At best."""


def advise(launch: TrainingLaunch, verdict: Mapping[str, Any]) -> Advice | None:
    """By arithmetic, from the verdict on the job as it is; None: there is nothing to say."""
    ranking = rank(launch.job, launch.plan)
    if ranking is None:
        return None
    scale = _scale(ranking, verdict)
    limit = SAFE_SHARE * ranking.hbm_bytes / scale
    fitting = [one for one in ranking.all_by_speed if one.footprint.total <= limit]
    if verdict["fits"]:
        return _faster(ranking, fitting, scale)
    smaller = [one for one in fitting if one.footprint.total < ranking.own.footprint.total]
    if smaller:
        return _advice("would fit, by estimate", smaller[0], ranking, scale)
    return Advice(nothing_fits(ranking, scale))


def nothing_fits(ranking: Ranking, scale: float = 1.0) -> str:
    """How far from it the job is. `scale`: of the estimates."""
    least = scale * ranking.least.footprint.total
    word = "fits" if least > ranking.hbm_bytes else "surely fits"
    return (
        f"nothing legal on this cluster {word}: the least needs about {format_bytes(least)} of "
        f"{format_bytes(ranking.hbm_bytes)} per device; take more devices or a smaller model"
    )


def _faster(ranking: Ranking, fitting: list[Candidate], scale: float) -> Advice | None:
    limit_s = CLEARLY_FASTER * ranking.own.bounds.step_s
    faster = [one for one in fitting if one.bounds.step_s <= limit_s]
    return _advice("faster at best", faster[0], ranking, scale) if faster else None


def _advice(what: str, one: Candidate, ranking: Ranking, scale: float) -> Advice:
    needed = round(scale * one.footprint.total)
    overrides = one.alternative.overrides
    text = (
        f"{what}: {' '.join(overrides)} (about {format_bytes(needed)} of "
        f"{format_bytes(ranking.hbm_bytes)} per device; at best {one.bounds.step_s:.3g} s a step, "
        f"now {ranking.own.bounds.step_s:.3g} s)"
    )
    return Advice(text, overrides, needed, one.bounds.step_s)


def _scale(ranking: Ranking, verdict: Mapping[str, Any]) -> float:
    """How much more the compiler needs for the job as it is than was estimated."""
    needed = verdict["hbm_needed_bytes"]
    return needed / ranking.own.footprint.total if needed else 1.0
