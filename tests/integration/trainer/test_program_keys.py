"""What a compiled program is found by."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.config.job import Job
from trainer.contract.config.program_keys import WITHOUT_EFFECT
from trainer.contract.planning.plan import Corpus, Replay
from trainer.contract.planning.planner import resolve
from trainer.contract.planning.save_interval import SaveStatistics
from trainer.programs import keys

WORLD = world_of(2, 2)
CHANGES: dict[str, tuple[bool, Any]] = {
    "name": (False, "other"),
    "storage": (False, "/elsewhere"),
    "after": (False, ["other"]),
    "retries": (False, {"failures": 9}),
    "deadlines": (False, {"step_s": 99.0}),
    "secrets": (False, ["TOKEN"]),
    "priority": (False, 9),
    "preemptible": (False, True),
    "budget": (False, {"hours": 9.0}),
    "notify": (False, []),
    "sweep": (False, {"values": {"seed": [1, 2]}}),
    "steps": (False, 99),
    "stop_after_step": (False, 2),
    "seed": (False, 9),
    "log_every": (False, 9),
    "tensorboard": (False, True),
    "wandb": (False, {"project": "other"}),
    "model": (True, {"layers": 1}),
    "lora": (True, {"rank": 2}),
    "dpo": (True, {"beta": 0.2}),
    "distill": (True, {"teacher": "base"}),
    "data": (True, {"seq_len": 16}),
    "mesh": (True, {"tensor": 2}),
    "optimizer": (True, {"clip_norm": 9.0}),
    "eval": (False, {"batches": 9}),
    "sample": (True, {"temperature": 0.9}),
    "checkpoint": (False, {"every_steps": 9}),
    "profile": (False, {"steps": [1, 2]}),
    "on_spike": (False, "skip"),
    "integrity": (False, {"replay_every": 9}),
}
"""Each key of a job: whether it changes programs, and another value."""


def key(**changes: Any) -> str:
    job = job_of(**{"checkpoint": {"every_steps": 1}, **changes})
    # Adapters need a base model to be planned, and preferences need adapters.
    planned = job.model_copy(update={"lora": None, "dpo": None, "distill": None})
    plan = resolve(planned, WORLD, corpus_of(job))
    return keys.of_job(job, plan, jax.devices()[0])


def test_every_key_of_a_job_is_classified() -> None:
    assert CHANGES.keys() == Job.model_fields.keys()
    assert {name for name, (has_effect, _) in CHANGES.items() if not has_effect} == (
        WITHOUT_EFFECT | {"seed"}
    )


@pytest.mark.parametrize("name", CHANGES)
def test_a_jobs_key_changes_exactly_with_what_changes_programs(name: str) -> None:
    has_effect, other = CHANGES[name]
    assert (key(**{name: other}) != key()) == has_effect


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"learning_rate": 0.5}},
        {"optimizer": {"warmup_steps": 3, "final_fraction": 0.5}},
        {"data": {"validation_fraction": 0.2}},
    ],
)
def test_parts_of_sections_without_effect_are_left_out(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


def test_the_seed_changes_programs_of_steps_that_draw_random_numbers() -> None:
    first, second = (key(seed=seed, model={"dropout": 0.1}) for seed in (1, 2))
    assert first != second


def test_the_folder_of_a_teacher_changes_no_program() -> None:
    folders = ("base", "copy")
    first, second = (key(distill={"teacher": folder}) for folder in folders)
    assert first == second


@pytest.mark.parametrize(
    "part",
    [
        {"corpus": Corpus(source="stdlib", sha256="0")},
        {"save_statistics": SaveStatistics(faults=3)},
        {"replay": Replay(checkpoint=None, first_step=1)},
    ],
)
def test_parts_of_the_plan_without_effect_are_left_out(part: dict[str, Any]) -> None:
    job = job_of()
    plan = resolve(job, WORLD, corpus_of(job))
    changed = plan.model_copy(update=part)
    device = jax.devices()[0]
    assert keys.of_job(job, changed, device) == keys.of_job(job, plan, device)


@pytest.mark.parametrize(
    ("variable", "has_effect"),
    [
        ("LIBTPU_INIT_ARGS", True), ("XLA_FLAGS", True), ("JAX_DEFAULT_MATMUL_PRECISION", True),
        ("TPU_WORKER_HOSTNAMES", False), ("TPU_NAME", False), ("JAX_COORDINATOR_ADDRESS", False),
    ],
)  # fmt: skip
def test_variables_change_the_key_unless_they_name_hosts(
    variable: str, has_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(), keys.of_machine(jax.devices()[0])
    monkeypatch.setenv(variable, "other")
    after = key(), keys.of_machine(jax.devices()[0])
    assert (before != after) == has_effect
    assert (before[0] != after[0]) == (before[1] != after[1])


def test_names_differ_by_shape_dtype_device_and_result() -> None:
    def on(number: int) -> SingleDeviceSharding:
        return SingleDeviceSharding(jax.devices()[number])

    def array(shape: tuple[int, ...], dtype: Any, number: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=on(number))

    def double(x: jax.Array) -> jax.Array:
        return 2 * x

    names = [
        keys.name(double, (array((4,), jnp.float32, 0),)),
        keys.name(double, (array((5,), jnp.float32, 0),)),
        keys.name(double, (array((4,), jnp.int32, 0),)),
        keys.name(double, (array((4,), jnp.float32, 1),)),
        keys.name(double, (array((4,), jnp.float32, 0),), on(1)),
    ]
    assert len(set(names)) == len(names)
    assert names[0] == keys.name(double, (array((4,), jnp.float32, 0),))


def test_another_source_of_a_custom_model_has_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "keyed_model.py").write_text("import keyed_layers")
    (tmp_path / "keyed_layers.py").write_text("width = 4")
    plan = resolve(job_of(), WORLD, corpus_of(job_of()))
    job = job_of(model={"module": "keyed_model:build"})
    device = jax.devices()[0]
    before = keys.of_job(job, plan, device)
    assert keys.of_job(job, plan, device) == before
    (tmp_path / "keyed_layers.py").write_text("width = 8")
    assert keys.of_job(job, plan, device) != before


def test_the_text_of_a_program_has_all_of_its_constants() -> None:
    """A constant that the text left out would give another program the same name."""
    size = 4096

    def name(last: int) -> str:
        constant = np.arange(size)
        constant[-1] = last
        lowered = jax.jit(lambda x: x + constant).lower(jax.ShapeDtypeStruct((size,), jnp.int32))
        return keys.of_text(lowered, jax.devices()[:1])

    assert name(1) != name(2)
    assert name(1) == name(1)


def test_the_devices_of_a_program_and_their_order_are_part_of_its_name() -> None:
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4,), jnp.int32))
    one, two, *_ = jax.devices()
    names = [keys.of_text(lowered, devices) for devices in ([one, two], [two, one], [one])]
    assert len(set(names)) == len(names)
