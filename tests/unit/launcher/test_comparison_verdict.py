"""The sentence on two runs, for each kind of result."""

import pytest

from launcher.comparison.differences import Difference, Group, Known
from launcher.comparison.examples import Agreement, Examples
from launcher.comparison.losses import Equality, Losses, MeanDifference
from launcher.comparison.verdict import Kind, verdict

SAME = Examples(Agreement.SAME, 40, 40, None)


def groups(*changes: tuple[Group, str]) -> list[Known]:
    """All groups, with these differences."""
    return [
        Known(group, [Difference(group, key, 1, 2) for of, key in changes if of is group])
        for group in Group
    ]


def losses(
    equality: Equality, mean: float = 0.0, low: float | None = None, high: float | None = None
) -> Losses:
    first = None if equality is Equality.BITWISE else 2
    part = MeanDifference(21, 40, 20, mean, low, high)
    return Losses(equality, first, 0.051, MeanDifference(1, 40, 40, mean, low, high), part)


EQUAL, RATE = losses(Equality.BITWISE), (Group.JOB, "optimizer.learning_rate")


@pytest.mark.parametrize(
    ("changes", "found", "kind", "text"),
    [
        (
            [],
            EQUAL,
            Kind.SAME_RUN,
            "same run: same job, code, libraries, cluster and plan; "
            "all 40 common losses equal bit for bit",
        ),
        (
            [(Group.LIBRARIES, "jax")],
            EQUAL,
            Kind.EQUAL_LOSSES,
            "other libraries (jax); same examples; all 40 common losses equal bit for bit",
        ),
        (
            [(Group.PLAN, "mesh")],
            losses(Equality.ROUNDING),
            Kind.EQUAL_UP_TO_ROUNDING,
            "other mesh; same examples; losses equal up to rounding",
        ),
        (
            [(Group.JOB, "mesh.tensor"), (Group.PLAN, "mesh")],
            losses(Equality.GROWN_ROUNDING),
            Kind.GROWN_ROUNDING,
            "one key differs: mesh.tensor; same examples; "
            "losses differ by rounding that has grown to 5.1 %",
        ),
        (
            [RATE],
            losses(Equality.DIFFERENT, -0.25, -0.3, -0.2),
            Kind.LOWER_LOSS,
            "one key differs: optimizer.learning_rate; same examples; "
            "loss lower by 0.25 (95 % CI 0.2 to 0.3) over steps 21 to 40",
        ),
        (
            [RATE, (Group.CODE, "sha256")],
            losses(Equality.DIFFERENT, 0.25, 0.2, 0.3),
            Kind.HIGHER_LOSS,
            "one key differs: optimizer.learning_rate; other code; same examples; "
            "loss higher by 0.25 (95 % CI 0.2 to 0.3) over steps 21 to 40",
        ),
        (
            [(Group.JOB, key) for key in "abcde"],
            losses(Equality.DIFFERENT, 0.25, -0.1, 0.6),
            Kind.NO_CLEAR_DIFFERENCE,
            "5 keys differ: a, b, c and 2 more; same examples; no clear difference in loss: "
            "mean +0.25 (95 % CI -0.1 to 0.6) over steps 21 to 40",
        ),
        (
            [],
            losses(Equality.DIFFERENT, 0.25),
            Kind.NO_CLEAR_DIFFERENCE,
            "same job, code, libraries, cluster and plan; same examples; mean difference in loss "
            "+0.25 over steps 21 to 40, too few for a confidence interval",
        ),
    ],
)
def test_verdict_on_losses(
    changes: list[tuple[Group, str]], found: Losses, kind: Kind, text: str
) -> None:
    result = verdict(groups(*changes), SAME, found)
    assert (result.kind, result.text) == (kind, text)


@pytest.mark.parametrize(
    ("agreement", "kind", "text"),
    [
        (Agreement.DIFFERENT, Kind.DIFFERENT_EXAMPLES, "different examples"),
        (Agreement.OTHER_BATCHES, Kind.OTHER_BATCHES, "same examples in batches of another size"),
        (Agreement.UNKNOWN, Kind.UNKNOWN_EXAMPLES, "examples unknown: no digests are recorded"),
        (Agreement.NO_COMMON_STEP, Kind.NO_COMMON_STEP, "no common step yet"),
    ],
)
def test_verdict_without_pairs(agreement: Agreement, kind: Kind, text: str) -> None:
    found = verdict(groups((Group.JOB, "seed")), Examples(agreement, 40, 0, 1), None)
    assert (found.kind, found.text) == (kind, f"one key differs: seed; {text}")


def test_examples_that_differ_later_are_named_with_the_step() -> None:
    examples = Examples(Agreement.SAME_AT_FIRST, 40, 20, 21)
    found = verdict(groups(), examples, EQUAL)
    assert found.kind is Kind.EQUAL_LOSSES
    assert "; same examples before step 21; all 40 common losses" in found.text


def test_what_is_not_recorded_is_not_the_same() -> None:
    """A program without Slipway's trainer records neither its code nor its libraries."""
    known = [one for one in groups() if one.group in (Group.JOB, Group.CLUSTER)]
    found = verdict(known, SAME, EQUAL)
    assert found.kind is Kind.EQUAL_LOSSES
    assert found.text.startswith("same job and cluster (code, libraries and plan not recorded);")
