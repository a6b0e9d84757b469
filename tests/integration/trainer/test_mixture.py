"""Several corpora with weights: whose turn it is, the order of their examples, their losses."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gang import run
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.records.exclusions import Exclusion
from trainer.contract.storage.corpus import DataError
from trainer.data import mixture, pipeline
from trainer.data.interleaver import Interleaver
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.evaluation.evaluate import combined
from trainer.telemetry.metrics import Evaluation

SEQ_LEN = 2
weights_of = st.lists(st.integers(1, 30), min_size=2, max_size=6)


def mixed(*sizes_and_weights: tuple[int, int]) -> Mixture:
    """Sources of so many sequences; those of source s begin with the tokens 1000 s, 1000 s + 1."""
    parts = []
    for source, (size, _) in enumerate(sizes_and_weights):
        stream = np.repeat(np.arange(size, dtype=np.uint16) + 1000 * source, SEQ_LEN)
        parts.append(Tokens(str(source), np.append(stream, np.uint16(0)), stream))
    weights = tuple(weight for _, weight in sizes_and_weights)
    return Mixture(tuple(parts), weights, tuple("abcdef"[: len(weights)]))


def read(
    tokens: Mixture, batch: int, first: int, steps: int, block: tuple[int, int] = (0, 1),
    shift: int = 0,
) -> list[list[tuple[int, int]]]:  # fmt: skip
    """(Number, first token) of the examples of each step."""
    data = job_of(data={"seq_len": SEQ_LEN, "global_batch": batch}).data
    batches = pipeline.training_batches(tokens, data, 3, block, first, shift)
    return [
        list(zip(one.examples.tolist(), one.tokens[:, 0].tolist(), strict=True))
        for one in itertools.islice(batches, steps)
    ]


def sources(rows: list[tuple[int, int]]) -> Counter[int]:
    return Counter(token // 1000 for _, token in rows)


@settings(max_examples=60)
@given(weights=weights_of, period=st.integers(0, 10**6))
def test_each_source_has_had_its_share_at_every_moment_to_within_one(
    weights: list[int], period: int
) -> None:
    turns, total = Interleaver(weights), sum(weights)
    first = period * total
    counts = turns.before(first)
    for item in range(first, first + total + 1):
        assert turns.before(item) == counts
        assert sum(counts) == item
        shares = [Fraction(item * weight, total) for weight in weights]
        assert all(abs(n - share) < 1 for n, share in zip(counts, shares, strict=True))
        source, before = turns.of(item)
        assert before == counts[source]
        counts[source] += 1


@settings(max_examples=25)
@given(weights=weights_of, batch=st.integers(1, 24), first=st.integers(1, 400))
def test_every_window_of_global_batches_has_the_weights(
    weights: list[int], batch: int, first: int
) -> None:
    """Of two sources to within one sequence; of more to within less than two."""
    tokens = mixed(*((40, weight) for weight in weights))
    steps, bound = read(tokens, batch, first, 6), 1 if len(weights) == 2 else 2
    for start, stop in itertools.combinations(range(7), 2):
        found = sources([row for rows in steps[start:stop] for row in rows])
        for source, weight in enumerate(weights):
            ideal = (stop - start) * batch * weight / sum(weights)
            assert abs(found[source] - ideal) < bound


def test_each_source_has_epochs_of_its_own() -> None:
    tokens = mixed((12, 3), (5, 1))
    rows = list(itertools.chain(*read(tokens, 4, 1, 12)))
    for source, size in ((0, 12), (1, 5)):
        seen = [number for number, token in rows if token // 1000 == source]
        first, second = seen[:size], seen[size : 2 * size]
        assert len(second) == size and first != second
        assert len(set(first)) == len(set(second)) == size
    assert pipeline.epoch_of(48, tokens, pipeline.source_orders(tokens, SEQ_LEN, 3)) == 3
    assert {number for number, _ in rows} == set(range(17))


def test_one_number_is_one_example() -> None:
    rows = itertools.chain(*read(mixed((12, 3), (5, 1)), 4, 1, 20))
    assert len(set(rows)) == 17


@settings(max_examples=15)
@given(blocks=st.sampled_from([1, 2, 4]), first=st.integers(1, 300))
def test_any_number_of_processes_reads_the_same_mixture(blocks: int, first: int) -> None:
    tokens = mixed((13, 3), (20, 2), (9, 2))
    whole = read(tokens, 8, first, 3)
    parts = [read(tokens, 8, first, 3, (index, blocks)) for index in range(blocks)]
    for step in range(3):
        assert list(itertools.chain(*(part[step] for part in parts))) == whole[step]


@settings(max_examples=15)
@given(before=st.integers(1, 5), after=st.integers(1, 9), steps=st.integers(1, 6))
def test_another_batch_size_goes_on_with_the_next_example(
    before: int, after: int, steps: int
) -> None:
    tokens = mixed((13, 3), (20, 1))
    first = list(itertools.chain(*read(tokens, before, 1, steps)))
    shift = len(first) - steps * after
    found = [*first, *itertools.chain(*read(tokens, after, steps + 1, 3, shift=shift))]
    assert found == list(itertools.chain(*read(tokens, 1, 1, len(found))))


def test_a_step_far_away_is_that_of_a_run_that_came_there() -> None:
    tokens = mixed((13, 3), (20, 1))
    assert read(tokens, 4, 101, 1) == read(tokens, 4, 1, 101)[100:]
    assert read(tokens, 4, 10**8, 1)


def test_mixture_loss_is_weighted_mean_of_sources_that_have_one() -> None:
    found = combined([Evaluation(1.0), None, Evaluation(3.0)], {"a": 3, "b": 5, "c": 1})
    assert found == Evaluation(1.5, {"a": 1.0, "c": 3.0})
    assert combined([None, None], {"a": 1, "b": 1}) is None


@pytest.fixture
def corpora(tmp_path: Path) -> list[dict[str, Any]]:
    """Two corpora of text, as sources of a mixture."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(30):
            (tmp_path / name / f"{number}.txt").write_text(f"{name * 9} and {number} " * 9)
    text = {"source": "text"}
    return [
        {**text, "path": str(tmp_path / "a" / "*.txt"), "weight": 3, "name": "first"},
        {**text, "path": str(tmp_path / "b" / "*.txt")},
    ]


