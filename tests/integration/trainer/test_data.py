"""Tokens, packing, and the order of examples."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.contract.storage.corpus import DataError
from trainer.data import packing, pipeline, token_cache, tokenizer
from trainer.data.documents import HeldOut, hash_to_unit
from trainer.data.token_cache import Tokens


def _tokens(sequences: int, seq_len: int) -> Tokens:
    """A stream whose example i begins with token i."""
    stream = np.repeat(np.arange(sequences, dtype=np.uint16), seq_len)
    return Tokens("", np.append(stream, np.uint16(0)), stream)


def _job(batch: int):
    return job_of(data={"seq_len": 2, "global_batch": batch})


def _numbers(tokens, data, block, first, steps, shift=0):
    batches = pipeline.training_batches(tokens, data, 3, block, first, shift)
    return [batch.examples.tolist() for batch in itertools.islice(batches, steps)]


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.sampled_from([1, 2, 3, 4, 6, 12]),
    sequences=st.integers(12, 60),
    first=st.integers(1, 500),
)
def test_any_number_of_processes_reads_the_same_global_batches(blocks, sequences, first):
    tokens, data = _tokens(sequences, 2), _job(12).data
    whole = _numbers(tokens, data, (0, 1), first, 4)
    parts = [_numbers(tokens, data, (index, blocks), first, 4) for index in range(blocks)]
    for step in range(4):
        assert list(itertools.chain(*(part[step] for part in parts))) == whole[step]


def test_step_1_has_the_first_examples_of_the_order():
    tokens, order = _tokens(22, 2), pipeline.example_order(22, 3)
    (batch,) = _numbers(tokens, _job(4).data, (0, 1), 1, 1)
    assert batch == [order[number] for number in range(4)]


def test_every_example_is_seen_once_an_epoch():
    sequences, batch = 22, 4
    tokens = _tokens(sequences, 2)
    read = list(itertools.chain(*_numbers(tokens, _job(batch).data, (0, 1), 1, 11)))
    assert sorted(read[:sequences]) == sorted(read[sequences:]) == list(range(sequences))
    assert read[:sequences] != read[sequences:]


@given(before=st.integers(1, 5), after=st.integers(1, 9), steps=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_another_batch_size_goes_on_with_the_next_example(before, after, steps):
    tokens = _tokens(60, 2)
    first = list(itertools.chain(*_numbers(tokens, _job(before).data, (0, 1), 1, steps)))
    shift = len(first) - steps * after  # what was seen, less what `after` a step would have been
    second = _numbers(tokens, _job(after).data, (0, 1), steps + 1, 3, shift)
    read = [*first, *itertools.chain(*second)]
    assert (
        read
        == list(itertools.chain(*_numbers(tokens, _job(1).data, (0, 1), 1, len(read))))[: len(read)]
    )


def test_a_step_far_away_is_reached_at_once():
    tokens, data = _tokens(10, 2), _job(4).data
    at_once = _numbers(tokens, data, (0, 1), 101, 1)
    assert at_once == _numbers(tokens, data, (0, 1), 1, 101)[100:]
    assert _numbers(tokens, data, (0, 1), 10**9, 1)


def test_the_order_depends_on_the_seed():
    orders = [pipeline.example_order(50, seed) for seed in (0, 1)]
    first, second = ([order[i] for i in range(50)] for order in orders)
    assert first != second and set(first) == set(second) == set(range(50))


def test_epochs_count_from_one():
    tokens = _tokens(10, 2)
    orders = pipeline.source_orders(tokens, 2, seed=0)
    epochs = [pipeline.epoch_of(4 * step, tokens, orders) for step in (1, 2, 3, 5, 6)]
    assert epochs == [1, 1, 2, 2, 3]


def test_examples_are_the_consecutive_windows_of_the_stream():
    tokens, data = _tokens(10, 2), _job(10).data
    (batch,) = itertools.islice(pipeline.training_batches(tokens, data, 0, (0, 1), 1), 1)
    np.testing.assert_array_equal(batch.tokens[:, 0], batch.examples)
    np.testing.assert_array_equal(batch.targets[:, 0], batch.tokens[:, 1])


def test_positions_and_segments_start_again_at_each_document():
    stream = np.concatenate([tokenizer.BYTES.encode(text) for text in (b"ab", b"", b"xyz")])
    one = packing.example(np.append(stream[1:], 0), 0, tokenizer.BYTES.eos_id)
    assert one.segments.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert one.positions.tolist() == [0, 1, 0, 0, 1, 2, 3]
    assert one.targets.tolist() == [98, 256, 256, 120, 121, 122, 0]
    assert one.weights.tolist() == [1.0] * 7


def test_without_boundaries_a_window_is_one_segment():
    stream = np.concatenate([tokenizer.BYTES.encode(text) for text in (b"ab", b"xyz")])
    one = packing.example(stream, 0, None)
    assert set(one.segments.tolist()) == {0}
    assert one.positions.tolist() == list(range(6))


def test_text_comes_back_from_its_tokens():
    text = "def naïve(): return '😀'"
    tokens = tokenizer.BYTES.encode(text.encode())
    assert tokens[0] == tokenizer.BYTES.eos_id
    assert tokenizer.BYTES.decode(tokens[1:]) == text
    assert tokenizer.BYTES.decode([*tokens[1:], tokenizer.BYTES.eos_id, 65]) == text


def _held_out(names, share):
    split, numbers = HeldOut(share), hash_to_unit(names)
    for half in (numbers[::2], numbers[1::2]):
        split.add(half)
    return {name for name, number in zip(names, numbers, strict=True) if number < split.threshold}


@given(st.sets(st.text(max_size=8), min_size=2, max_size=30), st.floats(0.01, 0.99))
def test_both_parts_of_a_corpus_have_documents(names, share):
    held_out = _held_out(sorted(names), share)
    assert held_out and held_out < names


def test_nothing_is_held_out_of_one_document_or_where_nothing_is_asked_for():
    assert _held_out(["a"], 0.5) == _held_out(["a", "b"], 0.0) == set()


def test_a_new_document_moves_no_other_one_between_the_parts():
    names = [f"file{number}.py" for number in range(500)]
    before, after = _held_out(names, 0.1), _held_out([*names, "new.py"], 0.1)
    assert after - {"new.py"} == before
    assert 25 < len(before) < 75


def test_held_out_documents_are_never_trained_on(text_job):
    texts = [chr(65 + number) * 400 for number in range(20)]
    job = text_job(texts, data={"validation_fraction": 0.2})
    tokens = token_cache.load(job.data)
    trained, kept = set(tokens.held_in[:].tolist()), set(tokens.held_out[:].tolist())
    assert trained & kept == {tokenizer.BYTES.eos_id}
    assert trained | kept == {*range(65, 85), tokenizer.BYTES.eos_id}


def test_the_cache_is_read_again_until_the_corpus_changes(text_job, tmp_path):
    job, calls = text_job(["a" * 300, "b" * 300]), []

    def progress(done, total, builder):
        calls.append((done, total))
        assert not builder

    first = token_cache.load(job.data, progress)
    assert calls and calls[-1] == (600, 600)
    calls.clear()
    assert token_cache.load(job.data, progress).corpus_sha256 == first.corpus_sha256
    assert not calls
    (tmp_path / "000.txt").write_text("c" * 300)
    assert token_cache.load(job.data, progress).corpus_sha256 != first.corpus_sha256
    assert calls


@pytest.mark.parametrize(
    ("text", "said"),
    [("a" * 20, "a sequence needs 33"), ("a" * 200, "fewer than data.global_batch")],
)
def test_data_that_cannot_fill_a_batch_is_refused(text_job, text, said):
    data = text_job([text]).data
    with pytest.raises(DataError, match=said):
        token_cache.check(token_cache.load(data), data)


def test_evaluation_covers_a_short_stream_once_with_padding():
    stream = tokenizer.BYTES.encode(b"x" * 10)
    batches = pipeline.held_out_batches(Tokens("", stream, stream), _job(4).data, 8, (0, 1))
    assert sum(batch.weights.sum() for batch in batches) == len(stream) - 1
    assert {batch.tokens.shape for batch in batches} == {(4, 2)}


def test_processes_split_the_evaluation_among_them():
    tokens, data = _tokens(40, 2), _job(4).data
    whole = pipeline.held_out_batches(tokens, data, 3, (0, 1))
    halves = [pipeline.held_out_batches(tokens, data, 3, (index, 2)) for index in range(2)]
    assert len(whole) == 3
    for both, first, second in zip(whole, *halves, strict=True):
        joined = np.concatenate([first.tokens, second.tokens])
        np.testing.assert_array_equal(both.tokens, joined)


def test_a_corpus_of_one_document_has_nothing_to_evaluate_on():
    empty = np.empty(0, np.uint16)
    assert pipeline.held_out_batches(Tokens("", empty, empty), _job(4).data, 3, (0, 1)) == []


def test_rows_reach_the_devices_in_the_order_of_the_block():
    made = bench(job_of(mesh={"fsdp": 2, "tensor": 2}, data={"grad_accum_steps": 2}), 4)
    batch = made.batch(1)
    assert batch.tokens.shape == (2, 4, 32) and batch.examples.shape == (2, 4)
    alone = bench(job_of()).batch(1)
    np.testing.assert_array_equal(
        np.asarray(batch.tokens).reshape(8, 32), np.asarray(alone.tokens)[0]
    )
