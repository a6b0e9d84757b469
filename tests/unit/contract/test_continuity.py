"""What may change between a checkpoint and the run that goes on from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkpoint_metadata_builders import about_of
from tests.support.worlds import tiny_job
from trainer.contract.config.job import Job
from trainer.contract.protocol import versions
from trainer.contract.records.compatibility import (
    DATA_KEYS,
    MODEL_KEYS,
    OPTIMIZER_KEYS,
    code_of,
    compare,
    program_changes,
)

BASE = tiny_job()
NUMBERS = {
    "steps": 40, "seed": 1, "log_every": 5,
    "model.layers": 7, "model.d_ff": 96, "model.vocab_size": 300, "model.rope_theta": 5e5,
    "model.norm_eps": 1e-6, "model.tied_embeddings": False, "model.dropout": 0.1,
    "model.remat": "full", "model.offload": ["qkv"], "model.scan_layers": False,
    "model.precision": "int8",
    "data.seq_len": 32, "data.global_batch": 8, "data.validation_fraction": 0.5,
    "data.mask_across_documents": False, "data.grad_accum_steps": 2, "data.source": "text",
    "data.path": "x/*.txt", "mesh.tensor": 2, "mesh.data": 2,
    "optimizer.learning_rate": 1e-3, "optimizer.schedule": "linear", "optimizer.name": "lion",
    "optimizer.moments_dtype": "bfloat16", "optimizer.z_loss": 1e-4,
    "optimizer.offload_moments": True,
    "optimizer.param_groups": [{"pattern": "*norm*", "weight_decay": 0.1}],
    "eval": None,
    "eval.every_steps": 7, "sample": None, "checkpoint.keep": 9, "name": "other",
    "storage": "/shared",
}  # fmt: skip
"""A value for many keys, each another one than the default."""
SILENT = {"log_every", "mesh.tensor", "mesh.data", "sample", "name"}


def changed(**values: Any) -> Job:
    """The base job with dotted keys (`__` for dots) replaced."""
    raw = BASE.model_dump()
    for key, value in values.items():
        *above, name = key.split(".")
        section = raw
        for part in above:
            section = section[part]
        section[name] = value
    return Job.model_validate(raw)


def test_the_same_job_goes_on_without_a_word() -> None:
    found = compare(about_of(BASE), BASE, "a" * 64)
    assert (found.errors, found.notes) == ([], [])


@pytest.mark.parametrize("key", NUMBERS)
def test_every_change_is_reported_once_in_its_category(key: str) -> None:
    found = compare(about_of(BASE), changed(**{key: NUMBERS[key]}), None)
    is_error = key in MODEL_KEYS | DATA_KEYS | OPTIMIZER_KEYS
    assert len(found.errors) == is_error
    assert len(found.notes) == (not is_error and key not in SILENT)
    assert all(text.startswith(f"{key}: ") for text in found.errors + found.notes)


@given(st.sets(st.sampled_from(sorted(NUMBERS.keys() - {"eval"}))))
def test_changes_add_up(keys: set[str]) -> None:
    """Several changes give what each gives alone, whatever their mix."""
    together = compare(about_of(BASE), changed(**{k: NUMBERS[k] for k in keys}), None)
    alone = [compare(about_of(BASE), changed(**{k: NUMBERS[k]}), None) for k in keys]
    assert sorted(together.errors) == sorted(text for one in alone for text in one.errors)
    assert sorted(together.notes) == sorted(text for one in alone for text in one.notes)


@given(st.sets(st.sampled_from(sorted(DATA_KEYS & NUMBERS.keys()))))
def test_other_data_is_a_note_where_the_user_says_so(keys: set[str]) -> None:
    job = changed(**{"checkpoint.on_data_change": "continue"}, **{k: NUMBERS[k] for k in keys})
    found = compare(about_of(BASE), job, "b" * 64)
    assert found.errors == []
    assert len(found.notes) == len(keys) + 1


def test_messages_have_both_values() -> None:
    found = compare(about_of(BASE), changed(**{"model.layers": 7, "data.seq_len": 32}), None)
    assert found.errors == [
        "model.layers: 2 -> 7: the weights of step 10 belong to another model",
        "data.seq_len: 64 -> 32: step 10 was trained on other data; "
        "set checkpoint.on_data_change=continue to resume with the new data",
    ]
    found = compare(about_of(BASE), changed(eval=None), None)
    assert found.notes == [
        "eval: {every_steps: 100, batches: 8, multiple_choice: null, tasks: []} -> null"
    ]


def test_another_corpus_is_an_error_and_an_unseen_one_is_not() -> None:
    (error,) = compare(about_of(BASE), BASE, "b" * 64).errors
    assert error.startswith("corpus: aaaaaaaaaaaa -> bbbbbbbbbbbb: ")
    assert compare(about_of(BASE), BASE, None).errors == []


def test_moments_of_another_type_are_refused() -> None:
    (error,) = compare(
        about_of(BASE), changed(**{"optimizer.moments_dtype": "bfloat16"}), None
    ).errors
    assert error.startswith("optimizer.moments_dtype: float32 -> bfloat16: the moments of step 10")


def test_a_mean_of_the_weights_can_be_given_up_but_not_begun_later() -> None:
    averaged = changed(**{"optimizer.ema_decay": 0.9})
    (error,) = compare(about_of(BASE), averaged, None).errors
    assert error.startswith(
        "optimizer.ema_decay: null -> 0.9: step 10 has no average of the weights; "
    )
    for now in (None, 0.99):
        found = compare(about_of(averaged), changed(**{"optimizer.ema_decay": now}), None)
        assert (found.errors, len(found.notes)) == ([], 1)


def test_the_vocabulary_of_the_tokenizer_may_be_said_or_not() -> None:
    assert compare(about_of(BASE), changed(**{"model.vocab_size": 257}), None).errors == []


def test_a_key_that_the_checkpoint_does_not_know_is_no_change() -> None:
    saved = BASE.model_dump(mode="json")
    del saved["optimizer"]["eps"], saved["storage"]
    assert compare(about_of(BASE, job=saved), changed(storage="/s"), None).notes == []


def test_another_corpus_is_another_trained_tokenizer_whatever_is_allowed() -> None:
    job = changed(**{"data.tokenizer": {"train": 300}, "checkpoint.on_data_change": "continue"})
    (error,) = compare(about_of(job), job, "b" * 64).errors
    assert "the tokenizer of step" in error and "tokenizer.json" in error


def test_another_size_of_a_trained_tokenizer_is_another_model() -> None:
    job, now = (changed(**{"data.tokenizer": {"train": size}}) for size in (300, 301))
    (error,) = compare(about_of(job), now, "a" * 64).errors
    assert error.startswith("data.tokenizer.train: 300 -> 301: the weights")


def test_another_version_of_a_package_and_other_code_are_changes() -> None:
    now = {"code": code_of(BASE), "versions": versions.versions()}
    assert program_changes(about_of(BASE, **now), BASE) == []
    older = {"code": "0" * 64, "versions": {**versions.versions(), "jax": "0.1"}}
    changes = program_changes(about_of(BASE, **older), BASE)
    assert changes == [
        f"jax: 0.1 -> {versions.versions()['jax']}",
        f"code: {'0' * 12} -> {code_of(BASE)[:12]}",
    ]
