"""Settings of a distillation, and teachers that cannot teach a job."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoint_metadata_builders import about_of
from tests.support.distillations import LARGE, distill_job
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.launch_plans import JOB, planned
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.hugging_face.config import CONFIG, make
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.records.checkpoint_metadata import ABOUT, Base
from trainer.contract.records.compatibility import compare
from trainer.contract.records.teacher import teacher_model

TOKENIZER, OTHER_TOKENIZER = (
    json.dumps({"model": {"vocab": vocab}, "added_tokens": [{"content": "</s>", "id": 2}]})
    for vocab in ({"a": 0, "b": 1}, {"a": 1, "b": 0})
)


def saved(folder: Path, job: Job | None = None, **fields: Any) -> Path:
    """A step folder with metadata and without arrays."""
    job = job or job_of(model=LARGE)
    folder.mkdir(parents=True)
    (folder / ABOUT).write_text(about_of(job, **fields).model_dump_json(), encoding="utf-8")
    return folder


def problems(job: Job, devices: int = 2) -> list[tuple[str, str]]:
    with pytest.raises(PlanError) as error:
        resolve(job, world_of(1, devices), corpus_of(job), read_teacher=teacher_model)
    return error.value.problems


def test_the_model_of_the_teacher_is_that_of_its_record(tmp_path: Path) -> None:
    model = {**LARGE, "dropout": 0.1, "vocab_size": 257}
    job = distill_job(saved(tmp_path / "1", job_of(model=model)))
    plan = resolve(job, world_of(1, 2), corpus_of(job), read_teacher=teacher_model)
    assert plan.teacher
    found = plan.teacher.model
    assert (found.layers, found.d_model, found.dropout) == (3, 48, 0.0)
    kernel = next(one for one in plan.teacher.parameters if one.name == "layers.mlp.up.kernel")
    assert kernel.shape == (3, 48, 96) and "fsdp" in kernel.spec and not kernel.is_trained
    assert {one.name for one in plan.parameters} == {one.name for one in plan.trained}


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"lora": {"rank": 2}, "checkpoint": {"every_steps": 1, "init_from": "base"}},
         "lora", "does not support this section"),
        ({"integrity": {"replay_every": 9}, "checkpoint": {"every_steps": 1}},
         "integrity", "does not support this section"),
        ({"mesh": {"pipeline": 2}, "data": {"grad_accum_steps": 2}},
         "mesh.pipeline", "distill runs on one stage"),
        ({"optimizer": {"z_loss": 1e-4}}, "optimizer.z_loss", "distill has its own loss"),
        ({"mesh": {"context": 2}}, "mesh.context", "distill needs whole sequences"),
        ({"model": {"module": "my.model:build"}}, "distill", "a custom model"),
    ],
)  # fmt: skip
def test_other_sections_are_refused(tmp_path: Path, changes: Any, key: str, message: str) -> None:
    (found,) = problems(distill_job(saved(tmp_path / "1"), **changes))
    assert found[0] == key and message in found[1]


def test_preferences_are_refused_beside_a_teacher(tmp_path: Path) -> None:
    found = problems(distill_job(saved(tmp_path / "1"), dpo={"beta": 0.1}))
    assert ("dpo", "distill does not support this section. Remove one of them") in found


@pytest.mark.parametrize(
    ("teacher", "fields", "key", "message"),
    [
        ({"model": {**LARGE, "vocab_size": 300}}, {}, "model.vocab_size", "300 tokens, found 257"),
        ({"data": {"tokenizer": "other.json"}}, {}, "data.tokenizer", "other.json, found bytes"),
        ({"model": {**LARGE, "heads": 3, "kv_heads": 3}}, {}, "mesh.tensor", "for the teacher"),
        ({"model": {**LARGE, "positions": "learned", "max_positions": 16}}, {}, "data.seq_len",
         "more than the teacher's 16 learned positions"),
        ({"model": {"module": "my.model:build"}}, {}, "distill.teacher", "is of a custom model"),
        ({}, {"base": Base(source="/b", step=1, digests={})}, "distill.teacher", "only adapters"),
    ],
)  # fmt: skip
def test_a_teacher_that_does_not_fit_is_refused(
    tmp_path: Path, teacher: Any, fields: Any, key: str, message: str
) -> None:
    folder = saved(tmp_path / "1", job_of(**teacher), **fields)
    (found,) = problems(distill_job(folder, mesh={"tensor": 2}))
    assert found[0] == key and message in found[1]


def test_a_trained_tokenizer_must_be_the_teachers(tmp_path: Path) -> None:
    folder = saved(tmp_path / "1", job_of(data={"tokenizer": {"train": 300}}))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (found,) = problems(distill_job(folder))
    assert found[0] == "data.tokenizer" and f"Set data.tokenizer to {folder}" in found[1]


def hugging_face(folder: Path, tokenizer: str = "", **model: Any) -> Path:
    """A folder of which planning reads the config and the tokenizer."""
    folder.mkdir()
    written = make(job_of(model={**LARGE, **model}), "float32")
    (folder / CONFIG).write_text(json.dumps(written), encoding="utf-8")
    if tokenizer:
        (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return folder


def test_the_model_of_a_teacher_from_hugging_face_is_that_of_its_config(tmp_path: Path) -> None:
    job = distill_job(hugging_face(tmp_path / "large"))
    plan = resolve(job, world_of(1, 2), corpus_of(job), read_teacher=teacher_model)
    assert plan.teacher
    found = plan.teacher.model
    assert (found.layers, found.d_model, found.vocab_size) == (3, 48, 257)


@pytest.mark.parametrize(
    ("model", "tokenizer", "key", "message"),
    [
        ({"vocab_size": 300}, "", "model.vocab_size", "300 tokens, found 257"),
        ({}, TOKENIZER, "data.tokenizer", "not the teacher's. Set it to"),
        ({}, "{}", "distill.teacher", "is not a Hugging Face tokenizer.json"),
        ({"heads": 3, "kv_heads": 3}, "", "mesh.tensor", "for the teacher"),
    ],
)
def test_a_teacher_from_hugging_face_that_does_not_fit_is_refused(
    tmp_path: Path, model: Any, tokenizer: str, key: str, message: str
) -> None:
    folder = hugging_face(tmp_path / "large", tokenizer, **model)
    (found,) = problems(distill_job(folder, mesh={"tensor": 2}))
    assert found[0] == key and message in found[1]


def test_each_key_of_a_config_that_is_not_supported_is_a_problem(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "large")
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CONFIG).write_text(json.dumps({**config, "hidden_act": "relu", "mlp_bias": True}))
    found = problems(distill_job(folder))
    assert [key for key, _ in found] == ["distill.teacher"] * 2
    assert "hidden_act is 'relu'" in found[0][1] and "mlp_bias is true" in found[1][1]


@pytest.mark.parametrize(("content", "is_same"), [(TOKENIZER, True), (OTHER_TOKENIZER, False)])
def test_tokens_and_ids_of_a_teacher_from_hugging_face_must_be_the_jobs(
    tmp_path: Path, content: str, is_same: bool
) -> None:
    folder = hugging_face(tmp_path / "large", TOKENIZER, vocab_size=3)
    own = tmp_path / "own.json"
    own.write_text(content + "\n", encoding="utf-8")
    job = distill_job(folder, data={"tokenizer": str(own)})
    if is_same:
        assert teacher_model(job).d_model == 48
        return
    with pytest.raises(PlanError, match=f"data.tokenizer: not the teacher's. Set it to {folder}"):
        teacher_model(job)


@pytest.mark.parametrize("text", ["nowhere", "s3://bucket/run"])
def test_a_folder_without_a_teacher_has_file_line_and_key(tmp_path: Path, text: str) -> None:
    job = f"{JOB}distill: {{teacher: {text}}}\n"
    with pytest.raises(ConfigError) as error:
        planned(tmp_path / "job.yaml", job, "local")
    (found,) = error.value.problems
    assert found.key == "distill.teacher"
    assert str(found).startswith(f"{tmp_path / 'job.yaml'}:5: distill.teacher: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weight", 0.0),
        ("weight", 1.1),
        ("temperature", 0.0),
        ("teacher", "run:base@3"),
        ("teacher", ""),
    ],
)
def test_values_out_of_range_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"distill.{key}"):
        distill_job(tmp_path, distill={key: value})


def test_a_resumed_run_reports_other_settings(tmp_path: Path) -> None:
    first, now = (distill_job(tmp_path, distill={"weight": weight}) for weight in (0.5, 0.6))
    found = compare(about_of(first), now, None)
    assert not found.errors and found.notes == ["distill.weight: 0.5 -> 0.6"]
