"""Where in the user's own code an equation of a program comes from."""

import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import flax
import jax
import jaxlib
import optax

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARIES = tuple(f"{library.__path__[0]}/" for library in (jax, jaxlib, flax, optax))
STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


Place = tuple[Frame, ...]
"""The innermost frame first, then who called it; empty where nobody knows."""


def place(equation: Any, within: Place) -> Place:
    """Of an equation in a function that was called at `within`."""
    traceback = equation.source_info.traceback
    own: list[Frame] = []
    for frame in traceback.frames if traceback else ():
        if frame.file_name.startswith(f"{HERE}/"):
            break
        if is_own(frame.file_name):
            own.append(Frame(_shown(frame.file_name), frame.line_num, frame.function_name))
    # A jitted function's equations know their callers no further than to its beginning.
    is_whole = not within or own[-1:] == [within[-1]]
    return tuple(own) if is_whole else (*own, *within)


def is_own(file: str) -> bool:
    """Whether a file belongs to no library that programs are traced through."""
    standard = file.startswith(STANDARD_LIBRARY) and "site-packages" not in file
    return not (standard or file.startswith((*LIBRARIES, "<")))


def is_of_library(function: Any) -> bool:
    """Whether a traced function (its jaxpr) was written in a library."""
    _, _, where = function.debug_info.func_src_info.rpartition(" at ")
    return bool(where) and not is_own(where)


def sees_to_layouts(equation: Any) -> bool:
    """Whether it is part of a function of jax.numpy that brings its operands to one layout.

    Under automatic types it does not; so what it does there says nothing of explicit ones.
    """
    traceback = equation.source_info.traceback
    return any(
        frame.function_name in ("_where", "_repeat") and frame.file_name.startswith(LIBRARIES)
        for frame in (traceback.frames if traceback else ())
    )


def _shown(file: str) -> str:
    """Slipway's own files as its map has them, others from the current folder."""
    path = Path(file)
    root = next((root for root in (ROOT, Path.cwd()) if path.is_relative_to(root)), None)
    return str(path.relative_to(root) if root else path)
