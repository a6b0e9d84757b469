"""A model of the user's own: the same numbers on any mesh, and clear words for what is wrong."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.saves import Kept
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.planner import PlanError, resolve
from trainer.evaluation.evaluate import Evaluator
from trainer.model import custom
from trainer.preflight import code_of

STEPS = 20
EXAMPLE = {"module": "jobs.own_model:build", "args": {"width": 16, "hidden": 32}}
GOOD = """\
import jax.numpy as jnp
from flax import nnx

class Model(nnx.Module):
    def __init__(self, vocab_size, rngs):
        self.table = nnx.Param(jnp.zeros((vocab_size, 4)), out_sharding=("vocab", "embed"))

    def loss(self, batch, keys_B):
        return self.table[...][batch.tokens].sum(axis=-1)

def build(vocab_size, rngs):
    return Model(vocab_size, rngs)
"""
WRONG = {
    "a line that is no Python": ("import jax.numpy as jnp", "import =", r"\.py:1: SyntaxError"),
    "a module that is not there": ("import jax.numpy as jnp", "import nowhere", "'nowhere'"),
    "no such function": ("def build", "def make", "has no function 'build'"),
    "an exception": (
        "    return Model(vocab_size, rngs)",
        "    raise KeyError('width')",
        r"\w+\.py:12 in build: KeyError: 'width'",
    ),
    "not a module": ("return Model(vocab_size, rngs)", "return 3", "returns int, expected an nnx"),
    "no loss": ("def loss", "def cost", r"Model of \S+ has no method loss\(batch, keys_B\)"),
    "no axes": ('out_sharding=("vocab", "embed")', "", r"table \(257, 4\) has no logical axes"),
    "too few axes": ('"vocab", "embed"', '"vocab",', "each dim needs a name"),
    "an unknown axis": ('"embed"', '"embd"', "unknown logical axis 'embd'. Did you mean 'embed'?"),
    "two dims for one mesh axis": ('"embed"', '"mlp"', "tensor would split more than one dim"),
    "another type": ("(vocab_size, 4)", "(vocab_size, 4), 'bfloat16'", "table is bfloat16"),
    "a state of its own": (
        "out_sharding",
        "out_sharding=('vocab', 'embed')); self.seen = nnx.BatchStat(jnp.zeros(3), out_sharding",
        "seen is a BatchStat: all variables of a model must be nnx.Param",
    ),
    "a mean": ("sum(axis=-1)", "mean()", r"returns float32 \(\), expected a float for each target"),
    "a loss that fails": (
        "batch.tokens]",
        "batch.tokens] @ batch",
        r"loss of \S+: \w+\.py:9 in loss: \w+Error: ",
    ),
}  # fmt: skip
QUICK = {"learning_rate": 3e-2, "warmup_steps": 0}
numbers = itertools.count()


def example(**changes):
    return job_of(steps=STEPS, model=EXAMPLE, optimizer=QUICK, **changes)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Makes a job on a module with this text, of a name that was never imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(text: str):
        name = f"own_model_{next(numbers)}"
        Path(f"{name}.py").write_text(text)
        return job_of(model={"module": f"{name}:build"})

    return write


def plan_of(job):
    return resolve(job, world_of(), corpus_of(job), custom.parameters)


@pytest.fixture(scope="module")
def alone():
    return bench(example()).run(STEPS)[1]


@pytest.mark.parametrize(
    "mesh", [{"fsdp": 4}, {"fsdp": 2, "tensor": 2}], ids=["4x1", "2x2, micro-batches"]
)
def test_losses_are_those_of_one_device(alone, mesh):
    parts = mesh.get("tensor", 1)
    job = example(mesh=mesh, data={"grad_accum_steps": parts})
    found = bench(job, 4).run(STEPS)[1]
    np.testing.assert_allclose([m.loss for m in found], [m.loss for m in alone], rtol=1e-4)
    assert alone[-1].loss < alone[0].loss - 0.1


def test_a_parameter_lies_where_its_axes_say():
    made = bench(example(mesh={"fsdp": 4}), 4)
    (up,) = (array for array in made.plan.parameters if array.name == "up")
    assert (up.shape, up.spec) == ((4, 16, 32), (None, "fsdp", None))
    assert made.initial().params["up"].sharding.shard_shape(up.shape) == (4, 4, 32)


def test_a_checkpoint_with_parameters_of_another_model_is_refused(tmp_path):
    """As after a change of the code, which leaves no trace in the job."""
    kept = Kept.of(tmp_path, model=EXAMPLE)
    kept.saved(1)
    path = kept.folder / "1" / "about.json"
    about = json.loads(path.read_text())
    name = next(name for name in about["arrays"] if name.startswith("params."))
    about["arrays"][name]["shape"] = [3]
    path.write_text(json.dumps(about))
    with pytest.raises(
        ConfigError, match=r"\(3,\) -> .*the weights of step 1 belong to another model"
    ):
        kept.restore()


def test_its_loss_is_what_is_evaluated():
    made = bench(example())
    found = Evaluator(made.program).evaluate(made.initial().params, [made.batch(1)])
    assert found
    np.testing.assert_allclose(found.eval_loss, made.run(1)[1][0].loss, rtol=1e-6)


@pytest.mark.parametrize(("good", "wrong", "said"), WRONG.values(), ids=WRONG)
def test_wrong_custom_model_is_reported(written, good, wrong, said):
    assert plan_of(written(GOOD)).parameters
    with pytest.raises(PlanError, match=said) as error:
        plan_of(written(GOOD.replace(good, wrong, 1)))
    assert [key for key, _ in error.value.problems] == ["model.module"]


def test_argument_unknown_to_function_is_reported(written):
    job = written(GOOD)
    other = job.model.model_copy(update={"args": {"depth": 3}})
    with pytest.raises(PlanError, match=r"model\.args: .* unexpected keyword argument 'depth'"):
        plan_of(job.model_copy(update={"model": other}))


def test_code_other_than_planned_is_reported(written):
    job = written(GOOD)
    planned = plan_of(job).parameters
    changed = written(GOOD.replace("4)", "8)"))
    with pytest.raises(PlanError, match=r"differ from the plan: table"):
        custom.CustomNetwork(changed).check_planned(planned)


@pytest.mark.parametrize(
    ("module", "its_file"),
    [
        ("model", "model.py"),
        ("package.model", "package/layers/norm.py"),
        ("folder.model", "folder/model.py"),
    ],
)
def test_a_host_with_another_source_of_it_has_other_code(tmp_path, monkeypatch, module, its_file):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("model.py", "package/__init__.py", "package/layers/norm.py", "folder/model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise AssertionError('imported')")
    job = job_of(model={"module": f"{module}:build"})
    before = code_of(job)
    (tmp_path / "folder/other.py").write_text("")
    assert code_of(job) == before
    (tmp_path / its_file).write_text("")
    assert code_of(job) != before


def test_what_only_the_decoder_can_do_is_refused(tmp_path):
    (tmp_path / "config.json").touch()
    job = job_of(
        model=EXAMPLE,
        sample={"tokens": 3},
        lora={"rank": 2},
        optimizer={"z_loss": 1e-4},
        checkpoint={"init_from": str(tmp_path)},
    )
    with pytest.raises(PlanError) as error:
        plan_of(job)
    keys = [key for key, _ in error.value.problems]
    assert keys == ["sample", "lora", "checkpoint.init_from", "optimizer.z_loss"]


def test_no_code_runs_while_a_job_is_read(written):
    job = written("raise SystemExit(3)")
    assert isinstance(job.model, CustomModel)
