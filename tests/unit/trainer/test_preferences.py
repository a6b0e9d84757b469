"""Pairs of a preferred and a rejected completion: records, token streams and examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.chats import TEMPLATE, data, tokenizer, write
from tests.support.jobs import corpus_of, world_of
from tests.support.preferences import dpo_job, pair, pairs
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import pipeline, token_cache
from trainer.data.documents import BadRecords, documents
from trainer.data.packing import CHOSEN, Batch
from trainer.data.provenance import Provenance

PREFERENCE: dict[str, Any] = {"source": "preference", "seq_len": 64}


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def assistant(content: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content}]


def learned(asked: Data) -> list[list[tuple[str, str]]]:
    """The two texts of each pair, each with what is learned of it."""
    found = []
    for one in documents(asked, BadRecords(asked.max_bad_records)):
        assert one.rejected
        both = ((one.text, one.answers or ()), (one.rejected.text, one.rejected.answers))
        spans = [(text, *span) for text, answers in both for span in answers]
        found.append([(text.decode(), text[a:b].decode()) for text, a, b in spans])
    return found


def rows(asked: Data, steps: int = 1, block: tuple[int, int] = (0, 1)) -> list[Batch]:
    batches = pipeline.training_batches(token_cache.load(asked), asked, 0, block, 1)
    return [next(batches) for _ in range(steps)]


def test_an_example_is_a_pair_whose_completions_are_learned(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("ü?", "yes", "no"))
    asked = data(path, **PREFERENCE | {"seq_len": 16})
    assert learned(asked) == [[("ü?yes", "yes"), ("ü?no", "no")]]
    ((one,),) = ([Batch(*(x[0] for x in batch)) for batch in rows(asked)],)
    texts = [256, *"ü?yes".encode(), 256, *"ü?no".encode()]
    assert one.tokens.tolist() == [*texts, 256, 0, 0]
    assert one.targets.tolist() == [*texts[1:], 256, 0, 0, 0]
    # The completions, each with the separator that ends it.
    assert one.weights.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert one.segments.tolist() == [CHOSEN] * 7 + [CHOSEN + 1] * 6 + [CHOSEN + 2] * 3
    assert one.positions.tolist() == [*range(7), *range(6), *range(3)]


def test_messages_are_written_by_the_template_up_to_its_end_of_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair(user("the cat?"), assistant("sat"), assistant("a dog")))
    template = TEMPLATE + "{% if not add_generation_prompt %}{{ eos_token }}\n{% endif %}"
    asked = data(path, **PREFERENCE, tokenizer=tokenizer(tmp_path, template))
    prompt = "<user>the cat?<end><assistant>"
    assert learned(asked) == [
        [(f"{prompt}sat<end>", "sat<end>"), (f"{prompt}a dog<end>", "a dog<end>")]
    ]
    first = digest(asked)
    tokenizer(tmp_path, template + "!")
    assert digest(asked) != first


def test_texts_take_no_template(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("cat", " sat", " dog"))
    asked = data(path, **PREFERENCE, tokenizer=tokenizer(tmp_path))
    assert learned(asked) == [[("cat sat", " sat"), ("cat dog", " dog")]]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"chosen": "a", "rejected": "b"}, "no field 'prompt'; found the fields: chosen, rejected"),
        ({"prompt": "a", "chosen": "b"}, "no field 'rejected'; found the fields: prompt, chosen"),
        (pair("a", 7, "b"), "'chosen' must be text, found 7"),
        (pair("a", assistant("b"), "c"), "'chosen' must be text, found [{"),
        (pair([], "b", "c"), "'prompt' must be a non-empty list of messages"),
        (pair(user("a"), "b", "c"), "'chosen' must be a non-empty list of messages"),
        (
            pair(user("a"), assistant("b"), user("c")),
            "the last message of 'rejected' has role 'user', expected 'assistant'",
        ),
        (pair("a", "b <|endoftext|> c", "d"), "the record contains '<|endoftext|>'"),
        (pair("a", "b<|endoftext|><|endoftext|>", "d"), "the record contains '<|endoftext|>'"),
        (
            pair(user("late"), assistant("b"), assistant("c")),
            "cannot locate 'chosen': the chat template renders the prompt differently",
        ),
    ],
)
def test_a_bad_pair_is_reported_with_file_and_line(tmp_path: Path, record: Any, why: str) -> None:
    late = "{% if messages[0]['content'] == 'late' and messages | length == 1 %}!{% endif %}"
    path = write(tmp_path / "a.jsonl", pair("a", "b", "c"), record)
    asked = data(path, **PREFERENCE, tokenizer=tokenizer(tmp_path, late + TEMPLATE))
    with pytest.raises(DataError) as error:
        learned(asked)
    assert f"1 bad record, for example {path}:2: {why}" in str(error.value)
    assert len(learned(asked.model_copy(update={"max_bad_records": 1}))) == 1


def test_messages_without_a_template_are_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair(user("a"), assistant("b"), assistant("c")))
    with pytest.raises(DataError, match=r"a\.jsonl:1: messages need a chat template"):
        learned(data(path, **PREFERENCE))


def test_a_pair_that_does_not_fit_is_a_bad_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *pairs(3), pair("?" * 40, "a", "b"), *pairs(2))
    asked = data(path, **PREFERENCE)
    with pytest.raises(DataError) as error:
        token_cache.load(asked)
    assert f"{path}:4: the pair has 84 tokens, more than data.seq_len (64)" in str(error.value)
    asked = asked.model_copy(update={"max_bad_records": 1})
    assert token_cache.load(asked).sequences(64) == 5
    assert len(token_cache.load(asked.model_copy(update={"seq_len": 84})).bad.found) == 0


def test_every_pair_is_used_once_an_epoch_whatever_the_hosts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *pairs(24))
    asked = data(path, **PREFERENCE | {"global_batch": 4, "validation_fraction": 0.2})
    tokens = token_cache.load(asked)
    assert tokens.pairs
    trained, kept = len(tokens.pairs.held_in), len(tokens.pairs.held_out)
    assert trained + kept == 24 and kept > 0
    steps = trained // 4
    numbers = np.concatenate([batch.examples for batch in rows(asked, steps)])
    assert len(set(numbers.tolist())) == 4 * steps
    halves = [rows(asked, steps, (index, 2)) for index in (0, 1)]
    joined = [np.concatenate([a.tokens, b.tokens]) for a, b in zip(*halves, strict=True)]
    np.testing.assert_array_equal(joined, [batch.tokens for batch in rows(asked, steps)])
    batches = pipeline.held_out_batches(tokens, asked, 9, (0, 1))
    is_pair = [bool(row.any()) for batch in batches for row in batch.weights]
    assert sum(is_pair) == kept and len(is_pair) % 4 == 0
    held_out = {row.tobytes() for batch in batches for row in batch.tokens}
    assert not held_out & {row.tobytes() for batch in rows(asked, steps) for row in batch.tokens}
    where = Provenance(tokens, asked)
    for number in range(trained):
        (part,) = where.parts(number)
        assert where.text(number, part).startswith(f"{part.line - 1 if part.line else None}: ")


def test_fewer_pairs_than_a_batch_are_refused(tmp_path: Path) -> None:
    asked = data(write(tmp_path / "a.jsonl", *pairs(3)), **PREFERENCE | {"global_batch": 4})
    with pytest.raises(DataError, match=r"the corpus has 3 training pairs, fewer than data\.glob"):
        token_cache.check(token_cache.load(asked), asked)


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"lora": None}, "lora", "dpo needs adapters"),
        ({"dpo": None}, "data.source", "pairs are for the section dpo"),
        ({"data": {"source": "jsonl"}}, "data.source", "dpo needs pairs, found 'jsonl'"),
        ({"data": {"mask_across_documents": False}}, "data.mask_across_documents", "must not att"),
        ({"optimizer": {"z_loss": 1e-4}}, "optimizer.z_loss", "dpo has its own loss"),
        ({"model": {"dropout": 0.1}}, "model.dropout", "without noise"),
        (
            {"mesh": {"pipeline": 2}, "data": {"grad_accum_steps": 2}},
            "mesh.pipeline",
            "dpo runs on one stage",
        ),
    ],
)
def test_conflicts_with_other_sections_are_planned(
    tmp_path: Path, changes: Any, key: str, message: str
) -> None:
    job = dpo_job(tmp_path, **changes)
    with pytest.raises(PlanError) as error:
        resolve(job, world_of(1, 2), corpus_of(job))
    ((found, said),) = error.value.problems
    assert found == key
    assert message in said
