"""Tokenizers from files of Hugging Face: their vocabulary, their tokens, and training with one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from tests.support.gang import run
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.tokenizer_files import END, TEXTS, make
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.storage.corpus import digest
from trainer.contract.storage.tokenizer_info import VocabularyError, vocab_size, vocabulary
from trainer.data import token_cache, tokenizer
from trainer.hugging_face import tokenizer as interchange


def data(file: Path, **changes: Any) -> Data:
    sizes = {"source": "stdlib", "seq_len": 8, "global_batch": 2}
    return Data.model_validate({**sizes, "tokenizer": str(file), **changes})


def test_text_becomes_the_tokens_of_the_file_and_text_again(tmp_path: Path) -> None:
    path = make(tmp_path)
    ours, theirs = tokenizer.of(data(path)), Tokenizer.from_file(str(path))
    (first, *_) = found = list(ours.encode_all([text.encode() for text in TEXTS]))
    assert [tokens[1:].tolist() for tokens in found] == [theirs.encode(t).ids for t in TEXTS]
    assert {tokens[0] for tokens in found} == {theirs.token_to_id(END)}
    assert first.dtype == np.uint16
    assert len(first) < len(TEXTS[0])
    assert [ours.decode(tokens[1:].tolist()) for tokens in found] == TEXTS
    assert ours.decode([*first[1:].tolist(), ours.eos_id, 1, 2]) == TEXTS[0]


def test_text_that_is_no_utf_8_is_read_all_the_same(tmp_path: Path) -> None:
    ours = tokenizer.of(data(make(tmp_path)))
    assert ours.decode(ours.encode(b"a \xff cat")[1:].tolist()) == "a \ufffd cat"


def test_special_tokens_are_those_of_the_file_where_they_are_wanted(tmp_path: Path) -> None:
    path = make(tmp_path)
    without = tokenizer.of(data(path))
    theirs = Tokenizer.from_file(str(path))
    single = f"{END} $A {END}"
    theirs.post_processor = processors.TemplateProcessing(  # type: ignore[misc]
        single=single, special_tokens=[(END, theirs.token_to_id(END))]
    )
    theirs.save(str(path))
    ours, texts = tokenizer.of(data(path)), [TEXTS[0].encode(), f"{END}a cat".encode()]
    first, second = (tokens.tolist() for tokens in ours.encode_with_template(texts))
    assert first == theirs.encode(TEXTS[0]).ids
    assert second == theirs.encode(f"{END}a cat", add_special_tokens=False).ids
    (plain,) = without.encode_with_template(texts[:1])
    assert plain.tolist() == first[1:-1] == ours.encode(texts[0])[1:].tolist()


def test_large_vocabularies_have_wider_tokens(tmp_path: Path) -> None:
    path = make(tmp_path)
    content = json.loads(path.read_text())
    content["model"]["vocab"] |= {f"token {n}": n for n in range(270, 70_000)}
    path.write_text(json.dumps(content))
    assert vocabulary(data(path)).size == 70_000
    assert tokenizer.of(data(path)).dtype == np.uint32


def test_separator_is_end_of_text_of_file_or_named_token(
    tmp_path: Path,
) -> None:
    assert vocabulary(data(make(tmp_path))).eos_token == END
    path = make(tmp_path, "<|other|>")
    path = path.rename(tmp_path / "other.json")
    with pytest.raises(VocabularyError, match="Set this key to the token that separates documents"):
        vocabulary(data(path))
    named = vocabulary(data(path, eos_token="<|other|>"))
    assert (named.eos_id, named.size) == (0, 270)


def test_unigram_models_list_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    vocab = [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": vocab}, "added_tokens": []}))
    found = vocabulary(data(path))
    assert (found.size, found.eos_token, found.eos_id) == (3, "</s>", 1)


@pytest.mark.parametrize(
    ("content", "changes", "key", "said"),
    [
        (None, {}, "tokenizer", "No such file"),
        ("{}", {}, "tokenizer", "is not a Hugging Face tokenizer.json"),
        ("not JSON", {}, "tokenizer", "is not a Hugging Face tokenizer.json"),
        (None, {"tokenizer": "bytes", "eos_token": "x"}, "eos_token", "has a fixed one"),
    ],
)
def test_unusable_tokenizer_is_reported_with_key(
    tmp_path: Path, content: str | None, changes: dict[str, str], key: str, said: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    settings = {"tokenizer": str(path), **changes}
    with pytest.raises(PlanError) as told:
        job = job_of(data=settings)
        resolve(job, world_of(), corpus_of(job))
    problems = dict(told.value.problems)
    assert said in problems[f"data.{key}"]


def test_a_model_has_as_many_tokens_as_its_tokenizer_or_more(tmp_path: Path) -> None:
    settings = {"tokenizer": str(make(tmp_path))}
    assert vocab_size(job_of(data=settings)) == 270
    job = job_of(data=settings, model={"vocab_size": 269})
    with pytest.raises(PlanError, match="269 is less than the tokenizer's 270 tokens"):
        resolve(job, world_of(), corpus_of(job))


def test_another_tokenizer_is_another_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS[0] * 100)
    (tmp_path / "other").mkdir()
    files = [make(tmp_path), make(tmp_path / "other", size=262)]
    one, other = (data(f, source="text", path=str(tmp_path / "*.txt")) for f in files)
    assert digest(other) != digest(one)
    first, second = token_cache.load(one), token_cache.load(other)
    assert first.tokenizer.eos_id == vocabulary(one).eos_id
    assert len(first.held_in) < len(second.held_in)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_trains_writes_text_and_its_model_goes_with_the_tokenizer(tmp_path: Path) -> None:
    path = make(tmp_path)
    settings = {"tokenizer": str(path), "seq_len": 8, "global_batch": 2}
    sample = {"prompt": "the cat", "tokens": 5, "temperature": 0.0}
    job = job_of(data=settings, steps=2, sample=sample)
    ended = run(job, world_of(2), tmp_path / "run")
    assert ended.codes == [0, 0], ended.outputs
    assert (tmp_path / "run" / "sample.txt").read_text().startswith("the cat")
    files = interchange.files(job.data)
    assert files["tokenizer.json"] == json.loads(path.read_text())
    assert files["tokenizer_config.json"]["eos_token"] == END
