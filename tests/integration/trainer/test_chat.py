"""Supervised fine-tuning: conversations as examples whose answers alone are learned."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.chats import TEMPLATE, conversation, data, tokenizer, write
from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import packing, token_cache
from trainer.data import tokenizer as tokenizers
from trainer.data.documents import BadRecords, documents
from trainer.data.tokenizer import BYTES
from trainer.evaluation.evaluate import Evaluator
from trainer.hugging_face import tokenizer as interchange

PAIR = {"prompt": "ask", "answer": "reply"}


def learned(asked: Data) -> list[tuple[str, list[str]]]:
    """Text of each conversation, and of its answers."""
    found = documents(asked, BadRecords(asked.max_bad_records))
    return [
        (one.text.decode(), [one.text[a:b].decode() for a, b in one.answers or ()]) for one in found
    ]


def test_prompt_precedes_answer_and_only_answer_is_learned(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.jsonl", {"ask": "1+1=", "reply": "2"}, {"ask": "ü?", "reply": "ö"})
    asked = data(path, fields=PAIR)
    assert learned(asked) == [("1+1=2", ["2"]), ("ü?ö", ["ö"])]
    stream = token_cache.load(asked).held_in[:]
    one = packing.example(stream, 0, BYTES.eos_id)
    whole = [BYTES.encode(text) for text in (b"1+1=2", "ü?ö".encode())]
    np.testing.assert_array_equal(one.tokens, np.concatenate(whole)[:-1])
    np.testing.assert_array_equal(one.targets, np.concatenate(whole)[1:])
    # The answer, and the separator that ends it; then the two bytes of the other answer.
    assert one.weights.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert one.segments.tolist() == [1] * 6 + [2] * 5


def test_messages_are_written_by_the_template_and_every_answer_is_learned(tmp_path: Path) -> None:
    record = conversation("the cat?", "sat", "and?", "the dog")
    path = write(tmp_path / "a.jsonl", record)
    ((text, answers),) = learned(asked := data(path, tokenizer=tokenizer(tmp_path)))
    assert text == (
        "<|endoftext|><user>the cat?<end><assistant>sat<end><user>and?<end><assistant>the dog<end>"
    )
    assert answers == ["sat<end>", "the dog<end>"]
    stream = token_cache.load(asked).held_in[:]
    ours = tokenizers.of(asked)
    shown = np.where(stream < 0, ~stream, stream)
    np.testing.assert_array_equal(shown, ours.encode(text.encode()))
    assert ours.decode(stream[1:][stream[1:] >= 0].tolist()) == "sat<end>the dog<end>"


def test_a_pair_is_a_conversation_where_there_is_a_template(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"ask": "cat?", "reply": "sat"})
    asked = data(path, tokenizer=tokenizer(tmp_path), fields=PAIR)
    assert learned(asked) == [("<|endoftext|><user>cat?<end><assistant>sat<end>", ["sat<end>"])]


def test_a_template_in_a_file_of_its_own_and_one_of_several_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", conversation("a", "b"))
    short = "{% for m in messages %}{{ m['content'] | tojson }}{% endfor %}"
    several: Any = [{"name": "tools", "template": "x"}, {"name": "default", "template": short}]
    asked = data(path, tokenizer=tokenizer(tmp_path, several))
    assert learned(asked) == [('"a""b"', ['"b"'])]
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert learned(asked)[0][0] == "<|endoftext|><user>a<end><assistant>b<end>"


def test_another_template_or_field_is_another_corpus(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", conversation("a", "b"))
    asked = data(path, tokenizer=tokenizer(tmp_path))
    first = digest(asked)
    assert digest(data(path, tokenizer=asked.tokenizer, fields=PAIR)) != first
    tokenizer(tmp_path, TEMPLATE + "!")
    assert digest(asked) != first


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"text": "x"}, "no field 'messages'; found the fields: text"),
        ({"messages": "x"}, "'messages' must be a non-empty list of messages"),
        ({"messages": []}, "'messages' must be a non-empty list of messages"),
        ({"messages": [{"role": "user"}]}, "message 1 of 'messages': no field 'content'"),
        (
            {"messages": [{"role": "user", "content": 7}]},
            "message 1 of 'messages': 'content' must be text, found 7",
        ),
        (
            conversation("a", "b", "c"),
            "the last message of 'messages' has role 'user', expected 'assistant'",
        ),
        (
            conversation("a", "b <|endoftext|> c"),
            "the record contains '<|endoftext|>', the document separator",
        ),
        (conversation("no!", "b"), "the chat template rejects the record: not so"),
        (
            conversation("a", "b", "late", "c"),
            "cannot locate the answer: the chat template renders message 2",
        ),
    ],
)
def test_bad_conversation_is_reported_with_file_and_line(
    tmp_path: Path, record: Any, why: str
) -> None:
    template = (
        "{% if messages[0]['content'] == 'no!' %}{{ raise_exception('not so') }}{% endif %}"
        "{% if messages | length == 4 and messages[2]['content'] == 'late' %}!{% endif %}"
    )
    path = write(tmp_path / "a.jsonl", conversation("a", "b"), record)
    asked = data(path, tokenizer=tokenizer(tmp_path, template + TEMPLATE))
    with pytest.raises(DataError) as told:
        learned(asked)
    assert f"1 bad record, for example {path}:2: {why}" in str(told.value)
    assert len(learned(asked.model_copy(update={"max_bad_records": 1}))) == 1


def test_template_with_invalid_jinja_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", conversation("a", "b"))
    with pytest.raises(DataError, match=r"data\.tokenizer: invalid chat template, line 1: "):
        learned(data(path, tokenizer=tokenizer(tmp_path, "{% for %}")))


def test_messages_without_a_template_are_refused_by_the_plan() -> None:
    job = job_of(data={"source": "chat", "path": "x"})
    with pytest.raises(PlanError, match=r"data\.fields: messages need a chat template"):
        resolve(job, world_of(), corpus_of(job))


def test_the_template_goes_with_an_exported_model(tmp_path: Path) -> None:
    files = interchange.files(data("x", tokenizer=tokenizer(tmp_path)))
    settings = files["tokenizer_config.json"]
    assert settings["chat_template"] == TEMPLATE
    assert (settings["bos_token"], settings["eos_token"]) == ("<|endoftext|>", "<|endoftext|>")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sums, some with answers that are longer than others."""
    sums = ((a, b) for a in range(12) for b in range(12))
    records = [{"ask": f"{a}+{b}=", "reply": str(a + b) * (1 + a % 3)} for a, b in sums]
    return write(tmp_path_factory.mktemp("pairs") / "a.jsonl", *records)


