"""Custom models: imports `package.module:function` and checks that it keeps its contract.

The function is called with `vocab_size`, `rngs` (an `nnx.Rngs`) and the job's `model.args`, all by
name, and returns an `nnx.Module`

- whose variables are `nnx.Param` in float32, with a logical axis of
  `trainer/contract/planning/sharding_rules.py` for each dim:
  `nnx.Param(kernel, out_sharding=("embed", "mlp"))`;
- whose method `loss(batch, keys_B)` returns the loss of each target (B, S). `batch` is a
  `trainer.data.packing.Batch`. Slipway applies the targets' weights and takes the mean. `keys_B`
  are random keys, one per example, for dropout and other randomness; None disables randomness.

The letters of dims are those of trainer/model/__init__.py.
"""

import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.custom_model_validation import KEY, known_axes
from trainer.contract.planning.parameter_shapes import Parameter
from trainer.contract.planning.plan import ArrayPlan
from trainer.contract.planning.planner import PlanError
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.data.packing import Batch
from trainer.model.seed import SEED_SHAPE

NOT_USER_CODE = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_path('stdlib')}/", "<")
PACKAGES = ("site-packages", "dist-packages")
MAX_QUOTED = 500
"""Maximum number of characters that an error quotes from an exception."""


def import_builder(model: CustomModel) -> Callable[..., Any]:
    """Imports the function that builds a custom model.

    Raises PlanError when the import fails or the function does not accept the job's arguments.
    """
    module, _, function = model.module.partition(":")
    with user_code(f"import of {module}"):
        try:
            code = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise problem(
                    f"no module '{error.name}', neither in {Path.cwd()} nor installed"
                ) from error
            raise
    build = getattr(code, function, None)
    if not callable(build):
        raise problem(f"{module} ({code.__file__}) has no function '{function}'")
    try:
        inspect.signature(build).bind(vocab_size=1, rngs=None, **model.args)
    except TypeError as error:
        raise PlanError([("model.args", f"{model.module}: {error}")]) from error
    return build


def problem(message: str) -> PlanError:
    """Returns a PlanError for the key `model.module`."""
    return PlanError([(KEY, message)])


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Converts exceptions from the user's code to PlanError, with the line in that code."""
    try:
        yield
    except PlanError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:MAX_QUOTED]
        message = f"{what}: {_location(error)}{type(error).__name__}: {text}"
        raise problem(message) from error


