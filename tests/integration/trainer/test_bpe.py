"""A tokenizer that is trained on the corpus: the same everywhere, known ahead, and kept."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.saves import Kept
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.weights import initial
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.storage.corpus import DataError
from trainer.contract.storage.tokenizer_info import vocab_size, vocabulary
from trainer.data import cache_lock, token_cache
from trainer.step.train_step import TrainProgram
from trainer.tools import export_checkpoint

SIZE = 300
LOAD = """
import sys
from trainer.data import token_cache
from trainer.contract.config.data import Data

print(token_cache.load(Data.model_validate_json(sys.argv[1])).corpus_sha256)
"""
WORDS = [f"{first}{last}" for first in ("token", "train", "text", "ünder") for last in "abcdefgh"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, seed: int = 0) -> str:
    """Forty documents; returns the glob."""
    folder.mkdir(exist_ok=True)
    dice = random.Random(seed)
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(dice.choices(WORDS, k=60)))
    return str(folder / "*.txt")


def data(path: str, size: int = SIZE, **changes: Any) -> Data:
    sizes = {
        "source": "text",
        "path": path,
        "seq_len": 32,
        "global_batch": 8,
        "validation_fraction": 0.1,
    }
    return Data.model_validate({**sizes, "tokenizer": {"train": size}, **changes})


def file_of(asked: Data) -> str:
    return token_cache.load(asked).trained


def test_the_plan_knows_the_vocabulary_before_the_training(tmp_path: Path, cache: Path) -> None:
    job = job_of(data=data(write(tmp_path / "corpus")).model_dump())
    plan = resolve(job, world_of(), corpus_of(job))
    assert vocab_size(job) == SIZE and plan.padded_vocab >= SIZE
    assert not cache.exists()
    trained = Tokenizer.from_str(file_of(job.data))
    assert trained.get_vocab_size() == SIZE
    known = vocabulary(job.data)
    assert trained.token_to_id(known.eos_token) == known.eos_id
    assert known.eos_token == "<|endoftext|>"


def test_two_trainings_give_the_same_bytes(tmp_path: Path) -> None:
    asked = data(write(tmp_path / "corpus"))
    found = []
    for number, threads in enumerate(("1", "2")):
        own = tmp_path / f"cache-{number}"
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": str(number)}
        said = subprocess.run(
            [sys.executable, "-c", LOAD, asked.model_dump_json()],
            env={**environment, "XDG_CACHE_HOME": str(own)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (file,) = (own / "slipway" / "tokenizers").iterdir()
        found.append((said.stdout, file.read_bytes()))
    assert found[0] == found[1]


def test_its_tokens_are_text_again_and_fewer_than_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus")
    tokens = token_cache.load(data(path, validation_fraction=0.0))
    as_bytes = token_cache.load(data(path, validation_fraction=0.0, tokenizer="bytes"))
    assert len(tokens.held_in) < len(as_bytes.held_in) / 2
    first = np.flatnonzero(tokens.held_in == tokens.tokenizer.eos_id)[1]
    assert tokens.tokenizer.decode(tokens.held_in[1:first].tolist()) == (
        (tmp_path / "corpus" / "0.txt").read_text()
    )


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    one = data(write(tmp_path / "corpus"))
    before = token_cache.load(one)
    eos_id, held_out = before.tokenizer.eos_id, before.held_out[:]
    kept = "".join(
        before.tokenizer.decode(part.tolist())
        for part in np.split(held_out, np.flatnonzero(held_out == eos_id))
        for part in [part[1:]]
    )
    for path in (tmp_path / "corpus").iterdir():
        if path.read_text() in kept:
            path.write_text("qqqqqq zzzzzz " * 99)
    after = token_cache.load(one)
    assert after.corpus_sha256 != before.corpus_sha256
    assert after.trained == before.trained


def test_it_is_trained_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_lock, "PROGRESS_EVERY_S", 0.0)
    asked = data(write(tmp_path / "corpus"))
    assert file_of(asked) == file_of(asked.model_copy(update={"seq_len": 8}))
    calls = []
    token_cache.load(asked, lambda *told: calls.append(told))
    assert not calls
    other = asked.model_copy(update={"tokenizer": data("", SIZE + 1).tokenizer})
    files = [file_of(asked), file_of(other)]
    write(tmp_path / "corpus", seed=1)
    files.append(file_of(asked))
    assert len(set(files)) == 3


def test_a_corpus_that_is_too_small_says_how_many_tokens_it_gives(tmp_path: Path) -> None:
    asked = data(write(tmp_path / "corpus"), 5000)
    with pytest.raises(DataError, match=r"train is 5,000, but .* only (\d+) tokens") as e:
        token_cache.load(asked)
    fewer = int(str(e.value).partition("Set it to ")[2].partition(" ")[0])
    assert token_cache.load(data(asked.path or "", fewer)).tokenizer.eos_id == 0


def test_bad_records_are_reported_while_bpe_trains(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: no field 'text'"):
        token_cache.load(data(str(tmp_path / "a.jsonl"), source="jsonl"))


def test_it_has_its_own_separator() -> None:
    job = job_of(data={"tokenizer": {"train": SIZE}, "eos_token": "</s>"})
    with pytest.raises(PlanError, match=r"data\.eos_token: a trained tokenizer has a fixed one"):
        resolve(job, world_of(), corpus_of(job))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """With a checkpoint of step 1."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        made = Kept.of(folder / "run", data=data(write(folder / "corpus")).model_dump())
        made.saved(1)
    return made


def test_a_checkpoint_has_it_and_an_export_takes_it_along(
    run: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["export", str(run.folder / "1"), "--to", str(out)])
    assert export_checkpoint.main() == 0
    assert json.loads((out / "tokenizer.json").read_text()) == json.loads(
        (run.folder / "1" / "tokenizer.json").read_text()
    )
    assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert json.loads((out / "config.json").read_text())["vocab_size"] == SIZE


def test_start_from_weights_names_tokenizer_file(run: Kept) -> None:
    made = run.made.program
    with pytest.raises(FolderError, match=r"Set data\.tokenizer to .*1/tokenizer\.json"):
        initial(str(run.folder), made)
    file = str(run.folder / "1" / "tokenizer.json")
    data = made.job.data.model_copy(update={"tokenizer": file})
    job = made.job.model_copy(update={"data": data})
    named = TrainProgram.of(job, run.made.plan, made.mesh)
    assert set(initial(str(run.folder), named).params) == set(made.shapes.params)