def job(path: str, **changes: Any):
    asked = {"source": "chat", "path": path, "fields": PAIR, "seq_len": 16, "global_batch": 8}
    return job_of(data={**asked, "validation_fraction": 0.2}, **changes)


@pytest.mark.slow
def test_losses_over_answers_are_the_same_on_every_mesh(pairs: str) -> None:
    alone = [metrics.loss for metrics in bench(job(pairs)).run(20)[1]]
    for mesh in ({"fsdp": 2, "tensor": 2}, {"fsdp": 4}):
        found = bench(job(pairs, mesh=mesh), 4).run(20)[1]
        np.testing.assert_allclose([metrics.loss for metrics in found], alone, atol=1e-4)
    assert alone[-1] < alone[0]


def test_an_evaluation_counts_answers_alone(pairs: str) -> None:
    made = bench(job(pairs))
    batches = list(made.loader.validation(99))
    tokens = token_cache.load(job(pairs).data)
    weight = sum(float(batch.weights.sum()) for batch in batches)
    assert weight == np.sum(tokens.held_out[1:] >= 0) < len(tokens.held_out) - 1
    with jax.set_mesh(made.program.mesh):
        found = Evaluator(made.program).evaluate(made.initial().params, batches)
        # What is only read could be anything.
        wrong = [b._replace(targets=np.where(b.weights, b.targets, 0)) for b in batches]
        other = Evaluator(made.program).evaluate(made.initial().params, wrong)
    assert found and found == other


def test_a_batch_without_an_answer_changes_no_weight_by_its_loss(pairs: str) -> None:
    made = bench(job(pairs))
    batch = made.batch(1)
    _, metrics = made.compiled(made.initial(), batch._replace(weights=0 * batch.weights))
    assert (float(metrics.loss), float(metrics.grad_norm), bool(metrics.applied)) == (0, 0, True)


@pytest.mark.interchange
def test_transformers_makes_the_same_tokens_and_the_same_answers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer  # type: ignore[import-not-found]

    records = [conversation("the cat?", " sät", "and?", "the dog"), conversation("a", "b")]
    asked = data(write(tmp_path / "a.jsonl", *records), tokenizer=tokenizer(tmp_path))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    expected: list[int] = []
    for record in records:
        found = theirs.apply_chat_template(
            record["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        pairs = zip(found["input_ids"], found["assistant_masks"], strict=True)
        expected += [theirs.eos_token_id, *(token if mask else ~token for token, mask in pairs)]
    assert token_cache.load(asked).held_in[:].tolist() == expected
