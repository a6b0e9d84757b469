"""The function that builds a model of the user's own, and what their code raises, with its line."""

import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.spec.model import OwnModel
from trainer.spec.own_model import KEY
from trainer.spec.resolve import PlanError

NOT_THEIRS = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_path('stdlib')}/", "<")
PACKAGES = ("site-packages", "dist-packages")
LONGEST = 500
"""Of what an exception says."""


def imported(own: OwnModel) -> Callable[..., Any]:
    """The function, which takes the job's arguments. Raises PlanError."""
    module, _, function = own.module.partition(":")
    with telling(f"import of {module}"):
        try:
            code = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise problem(f"no module '{error.name}' in {Path.cwd()} or installed") from error
            raise
    build = getattr(code, function, None)
    if not callable(build):
        raise problem(f"{module} ({code.__file__}) has no function '{function}'")
    try:
        inspect.signature(build).bind(vocab_size=1, rngs=None, **own.args)
    except TypeError as error:
        raise PlanError([("model.args", f"{own.module}: {error}")]) from error
    return build


def problem(message: str) -> PlanError:
    """About the whole of it."""
    return PlanError([(KEY, message)])


@contextmanager
def telling(what: str) -> Iterator[None]:
    """What the user's code raises, with their own line."""
    try:
        yield
    except PlanError:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:LONGEST]
        message = f"{what}: {_place(error)}{type(error).__name__}: {said}"
        raise problem(message) from error


def _place(error: BaseException) -> str:
    """ "my_pkg/my_model.py:12 in build: ", the innermost line that is the user's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_theirs(f.filename)]
    if not frames:
        return ""
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}: "


def _is_theirs(file: str) -> bool:
    return not file.startswith(NOT_THEIRS) and not any(name in file for name in PACKAGES)


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