def job(corpora: list[dict[str, Any]], **changes: Any):
    data = {"mixture": corpora, "seq_len": 32, "global_batch": 8, "validation_fraction": 0.1}
    whole = job_of().model_dump(mode="json")
    return type(job_of()).model_validate({**whole, "data": data, **changes})


def test_the_parts_have_one_tokenizer_that_is_trained_on_all(
    corpora: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = job(corpora).data.model_copy(update={"tokenizer": Data.model_validate(
        {"source": "stdlib", "seq_len": 1, "global_batch": 1, "tokenizer": {"train": 264}}
    ).tokenizer})  # fmt: skip
    tokens = mixture.load(data)
    first, second = tokens.parts
    assert first.trained == second.trained == tokens.trained
    merges = tokens.trained.replace(" ", "")
    assert '"aa"' in merges and '"bb"' in merges
    assert tokens.names == ("first", corpora[1]["path"])


def test_a_source_that_is_too_small_is_named(corpora: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("c" * 20)
    small = {**corpora[1], "path": str(tmp_path / "c.txt")}
    data = job([corpora[0], small]).data
    with pytest.raises(DataError, match=r"c\.txt: the corpus has \d+ tokens"):
        mixture.check(mixture.load(data), data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": None}, "data.mixture.1.path: source 'text' needs a path"),
        ({"source": "stdlib"}, "data.mixture.1.path: source 'stdlib' has no path"),
    ],
)
def test_wrong_path_of_source_is_reported_with_key(
    corpora: list[dict[str, Any]], changes: dict[str, Any], said: str
) -> None:
    wrong = job([corpora[0], {**corpora[1], **changes}])
    with pytest.raises(PlanError, match=said):
        resolve(wrong, world_of(), corpus_of(wrong))


@pytest.mark.slow
def test_two_hosts_train_on_mixture_and_report_loss_of_each_source(
    corpora: list[dict[str, Any]], tmp_path: Path
) -> None:
    wanted = job(corpora, steps=2, eval={"every_steps": 2, "batches": 1})
    ended = run(wanted, world_of(2), tmp_path / "run")
    assert ended.codes == [0, 0], ended.outputs
    (line,) = (line for line in ended.lines() if "eval_loss" in line)
    losses = line["eval_losses"]
    assert list(losses) == ["first", corpora[1]["path"]]
    mean = (3 * losses["first"] + losses[corpora[1]["path"]]) / 4
    assert line["eval_loss"] == pytest.approx(mean)


def test_mixture_without_excluded_examples_keeps_the_shares_of_its_sources() -> None:
    tokens = mixed((40, 3), (30, 2))
    excluded = Exclusion(step=3, attempt=1, first=8, count=4, order="")
    whole, kept = (
        [order[item] for item in range(60)]
        for order in (
            pipeline.mixed_order(tokens, SEQ_LEN, 3),
            pipeline.mixed_order(tokens, SEQ_LEN, 3, [excluded]),
        )
    )
    assert kept[:8] == whole[:8] and not set(kept[8:]) & set(whole[8:12])
    assert [number in range(40) for number in kept] == [number in range(40) for number in whole]
