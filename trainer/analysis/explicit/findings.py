"""Moves and ambiguities of a program under explicit types, summed by source line.

Each equation has a note, which is traced to the line of the user's code that it comes from.
"""

import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import flax
import jax
import jaxlib
import optax
from jax.extend.core import jaxprs_in_params

from trainer.analysis.explicit import layouts, reshards
from trainer.analysis.explicit.layouts import Layout, Sizes
from trainer.analysis.explicit.lookahead import open_jaxpr
from trainer.contract.protocol.reports import FindingKind, Frame, ShardingFinding, SourceLocation

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIBRARIES = tuple(f"{library.__path__[0]}/" for library in (jax, jaxlib, flax, optax))
STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


def place(equation: Any, within: SourceLocation) -> SourceLocation:
    """Returns the source location of an equation in a function that was called at `within`."""
    traceback = equation.source_info.traceback
    own: list[Frame] = []
    for frame in traceback.frames if traceback else ():
        if frame.file_name.startswith(f"{HERE}/"):
            break
        if is_own(frame.file_name):
            own.append(Frame(_shown(frame.file_name), frame.line_num, frame.function_name))
    # The tracebacks of a jitted function's equations end at that function.
    is_whole = not within or own[-1:] == [within[-1]]
    return tuple(own) if is_whole else (*own, *within)


def is_own(file: str) -> bool:
    """Returns whether a file is outside the libraries that programs are traced through."""
    standard = file.startswith(STANDARD_LIBRARY) and "site-packages" not in file
    return not (standard or file.startswith((*LIBRARIES, "<")))


def is_of_library(function: Any) -> bool:
    """Returns whether a traced function (its jaxpr) was written in a library."""
    _, _, where = function.debug_info.func_src_info.rpartition(" at ")
    return bool(where) and not is_own(where)


def sees_to_layouts(equation: Any) -> bool:
    """Returns whether an equation is part of a jax.numpy function that aligns operand layouts.

    Under automatic types the function does not align them, so a trace under automatic types shows
    nothing about explicit ones.
    """
    traceback = equation.source_info.traceback
    return any(
        frame.function_name in ("_where", "_repeat") and frame.file_name.startswith(LIBRARIES)
        for frame in (traceback.frames if traceback else ())
    )


def _shown(file: str) -> str:
    """Returns a path relative to Slipway's repository, or else to the current folder."""
    path = Path(file)
    root = next((root for root in (ROOT, Path.cwd()) if path.is_relative_to(root)), None)
    return str(path.relative_to(root) if root else path)


MARK = "equation"
"""Prefix of a scope's name, followed by an equation's number. Equations derived from it keep that
name through differentiation and rematerialization."""


@dataclass
class EquationNote:
    place: SourceLocation
    operation: str
    reason: str = ""
    """Why JAX would stop here; "" when it would not."""
    summed: tuple[str, ...] = ()
    """Mesh axes along which devices have partial sums of its result."""
    result: Layout = ()
    """Assumed layout of its result, when partial sums are to be added up."""

    @property
    def is_constraint(self) -> bool:
        """Whether the model itself requests its result's layout."""
        return self.operation == "sharding_constraint"


@dataclass
class Notebook:
    """Notes, indexed by the number of the equation."""

    notes: list[EquationNote] = field(default_factory=list)

    def add(self, note: EquationNote) -> str:
        """Adds a note, and returns the name for the equation's scope."""
        self.notes.append(note)
        return f"{MARK}{len(self.notes) - 1}"

    def find(self, equation: Any) -> EquationNote | None:
        """Returns the note that an equation derives from. Returns None without one."""
        numbers = re.findall(rf"\b{MARK}(\d+)\b", str(equation.source_info.name_stack))
        return self.notes[int(numbers[-1])] if numbers else None


@dataclass(frozen=True)
class _Walk:
    """Position in a program."""

    times: int = 1
    backward: bool = False
    recomputed: bool = False
    """Whether the backward pass recomputes this part."""


