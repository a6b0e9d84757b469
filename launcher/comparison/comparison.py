"""The comparison of several runs with the first of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.comparison.differences import Difference, Group, differences
from launcher.comparison.examples import Examples, compare_examples
from launcher.comparison.losses import Losses, Rounding, compare_losses
from launcher.comparison.resources import RunFacts, facts_of
from launcher.comparison.steps import Steps, steps_of
from launcher.comparison.verdict import Verdict, verdict
from launcher.runs.run_record import RunRecord
from trainer.contract.planning.plan import Plan

TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2, "int8": 1e-2, "fp8": 1e-2}
"""Relative difference of two losses that rounding explains, by the dtype of products."""


@dataclass(frozen=True)
class Pair:
    """A run, compared with the first one."""

    name: str
    verdict: Verdict
    differences: list[Difference]
    """In the order of their groups."""
    not_recorded: list[Group]
    """Groups that a run has not recorded."""
    examples: Examples
    losses: Losses | None
    """Null when the runs have no common step with the same examples."""


@dataclass(frozen=True)
class Comparison:
    """Several runs, compared with the first of them."""

    runs: list[RunFacts]
    """All runs; the first one is that with which the others are compared."""
    pairs: list[Pair]
    """The other runs in the same order."""


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Compares each run with the first one."""
    first = _Compared.of(records[0])
    pairs = [_pair(first, _Compared.of(record)) for record in records[1:]]
    return Comparison([facts_of(record) for record in records], pairs)


@dataclass(frozen=True)
class _Compared:
    """A run with its steps."""

    record: RunRecord
    steps: Steps

    @classmethod
    def of(cls, record: RunRecord) -> "_Compared":
        return cls(record, steps_of(record))

    @property
    def tolerance(self) -> float:
        plan = self.record.last_plan
        if not isinstance(plan, Plan):
            return 0.0
        return TOLERANCES[plan.precision or plan.compute_dtype]


def _pair(first: _Compared, second: _Compared) -> Pair:
    groups = differences(first.record, second.record)
    found = [one for group in groups for one in group.differences]
    examples, paired = compare_examples(first.steps, second.steps, found)
    rounding = _rounding(max(first.tolerance, second.tolerance), found)
    losses = compare_losses(first.steps, second.steps, paired, rounding) if paired else None
    recorded = {one.group for one in groups}
    return Pair(
        name=second.record.name,
        verdict=verdict(groups, examples, losses),
        differences=found,
        not_recorded=[group for group in Group if group not in recorded],
        examples=examples,
        losses=losses,
    )


def _rounding(tolerance: float, found: Sequence[Difference]) -> Rounding:
    """Returns what rounding explains: nothing, if a key differs that changes more."""
    programs = (Group.CODE, Group.LIBRARIES)
    is_possible = all(one.is_of_rounding or one.group in programs for one in found)
    return Rounding(tolerance if is_possible else 0.0, all(one.is_of_rounding for one in found))
