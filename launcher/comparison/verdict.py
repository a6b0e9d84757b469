"""The sentence that sums up how two runs differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launcher.comparison.differences import Group, Known, is_under
from launcher.comparison.examples import Agreement, Examples
from launcher.comparison.losses import Equality, Losses
from launcher.core.formatting import format_percent

MOST_KEYS = 3
"""Maximum number of keys that a verdict names."""


class Kind(StrEnum):
    """The kind of a verdict."""

    SAME_RUN = "same_run"
    """Nothing that was recorded differs, and the losses are equal bit for bit."""
    EQUAL_LOSSES = "equal_losses"
    """The examples are the same, and the losses are equal bit for bit."""
    EQUAL_UP_TO_ROUNDING = "equal_up_to_rounding"
    GROWN_ROUNDING = "grown_rounding"
    """The losses are first equal up to rounding, and only rounding can differ."""
    LOWER_LOSS = "lower_loss"
    """The examples are the same; the whole confidence interval is below 0."""
    HIGHER_LOSS = "higher_loss"
    """The whole confidence interval is above 0."""
    NO_CLEAR_DIFFERENCE = "no_clear_difference"
    """The confidence interval contains 0, or there are too few steps for one."""
    DIFFERENT_EXAMPLES = "different_examples"
    """The examples differ from the first common step on."""
    OTHER_BATCHES = "other_batches"
    UNKNOWN_EXAMPLES = "unknown_examples"
    NO_COMMON_STEP = "no_common_step"


OF_EXAMPLES = {
    Agreement.DIFFERENT: (Kind.DIFFERENT_EXAMPLES, "different examples"),
    Agreement.OTHER_BATCHES: (Kind.OTHER_BATCHES, "same examples in batches of another size"),
    Agreement.UNKNOWN: (Kind.UNKNOWN_EXAMPLES, "examples unknown: no digests are recorded"),
    Agreement.NO_COMMON_STEP: (Kind.NO_COMMON_STEP, "no common step yet"),
}
"""Verdicts on runs without steps whose losses can be paired."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on two runs."""

    kind: Kind
    text: str
    """One sentence, without the names of the runs."""


def verdict(groups: Sequence[Known], examples: Examples, losses: Losses | None) -> Verdict:
    """Returns the verdict on two runs; `losses` is None when none can be paired."""
    clauses = list(_differences(groups)) or [_sameness(groups)]
    if losses is None:
        kind, text = OF_EXAMPLES[examples.agreement]
        return Verdict(kind, "; ".join([*clauses, text]))
    kind, text = _kind(losses), _losses(losses)
    is_same = examples.agreement is Agreement.SAME and not any(one.differences for one in groups)
    if is_same and kind is Kind.EQUAL_LOSSES and len(groups) == len(Group):
        return Verdict(Kind.SAME_RUN, f"same run: {'; '.join([*clauses, text])}")
    return Verdict(kind, "; ".join([*clauses, _examples(examples), text]))


def _differences(groups: Sequence[Known]) -> Iterator[str]:
    """Yields a clause for each group with differences."""
    found = {known.group: [one.key for one in known.differences] for known in groups}
    job = found.get(Group.JOB, [])
    found[Group.PLAN] = [key for key in found.get(Group.PLAN, []) if not _is_requested(key, job)]
    for group, keys in found.items():
        match group, keys:
            case _, []:
                pass
            case Group.JOB, _:
                yield _keys(keys)
            case Group.CODE, _:
                yield "other code"
            case Group.PLAN, _:
                yield f"other {_named(keys)}"
            case _:
                yield f"other {group} ({_named(keys)})"


def _is_requested(key: str, job: Sequence[str]) -> bool:
    """Returns whether a difference of the plans follows from a difference of the jobs."""
    return any(is_under(one, (key, f"model.{key}")) for one in job)


def _keys(keys: Sequence[str]) -> str:
    count = "one key differs" if len(keys) == 1 else f"{len(keys)} keys differ"
    return f"{count}: {_named(keys)}"


def _named(keys: Sequence[str]) -> str:
    rest = len(keys) - MOST_KEYS
    return ", ".join(keys[:MOST_KEYS]) + (f" and {rest} more" if rest > 0 else "")


def _sameness(groups: Sequence[Known]) -> str:
    """Returns the clause of runs without any known difference."""
    known = [one.group for one in groups]
    unknown = [group for group in Group if group not in known]
    text = f"same {_listed(known)}" if known else "nothing to compare is recorded"
    return f"{text} ({_listed(unknown)} not recorded)" if unknown and known else text


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _examples(examples: Examples) -> str:
    if examples.agreement is Agreement.SAME:
        return "same examples"
    return f"same examples before step {examples.first_different_step:,}"


def _kind(losses: Losses) -> Kind:
    if losses.equality is Equality.BITWISE:
        return Kind.EQUAL_LOSSES
    if losses.equality is Equality.ROUNDING:
        return Kind.EQUAL_UP_TO_ROUNDING
    if losses.equality is Equality.GROWN_ROUNDING:
        return Kind.GROWN_ROUNDING
    low, high = losses.last_half.low, losses.last_half.high
    if high is not None and high < 0:
        return Kind.LOWER_LOSS
    return Kind.HIGHER_LOSS if low is not None and low > 0 else Kind.NO_CLEAR_DIFFERENCE


def _losses(losses: Losses) -> str:
    found, kind = losses.last_half, _kind(losses)
    where = f"over steps {found.first_step:,} to {found.last_step:,}"
    match kind:
        case Kind.EQUAL_LOSSES if losses.all_steps.steps == 1:
            return "the one common loss is equal bit for bit"
        case Kind.EQUAL_LOSSES:
            return f"all {losses.all_steps.steps:,} common losses equal bit for bit"
        case Kind.EQUAL_UP_TO_ROUNDING:
            return "losses equal up to rounding"
        case Kind.GROWN_ROUNDING:
            largest = format_percent(losses.largest_relative_difference)
            return f"losses differ by rounding that has grown to {largest}"
        case Kind.LOWER_LOSS | Kind.HIGHER_LOSS:
            word = "lower" if kind is Kind.LOWER_LOSS else "higher"
            ends = sorted(abs(end) for end in (found.low, found.high) if end is not None)
            return f"loss {word} by {abs(found.mean):.3g} ({_interval(*ends)}) {where}"
        case _ if found.low is None or found.high is None:
            mean = f"mean difference in loss {found.mean:+.3g} {where}"
            return f"{mean}, too few for a confidence interval"
        case _:
            mean = f"no clear difference in loss: mean {found.mean:+.3g}"
            return f"{mean} ({_interval(found.low, found.high)}) {where}"


def _interval(low: float, high: float) -> str:
    return f"95 % CI {low:.3g} to {high:.3g}"
