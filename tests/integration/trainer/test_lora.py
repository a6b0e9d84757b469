"""Adapters: trained in place of the model that they are beside."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import gang
from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.model_folders import loaded, logits_of
from tests.support.sampling import sampled
from tests.support.saves import Kept
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.initial_state import InitialState, begin
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.weights import initial
from trainer.contract.config.job import Job
from trainer.contract.estimates.flops import flops_per_token
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.compatibility import compare
from trainer.distributed import mesh as meshes
from trainer.step.train_step import TrainProgram
from trainer.tools import export_checkpoint, sample_checkpoint

LORA: dict[str, Any] = {
    "lora": {"rank": 4, "alpha": 8.0},
    "checkpoint": {"every_steps": 1, "init_from": "base"},
    "optimizer": {"learning_rate": 1e-2},
}
MESHES = {"2x2": {"fsdp": 2, "tensor": 2}, "4x1": {"fsdp": 4}}
SMALL = {"layers": 1, "d_model": 16, "heads": 2, "kv_heads": 2, "d_ff": 32}


def _program(job: Job, devices: int = 1) -> TrainProgram:
    plan = resolve(job, world_of(1, devices), corpus_of(job))
    return TrainProgram.of(job, plan, meshes.build(plan, jax.devices()[:devices]))


def _losses(devices: int, mesh: dict[str, int]) -> list[float]:
    made = bench(job_of(steps=20, mesh=mesh, **LORA), devices)
    return [float(metrics.loss) for metrics in made.run(20)[1]]


@pytest.mark.full
@pytest.mark.slow
def test_losses_are_the_same_on_every_mesh():
    alone = _losses(1, {})
    assert alone[-1] < alone[0] - 0.1
    for mesh in (*MESHES.values(), {"fsdp": 2, "context": 2}):
        np.testing.assert_allclose(_losses(4, mesh), alone, rtol=0, atol=1e-4)


def test_the_first_loss_is_that_of_the_base():
    jobs = (job_of(**changes, model=SMALL) for changes in ({}, LORA))
    (plain,), (adapted,) = (bench(job).run(1)[1] for job in jobs)
    assert adapted.loss == plain.loss


def test_only_adapters_move_and_the_base_waits_in_the_compute_type():
    """With all that an optimizer can have."""
    settings = {
        "name": "muon", "ema_decay": 0.9, "learning_rate": 1e-2,
        "param_groups": [{"pattern": "*.lora.b", "learning_rate_factor": 2.0}],
    }  # fmt: skip
    model = {**SMALL, "compute_dtype": "bfloat16"}
    made = bench(job_of(**{**LORA, "model": model, "optimizer": settings}), 4)
    state = jax.device_get(made.run(2)[0])
    first: Any = made.first
    assert state.params.keys() == state.average.keys()
    assert all(".lora." in name for name in state.params)
    assert all(np.any(array != first.params[name]) for name, array in state.params.items())
    for name, array in state.frozen_params.items():
        np.testing.assert_array_equal(array, first.frozen_params[name])
        assert array.dtype == ("float32" if name.endswith("norm.scale") else "bfloat16")


@pytest.mark.parametrize(
    ("name", "compute_dtype"),
    sampled(
        {
            f"{name}-{dtype}": (name, dtype)
            for name in ("adamw", "lion", "muon")
            for dtype in ("float32", "bfloat16")
        },
        ["adamw-bfloat16", "muon-float32"],
    ),
)
def test_what_a_device_holds_is_what_the_plan_says(name, compute_dtype):
    model = {"compute_dtype": compute_dtype}
    changes = {"model": model, "optimizer": {"name": name}, "mesh": MESHES["2x2"]}
    job = job_of(**{**LORA, **changes})
    plan = resolve(job, world_of(1, 4), corpus_of(job))
    state = _program(job, 4).initial_state()

    def held(tree: Any) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree) if x.ndim)

    assert held(state.weights) == sum(array.bytes_per_device for array in plan.parameters)
    assert held(state.optimizer) == optimizer_state.bytes_per_device(job.optimizer, plan)
    estimate = footprint(job, plan)
    assert estimate.state == held((state.weights, state.optimizer))
    assert estimate.gradients == held(state.params)


def test_a_frozen_weight_costs_two_products_and_a_trained_one_three():
    plain, adapted = (job_of(**changes) for changes in ({}, LORA))
    plans = [resolve(job, world_of(), corpus_of(job)) for job in (plain, adapted)]
    before, now = (flops_per_token(j, p) for j, p in zip((plain, adapted), plans, strict=True))
    adapters = sum(np.prod(array.shape) for array in plans[1].trained)
    kernels = {"embedding.table"} | {
        array.name for array in plans[0].parameters if array.name.endswith(".kernel")
    }
    base = sum(np.prod(array.shape) for array in plans[0].parameters if array.name in kernels)
    assert now == before - 2 * base + 6 * adapters


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"checkpoint": None}, "checkpoint.init_from", "lora needs a base model"),
        ({"lora": {"rank": 2, "targets": ["quary"]}}, "lora.targets.0", "Did you mean 'query'?"),
        (
            {"lora": {"rank": 2, "targets": ["*.query.*", "embedding.*"]}},
            "lora.targets.1",
            "'embedding.*' matches only embedding.table, without support for adapters. Ker",
        ),
        (
            {"lora": {"rank": 2, "targets": ["*.up.*"]}, "model": {"moe": {"count": 2}}},
            "lora.targets.0",
            "without support for adapters",
        ),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_what_was_meant(changes, key, message):
    job = job_of(**{**LORA, **changes})
    with pytest.raises(PlanError) as error:
        resolve(job, world_of(), corpus_of(job))
    ((found, said),) = error.value.problems
    assert found == key
    assert message in said


def test_experts_models_have_adapters_in_their_attention():
    job = job_of(**{**LORA, "model": {"moe": {"count": 2}}})
    plan = resolve(job, world_of(), corpus_of(job))
    assert {array.name.split(".")[1] for array in plan.trained} == {"attention"}


@dataclass(frozen=True)
class Adapted:
    """An attempt of a run that trains adapters beside a real base."""

    kept: Kept
    start: InitialState

    @classmethod
    def of(cls, run_dir: Path, base: Path, attempt: int = 1, devices: int = 4, **changes: Any):
        policy = {"every_steps": 1, "keep": 10, "init_from": str(base)}
        job = {**LORA, "model": SMALL, "checkpoint": policy, "mesh": MESHES["2x2"], **changes}
        kept = Kept.of(run_dir, devices, attempt, **job)
        made = kept.made
        restorer = kept.checkpoints.restorer(kept.said)
        with jax.set_mesh(made.program.mesh):
            start = begin(made.program, made.plan, restorer, kept.said, kept.said.events)
        return cls(kept, start)

    def train(self, steps: int) -> tuple[Any, list[float]]:
        """The state after so many steps in all, and the losses on the way."""
        made, losses = self.kept.made, []
        state, batches = self.start.state, made.loader.training(self.start.step + 1)
        for _ in range(self.start.step, steps):
            state, metrics = made.compiled(state, next(batches))
            losses.append(float(metrics.loss))
        return state, losses

    def save(self, step: int, state: Any) -> Path:
        opened = self.kept.checkpoints
        run = replace(opened.run, base=self.start.base)
        saver = Saver(opened.folder, opened.lease, run, self.kept.said)
        saver.save(Progress(step, step * 8, 1.0, None), state)
        assert saver.poll(wait=True) is None
        return self.kept.folder / str(step)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("base")
    Kept.of(run_dir, 4, model=SMALL, mesh=MESHES["2x2"]).saved(2)
    return run_dir


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """The folder of a run of two steps, its last checkpoint, and the losses of four."""
    run_dir = tmp_path_factory.mktemp("adapted")
    run = Adapted.of(run_dir, base)
    state, losses = run.train(2)
    folder = run.save(2, state)
    kept = jax.device_get(state)
    run = Adapted.of(run_dir, base, attempt=2)
    return run_dir, folder, kept, losses + run.train(4)[1]


def test_a_checkpoint_holds_adapters_alone_and_names_their_base(base, adapted):
    _, folder, state, _ = adapted
    about = checkpoint_metadata.read(folder)
    names = {name.split(".", 1)[1] for name in about.arrays if name.startswith("params.")}
    assert names == set(state.params)
    whole = checkpoint_metadata.read(base / "checkpoints" / "2")
    assert about.base
    assert (about.base.source, about.base.step) == (str(base / "checkpoints" / "2"), 2)
    assert about.base.digests == {
        name: whole.arrays[f"params.{name}"].digest for name in about.base.digests
    }
    held = sum(4 * np.prod(array.shape) for array in about.arrays.values())
    assert held == 4 * (3 * sum(array.size for array in state.params.values()) + 2)


def test_a_resumed_run_computes_what_the_one_that_never_stopped_does(base, adapted, tmp_path):
    _, _, _, losses = adapted
    assert Adapted.of(tmp_path, base).train(4)[1] == losses


def test_another_mesh_takes_it_up(base, adapted):
    run_dir, _, state, losses = adapted
    run = Adapted.of(run_dir, base, attempt=3, mesh=MESHES["4x1"])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(run.start.state), state)
    np.testing.assert_allclose(run.train(4)[1], losses[2:], rtol=1e-4)


def test_another_base_is_refused_and_adapters_are_none(base, adapted):
    run_dir, folder, *_ = adapted
    known = checkpoint_metadata.read(folder).base
    assert known
    name = "layers.attention.query.kernel"
    other = known.model_copy(update={"digests": {**known.digests, name: 1}})
    program = _program(job_of(**LORA, model=SMALL))
    assert initial(str(base), program, known).base == known
    with pytest.raises(
        FolderError, match=rf"does not have the weights that the run began with.* {name} differ"
    ):
        initial(str(base), program, other)
    with pytest.raises(FolderError, match="contains only adapters"):
        initial(str(run_dir), program)


def test_a_run_goes_on_with_its_own_adapters_only(adapted):
    _, folder, *_ = adapted
    job = job_of(**{**LORA, "model": SMALL, "lora": {"rank": 2, "alpha": 8.0}})
    found = compare(checkpoint_metadata.read(folder), job, None)
    assert found.errors == [
        "lora.rank: 4 -> 2: step 2 does not have these adapters; start a new run"
    ]
    plain = compare(checkpoint_metadata.read(folder), job.model_copy(update={"lora": None}), None)
    assert "lora: " in plain.errors[0]


def test_an_export_is_the_model_with_its_adapters(adapted, tmp_path, monkeypatch):
    """Logits of one are those of the other."""
    _, folder, state, _ = adapted
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["export", str(folder), "--to", str(out)])
    assert export_checkpoint.main() == 0
    job = job_of(model=SMALL)
    network = _program(job_of(**LORA, model=SMALL)).network
    tokens_BS = jnp.arange(16)[None]
    ours = logits_of(network, state.weights, tokens_BS)
    theirs = logits_of(_program(job).network, loaded(out, job), tokens_BS)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    without = {name: jnp.zeros_like(array) for name, array in state.params.items()}
    plain = logits_of(network, {**state.weights, **without}, tokens_BS)
    assert np.abs(plain - ours).max() > 1e-2


def test_the_base_can_be_a_folder_of_hugging_face(base, adapted, tmp_path, monkeypatch):
    _, folder, _, losses = adapted

    def exported(checkpoint: Path, name: str) -> Path:
        monkeypatch.setattr("sys.argv", ["export", str(checkpoint), "--to", str(tmp_path / name)])
        assert export_checkpoint.main() == 0
        return tmp_path / name

    model, run_dir = exported(base / "checkpoints" / "2", "model"), tmp_path / "run"
    run = Adapted.of(run_dir, model)
    state, first = run.train(2)
    saved = run.save(2, state)
    assert first + Adapted.of(run_dir, model, attempt=2).train(4)[1] == losses
    ours, theirs = (
        loaded(exported(one, name), job_of(model=SMALL))
        for one, name in ((saved, "ours"), (folder, "theirs"))
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.full
@pytest.mark.slow
def test_two_processes_train_adapters_and_one_goes_on(base, tmp_path, monkeypatch, capsys):
    changes = {
        "model": SMALL,
        # Of another schedule the first steps would depend on their number.
        "optimizer": {"learning_rate": 1e-2, "schedule": "constant"},
        "checkpoint": {"every_steps": 2, "init_from": str(base)},
        "eval": {"every_steps": 2, "batches": 1},
        "sample": {"tokens": 20, "temperature": 0.0},
    }
    job = job_of(**{**LORA, **changes}, steps=2)
    ended = gang.run(job, world_of(2, 1), tmp_path)
    assert ended.codes == [0, 0], "\n".join(ended.outputs)
    monkeypatch.setattr(
        "sys.argv",
        ["sample", str(tmp_path / "checkpoints" / "2"), "--tokens=20", "--temperature=0"],
    )
    assert sample_checkpoint.main() == 0
    assert capsys.readouterr().out.strip("\n") == (tmp_path / "sample.txt").read_text().strip("\n")
    longer = job.model_copy(update={"steps": 4})
    alone = gang.run(longer, world_of(1, 1), tmp_path, attempt=2)
    assert alone.codes == [0], "\n".join(alone.outputs)
    whole = gang.run(longer, world_of(1, 1), tmp_path / "whole")
    np.testing.assert_allclose(alone.losses(), whole.losses(), rtol=1e-4)
    evaluations = [line["eval_loss"] for line in alone.lines() if "eval_loss" in line]
    assert len(evaluations) == 2 and evaluations[1] != evaluations[0]
    about = json.loads((tmp_path / "checkpoints" / "4" / "about.json").read_text())
    assert about["base"]["step"] == 2
