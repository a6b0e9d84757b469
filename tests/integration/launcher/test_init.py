"""`launch init`: a job file to begin with."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.init import write_job
from launcher.core.errors import UsageError
from tests.support.cli import launch
from tests.support.jobs import job_of
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.hugging_face.config import make


def test_the_written_file_is_a_job_that_is_planned_as_it_is(tmp_path: Path) -> None:
    written = launch(tmp_path, "init")
    assert (written.returncode, written.stdout) == (
        0,
        "wrote job.yaml. Run it with: launch job.yaml\n",
    )
    planned = launch(tmp_path, "plan", "job.yaml")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("job on local: ")


def hugging_face(folder: Path, model: Model) -> Path:
    """A folder without weights, which are not read before the start."""
    folder.mkdir()
    config = make(job_of().model_copy(update={"model": model}), "bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer("</s>")))
    return folder


def tokenizer(end: str) -> dict[str, Any]:
    return {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": end, "id": 1}]}


@pytest.mark.parametrize(
    "keys",
    [{"preset": "qwen3-0.6b"},
     {"layers": 3, "d_model": 48, "heads": 4, "d_ff": 96, "vocab_size": 300, "qk_norm": True,
      "moe": {"count": 4}}],
    ids=["preset", "keys"],
)  # fmt: skip
def test_a_job_that_begins_with_given_weights_is_planned_as_it_is(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    model = Model.model_validate(keys)
    hugging_face(tmp_path / "a model", model)
    written = launch(tmp_path, "init", "--from", "a model")
    assert (written.returncode, written.stderr) == (0, "")
    job = load_job(tmp_path / "job.yaml").value
    assert isinstance(job, Job) and job.checkpoint
    assert job.model == model
    assert (job.checkpoint.init_from, job.data.tokenizer) == ("a model", "a model/tokenizer.json")
    planned = launch(tmp_path, "plan", "job.yaml")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize("named", ["<|done|>", {"content": "<|done|>", "lstrip": False}])
def test_an_unusual_separator_is_that_of_the_tokenizers_settings(
    tmp_path: Path, named: Any
) -> None:
    folder = hugging_face(tmp_path / "a model", Model.model_validate({"preset": "tiny"}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer("<|done|>")))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert launch(tmp_path, "init", "--from", "a model").returncode == 0
    job = load_job(tmp_path / "job.yaml").value
    assert isinstance(job, Job) and job.data.eos_token == "<|done|>"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "a model: expected the folder of a Hugging Face model, with config"),
        ("config.json", '{"model_type": "mamba"}', "a model/config.json: model_type is 'mamba'. "),
        ("tokenizer.json", None, "a model/tokenizer.json is missing. Write it with transformers: "),
        ("tokenizer.json", "{}", "a model/tokenizer.json is not a Hugging Face tokenizer.json: "),
    ],
)
def test_a_folder_of_another_kind_is_refused(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    folder = hugging_face(tmp_path / "a model", Model.model_validate({"preset": "tiny"}))
    (folder / file).unlink()
    if content:
        (folder / file).write_text(content)
    refused = launch(tmp_path, "init", "--from", "a model")
    assert refused.returncode == 2
    assert refused.stderr.startswith(message)
    assert not (tmp_path / "job.yaml").exists()


def test_the_job_is_named_after_its_file(tmp_path: Path) -> None:
    assert launch(tmp_path, "init", "my job_2.yaml").returncode == 0
    assert load_job(tmp_path / "my job_2.yaml").value.name == "my-job-2"


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: mine\n")
    refused = launch(tmp_path, "init")
    assert refused.returncode == 2
    assert refused.stderr == "job.yaml exists already: name another file, or delete it first\n"
    assert (tmp_path / "job.yaml").read_text() == "name: mine\n"


def test_a_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    refused = launch(tmp_path, "init", "no/job.yaml")
    assert refused.returncode == 2
    assert refused.stderr == "no/job.yaml cannot be written: No such file or directory\n"


@pytest.mark.parametrize("name", ["two\nlines.yaml", b"\xff.yaml".decode(errors="surrogateescape")])
def test_a_job_may_have_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    assert launch(tmp_path, "init", name).returncode == 0
    assert isinstance(load_job(tmp_path / name).value, Job)


def test_a_file_that_cannot_be_filled_is_not_left(tmp_path: Path) -> None:
    """A limit of the size of files plays a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"job.yaml cannot be written: File too large"):
            write_job(tmp_path / "job.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
