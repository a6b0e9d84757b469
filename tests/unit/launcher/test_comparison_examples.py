"""Whether two runs have seen the same examples, from the digests of their steps."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from launcher.comparison.differences import Difference, Group
from launcher.comparison.examples import Agreement, Examples, compare_examples
from launcher.comparison.steps import Step, Steps

DIGESTS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30)


def steps(digests: list[int | None], corpus: str | None = "a", tokens: int = 64) -> Steps:
    return {n: Step(2.0, one, corpus, n * tokens) for n, one in enumerate(digests, 1)}


def compared(first: Steps, second: Steps, *keys: str) -> tuple[Examples, list[int]]:
    return compare_examples(first, second, [Difference(Group.JOB, key, 1, 2) for key in keys])


def agreement(first: Steps, second: Steps, *keys: str) -> Agreement:
    return compared(first, second, *keys)[0].agreement


@given(DIGESTS, DIGESTS)
def test_common_steps_with_equal_digests_are_paired(digests: list[int], more: list[int]) -> None:
    found, paired = compared(steps(list(digests)), steps([*digests, *more]))
    assert found == Examples(Agreement.SAME, len(digests), len(digests), None)
    assert paired == list(range(1, len(digests) + 1))


@given(DIGESTS, st.data())
def test_steps_from_the_first_other_digest_on_are_not_paired(
    digests: list[int], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(digests) - 1))
    others = digests.copy()
    others[index] ^= 1
    found, paired = compared(steps(list(digests)), steps(list(others)))
    expected = Agreement.SAME_AT_FIRST if index else Agreement.DIFFERENT
    assert (found.agreement, found.first_different_step) == (expected, index + 1)
    assert paired == list(range(1, index + 1))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=30))
def test_the_same_examples_in_larger_batches_are_recognized(digests: list[int]) -> None:
    sums = [sum(pair) % 2**32 for pair in zip(digests[::2], digests[1::2], strict=False)]
    if sums[0] != digests[0]:
        found = agreement(steps(list(digests)), steps(list(sums), tokens=128))
        assert found is Agreement.OTHER_BATCHES


def test_other_examples_in_larger_batches_are_different() -> None:
    assert agreement(steps([1, 2, 3, 4]), steps([3, 8], tokens=128)) is Agreement.DIFFERENT


def test_numbers_of_other_corpora_are_different_examples() -> None:
    assert agreement(steps([1, 2]), steps([1, 2], corpus="b")) is Agreement.DIFFERENT


def test_data_that_changed_when_the_run_resumed_is_different_from_there_on() -> None:
    resumed = {**steps([1, 2]), 3: replace(steps([0, 0, 3])[3], corpus="b")}
    assert compared(steps([1, 2, 3]), resumed)[1] == [1, 2]


def test_another_length_of_sequences_is_different_examples() -> None:
    found = agreement(steps([1, 2]), steps([1, 2]), "data.seq_len")
    assert found is Agreement.DIFFERENT


def test_another_path_matters_only_without_the_corpus() -> None:
    known, unknown = steps([1, 2]), steps([1, 2], corpus=None)
    assert agreement(known, known, "data.path") is Agreement.SAME
    assert agreement(known, unknown, "data.path") is Agreement.DIFFERENT
    assert agreement(known, unknown) is Agreement.SAME


def test_runs_without_digests_are_unknown() -> None:
    assert compared(steps([1, 2]), steps([None, None])) == (
        Examples(Agreement.UNKNOWN, 2, 0, None), []
    )  # fmt: skip


def test_runs_without_a_common_step() -> None:
    assert agreement(steps([1, 2]), {}) is Agreement.NO_COMMON_STEP
