"""Whether two runs have seen the same examples, by the digests of their steps.

The digest of a step is a sum of hashes over the numbers of its examples. Numbers mean the same
examples in the same corpus, cut into sequences of the same length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from launcher.comparison.differences import Difference, is_under
from launcher.comparison.steps import Step, Steps
from trainer.contract.records.compatibility import DATA_KEYS

NUMBERING = ("data.seq_len", "data.validation_fraction")
"""Keys that set which part of a corpus a number means."""
CONTENT = (
    *sorted(DATA_KEYS - {"seed", "data.global_batch", "data.mask_across_documents"}),
    "data.tokenizer", "data.eos_token",
)  # fmt: skip
"""Keys that set the corpus, for runs that have not recorded its SHA-256."""


class Agreement(StrEnum):
    """Whether two runs have seen the same examples."""

    SAME = "same"
    """In every common step."""
    SAME_AT_FIRST = "same_at_first"
    """Before the first step with different examples."""
    OTHER_BATCHES = "other_batches"
    """The same examples in the same order, in batches of another size."""
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """A run has recorded no digests."""
    NO_COMMON_STEP = "no_common_step"


@dataclass(frozen=True)
class Examples:
    """The comparison of the examples of two runs."""

    agreement: Agreement
    common_steps: int
    """Number of steps that both runs have done."""
    same_steps: int
    """Number of these before the first one with different examples."""
    first_different_step: int | None
    """The first common step with different examples; null without one."""


def compare_examples(
    first: Steps, second: Steps, differences: Sequence[Difference]
) -> tuple[Examples, list[int]]:
    """Compares the examples of two runs; also returns the steps whose losses can be paired."""
    common = sorted(first.keys() & second.keys())
    if not common:
        return Examples(Agreement.NO_COMMON_STEP, 0, 0, None), []
    pairs = [(first[step], second[step]) for step in common]
    if any(step.digest is None for pair in pairs for step in pair):
        return Examples(Agreement.UNKNOWN, len(common), 0, None), []
    is_other = _has_key(differences, NUMBERING)
    is_other_content = _has_key(differences, CONTENT)
    same = 0 if is_other else _count(_is_same(*pair, is_other_content) for pair in pairs)
    if same == len(common):
        return Examples(Agreement.SAME, same, same, None), common
    agreement = Agreement.SAME_AT_FIRST if same else Agreement.DIFFERENT
    is_one_corpus = not is_other and _is_one_corpus(*pairs[0], is_other_content)
    if not same and is_one_corpus and _are_regrouped(first, second):
        agreement = Agreement.OTHER_BATCHES
    return Examples(agreement, len(common), same, common[same]), common[:same]


def _has_key(differences: Sequence[Difference], keys: tuple[str, ...]) -> bool:
    return any(is_under(one.key, keys) for one in differences)


def _count(sames: Iterable[bool]) -> int:
    """Returns the number of values before the first False."""
    count = 0
    for same in sames:
        if not same:
            break
        count += 1
    return count


def _is_same(first: Step, second: Step, is_other_content: bool) -> bool:
    return first.digest == second.digest and _is_one_corpus(first, second, is_other_content)


def _is_one_corpus(first: Step, second: Step, is_other_content: bool) -> bool:
    if first.corpus and second.corpus:
        return first.corpus == second.corpus
    return not is_other_content


def _are_regrouped(first: Steps, second: Steps) -> bool:
    """Returns whether the runs have seen the same examples wherever their tokens are equal."""
    ours, theirs = _digests_by_tokens(first), _digests_by_tokens(second)
    common = ours.keys() & theirs.keys()
    return bool(common) and all(ours[tokens] == theirs[tokens] for tokens in common)


def _digests_by_tokens(steps: Steps) -> dict[int, int]:
    """Returns the digest of all examples since the first step, by the number of their tokens.

    Empty when a step is missing.
    """
    numbers = sorted(steps)
    if numbers != list(range(1, len(numbers) + 1)):
        return {}
    totals = accumulate(steps[number].digest or 0 for number in numbers)
    tokens = (steps[number].tokens for number in numbers)
    return {t: total % 2**32 for t, total in zip(tokens, totals, strict=True) if t is not None}