def findings(program: Any, notebook: Notebook, sizes: Sizes, times: int) -> list[ShardingFinding]:
    """Returns the findings of a jaxpr that runs `times` times a step, most bytes first."""
    summed: dict[Any, ShardingFinding] = {}
    for found in _of_program(program, notebook, sizes, _Walk(times)):
        key = replace(found, times=0, bytes=0)
        before = summed.get(key)
        again = (before.times, before.bytes) if before else (0, 0)
        summed[key] = replace(found, times=found.times + again[0], bytes=found.bytes + again[1])
    shown = {_ambiguity(found) for found in summed.values() if found.old}
    kept = (found for found in summed.values() if found.old or _ambiguity(found) not in shown)
    return sorted(kept, key=lambda found: -found.bytes)


def _ambiguity(found: ShardingFinding) -> tuple[FindingKind, SourceLocation, str]:
    return found.kind, found.place, found.operation


def _of_program(
    program: Any, notebook: Notebook, sizes: Sizes, walk: _Walk
) -> Iterator[ShardingFinding]:
    jaxpr, _ = open_jaxpr(program)
    for equation in jaxpr.eqns:
        here = _at(equation, walk)
        note = notebook.find(equation)
        if note:
            yield from _of_equation(equation, note, sizes, here)
        if not _is_automatic(equation):
            for inner in jaxprs_in_params(equation.params):
                yield from _of_program(inner, notebook, sizes, here)


def _at(equation: Any, walk: _Walk) -> _Walk:
    backward = walk.backward or "transpose(" in str(equation.source_info.name_stack)
    recomputed = walk.recomputed or "rematted_computation" in str(equation.source_info.name_stack)
    length = equation.params["length"] if equation.primitive.name == "scan" else 1
    return _Walk(walk.times * length, backward, recomputed)


def _of_equation(
    equation: Any, note: EquationNote, sizes: Sizes, walk: _Walk
) -> Iterator[ShardingFinding]:
    def finding(kind: FindingKind, old: str, new: str, moved: int) -> ShardingFinding:
        return ShardingFinding(
            kind=kind, backward=walk.backward, place=note.place, operation=note.operation,
            old=old, new=new, times=walk.times, bytes=walk.times * moved,
            reason=note.reason if kind == "ambiguous" else "",
        )  # fmt: skip

    # JAX's own differentiation rules determine the layouts of the gradient's operations.
    is_ambiguous = bool(note.reason) and (not walk.backward or walk.recomputed)
    if is_ambiguous and _is_operation(equation, note):
        old, new, moved = _summed(equation, note, sizes)
        yield finding("ambiguous", old, new, moved)
    kind: FindingKind = "ambiguous" if is_ambiguous and not note.summed else "reshard"
    for aval, wanted in _changes(equation, sizes):
        old = layouts.of_type(aval, sizes)
        if moved := layouts.moved_bytes(aval, old, wanted, sizes):
            shown = layouts.text(aval, old), layouts.text(aval, wanted)
            yield finding("constraint" if note.is_constraint else kind, *shown, moved)


def _summed(equation: Any, note: EquationNote, sizes: Sizes) -> tuple[str, str, int]:
    """Returns how partial sums become the assumed result: old, new, and the bytes moved."""
    if not note.summed:
        return "", "", 0
    result = equation.outvars[0].aval
    moved = layouts.summed_bytes(result, note.summed, note.result, sizes)
    return f"parts over {', '.join(note.summed)}", layouts.text(result, note.result), moved


def _changes(equation: Any, sizes: Sizes) -> list[tuple[Any, Layout]]:
    """Returns the arrays that an equation moves, with their new layouts."""
    if _is_automatic(equation):
        return []
    operands, results = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    if equation.primitive.name == "reshard":
        return [(operands[0], layouts.of_type(results[0], sizes))]
    each = [layouts.of_type(aval, sizes) for aval in operands]
    needs = reshards.needs(equation, each, layouts.of_type(results[0], sizes)) if results else []
    return [(operands[number], layout) for number, layout in needs]


def _is_operation(equation: Any, note: EquationNote) -> bool:
    """Returns whether JAX would stop at it, or it is the automatic region around that operation."""
    name = equation.primitive.name
    return name == note.operation or (name == "jit" and _is_automatic(equation))


def _is_automatic(equation: Any) -> bool:
    """Returns whether layouts are left to the compiler: the types inside have none."""
    meshes = (getattr(getattr(v.aval, "sharding", None), "mesh", None) for v in equation.outvars)
    return any(mesh is not None and not mesh.empty and mesh.are_all_axes_auto for mesh in meshes)