def _location(error: BaseException) -> str:
    """Returns "my_pkg/my_model.py:12 in build: ", the innermost line of the user's code.

    Returns "" when the user's code is not in the traceback.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_code(f.filename)]
    if not frames:
        return ""
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}: "


def _is_user_code(file: str) -> bool:
    return not file.startswith(NOT_USER_CODE) and not any(name in file for name in PACKAGES)


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


Params = dict[str, jax.Array]
Build = Callable[..., Any]


@dataclass(frozen=True)
class CustomNetwork:
    """A custom model without parameter values: the counterpart of the decoder's `Network`.

    The user's code is imported and traced at first use. Without a check, that raises
    PlanError when the model cannot be imported or built, or does not keep the contract.
    """

    job: Job

    @classmethod
    def of(cls, job: Job) -> "CustomNetwork":
        """Returns the network of a job's custom model, checked.

        Raises PlanError when it cannot be imported or built, or does not keep the contract.
        """
        network = cls(job)
        network._check()
        return network

    @cached_property
    def build(self) -> Build:
        """The user's function."""
        return import_builder(_custom_model(self.job))

    @cached_property
    def _module(self) -> nnx.Module:
        """The module with shapes instead of arrays."""
        build = self.build
        with nnx.use_eager_sharding(False), user_code(_custom_model(self.job).module):
            return nnx.eval_shape(lambda: _built(build, self.job, 0))

    @cached_property
    def graph(self) -> nnx.GraphDef:
        """The module's structure."""
        return nnx.graphdef(self._module)

    @cached_property
    def paths(self) -> dict[str, tuple[Any, ...]]:
        """Path of each parameter in the module, by name."""
        return {name: path for name, (path, _) in _variables(self._module).items()}

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Shapes and logical axes of the parameters."""
        variables = _variables(self._module)
        return [_parameter(name, variable) for name, (_, variable) in variables.items()]

    def initial(self, seed: jax.Array) -> Params:
        """Initializes parameters from a seed alone; call it under jit."""
        with nnx.use_eager_sharding(False):
            module = _built(self.build, self.job, seed)
        return {name: variable[...] for name, (_, variable) in _variables(module).items()}

    def bind(self, params: Params) -> Any:
        """Returns the module that computes with `params`."""
        flat = [(self.paths[name], array) for name, array in params.items()]
        return nnx.merge(self.graph, nnx.from_flat_state(flat))

    def check_planned(self, planned: Sequence[ArrayPlan]) -> None:
        """Raises PlanError when the model is wrong or its parameters differ from the plan."""
        self._check()
        expected = {one.name: (one.shape, one.axes) for one in planned}
        found = {one.name: (one.shape, one.axes) for one in self.parameters}
        differing = [n for n in expected | found if expected.get(n) != found.get(n)]
        if differing:
            raise problem(
                f"the parameters of {_custom_model(self.job).module} differ from the plan: "
                f"{', '.join(differing)}. Use the same code on all hosts, and do not change it "
                "after planning"
            )

    def _check(self) -> None:
        """Raises PlanError when the model cannot be built or does not keep the contract."""
        _ = self.parameters, self.graph
        self._check_loss()

    def _check_loss(self) -> None:
        """Traces the loss of an abstract batch (shapes only). Raises PlanError when it fails."""
        data = self.job.data
        rows = max(1, data.global_batch // data.grad_accum_steps)
        tokens_BS = jax.ShapeDtypeStruct((rows, data.seq_len), jnp.int32)
        weights_BS = jax.ShapeDtypeStruct((rows, data.seq_len), jnp.float32)
        examples_B = jax.ShapeDtypeStruct((rows,), jnp.int32)
        batch = Batch(tokens_BS, tokens_BS, tokens_BS, tokens_BS, weights_BS, examples_B)
        keys_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
        params = jax.eval_shape(self.initial, SEED_SHAPE)
        for keys in (keys_B, None):
            with user_code(f"loss of {_custom_model(self.job).module}"):
                found = jax.eval_shape(lambda p, b, k: self.bind(p).loss(b, k), params, batch, keys)
            _check_losses(found, tokens_BS.shape)


def parameters(job: Job) -> list[Parameter]:
    """Returns the parameters of a custom model. Raises PlanError as `CustomNetwork.of` does."""
    return CustomNetwork.of(job).parameters


def custom_losses(model: Any, batch: Batch, keys_B: jax.Array | None = None) -> jax.Array:
    """Returns the loss of each target times its weight, (B, S)."""
    return model.loss(batch, keys_B).astype(jnp.float32) * batch.weights


def _built(build: Build, job: Job, seed: jax.Array | int) -> Any:
    model = _custom_model(job)
    rngs = nnx.Rngs(jax.random.key(seed))
    module = build(vocab_size=vocab_size(job), rngs=rngs, **model.args)
    _check_kind(module, model)
    return module


def _custom_model(job: Job) -> CustomModel:
    assert isinstance(job.model, CustomModel)
    return job.model


def _check_kind(module: Any, model: CustomModel) -> None:
    if not isinstance(module, nnx.Module):
        raise problem(f"{model.module} returns {type(module).__name__}, expected an nnx.Module")
    if not callable(getattr(module, "loss", None)):
        raise problem(
            f"{type(module).__name__} of {model.module} has no method loss(batch, keys_B)"
        )


def _variables(module: nnx.Module) -> dict[str, tuple[tuple[Any, ...], Any]]:
    """Returns path and variable by dotted name."""
    flat = nnx.to_flat_state(nnx.state(module))
    return {".".join(map(str, path)): (tuple(path), variable) for path, variable in flat}


def _parameter(name: str, variable: Any) -> Parameter:
    if not isinstance(variable, nnx.Param):
        kind = type(variable).__name__
        raise problem(f"{name} is a {kind}: all variables of a model must be nnx.Param")
    array = variable.get_value()
    if array.dtype != jnp.float32:
        raise problem(
            f"{name} is {array.dtype}: parameters must be float32. Cast them where they are used"
        )
    axes = variable.get_metadata().get("out_sharding")
    if array.ndim and not axes:
        raise problem(
            f"{name} {array.shape} has no logical axes. Set out_sharding=(...) to a name for each "
            f"dim. {known_axes()}"
        )
    axes = tuple(axes or ())
    if len(axes) != array.ndim or not all(isinstance(axis, str) for axis in axes):
        raise problem(
            f"{name} {array.shape} has the axes {axes}, but each dim needs a name. {known_axes()}"
        )
    return Parameter(name, array.shape, axes)


def _check_losses(found: Any, shape: tuple[int, ...]) -> None:
    is_array = isinstance(found, jax.ShapeDtypeStruct)
    if is_array and found.shape == shape and jnp.issubdtype(found.dtype, jnp.floating):
        return
    what = f"{found.dtype} {found.shape}" if is_array else type(found).__name__
    raise problem(
        f"loss(batch, keys_B) returns {what}, expected a float for each target, of shape {shape}"
    )
