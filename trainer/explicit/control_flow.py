"""Loops, branches and checkpoints under explicit types: what goes round must come back alike."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from trainer.explicit.arrays import Asked, ExplicitMesh, Values
from trainer.explicit.layouts import Layout, of_spec
from trainer.explicit.notes import Note

Call = Callable[[Any, Values, Asked], list[Any]]
"""Runs a jaxpr on values, given what its results come to."""
Body = Callable[[Values, Values], tuple[list[Any], list[Any]]]
"""(carry, slices) -> (carry, results)."""


def _checkpoint(
    mesh: ExplicitMesh, call: Call, equation: Any, operands: Values, asked: Asked, note: Note
) -> list[Any]:
    params = equation.params

    def body(*values: Any) -> list[Any]:
        return call(params["jaxpr"], values, asked)

    policy, prevent_cse = params["policy"], params["prevent_cse"]
    return jax.checkpoint(body, policy=policy, prevent_cse=prevent_cse)(*operands)


def _scan(
    mesh: ExplicitMesh, call: Call, equation: Any, operands: Values, asked: Asked, note: Note
) -> list[Any]:
    params = equation.params
    constants, carried = _constants_and_carried(params)
    fixed, carry = operands[:constants], operands[constants : constants + carried]
    slices = [_whole_along_loop(mesh, value, note) for value in operands[constants + carried :]]

    def body(carry: Values, slices: Values) -> tuple[list[Any], list[Any]]:
        rows = [layout and layout[1:] for layout in asked[carried:]]
        inner = [*mesh.layouts(carry), *rows]
        results = call(params["jaxpr"], [*fixed, *carry, *slices], inner)
        return results[:carried], results[carried:]

    # The number of layers that are written out one after the other is of no matter here.
    rows = [_row(mesh, value) for value in slices]
    first, settled = _settled(mesh, body, carry, rows, note)
    length, reverse = params["length"], params["reverse"]
    last, stacked = jax.lax.scan(settled, first, slices, length, reverse)
    return [*last, *stacked]


def _while(
    mesh: ExplicitMesh, call: Call, equation: Any, operands: Values, asked: Asked, note: Note
) -> list[Any]:
    params = equation.params
    tests, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def goes_on(carry: Values) -> Any:
        return call(params["cond_jaxpr"], [*operands[:tests], *carry], [None])[0]

    def body(carry: Values, _: Values) -> tuple[list[Any], list[Any]]:
        values = [*operands[tests:fixed], *carry]
        return call(params["body_jaxpr"], values, mesh.layouts(carry)), []

    first, settled = _settled(mesh, body, operands[fixed:], [], note)
    return jax.lax.while_loop(goes_on, lambda carry: settled(carry, [])[0], [*first])


def _cond(
    mesh: ExplicitMesh, call: Call, equation: Any, operands: Values, asked: Asked, note: Note
) -> list[Any]:
    index, *values = operands

    def branch(function: Any, *values: Any) -> list[Any]:
        return call(function, values, asked)

    branches = [partial(branch, function) for function in equation.params["branches"]]
    agreed, *others = (mesh.layouts(jax.eval_shape(branch, *values)) for branch in branches)
    if any(other != agreed for other in others):
        note.reason = "the results of the branches lie differently"

    def alike(branch: Callable[..., list[Any]], *values: Any) -> list[Any]:
        return mesh.reshard_all(branch(*values), agreed)

    return jax.lax.switch(index, [partial(alike, branch) for branch in branches], *values)


def _shard_map(
    mesh: ExplicitMesh, call: Call, equation: Any, operands: Values, asked: Asked, note: Note
) -> list[Any]:
    """Operands and results lie as its specs say; what it does inside is its own affair."""

    def layouts(specs: Any, variables: Any) -> list[Layout]:
        pairs = zip(specs, variables, strict=True)
        return [of_spec(spec, len(v.aval.shape), mesh.sizes) for spec, v in pairs]

    primitive, params = equation.primitive, equation.params
    placed = mesh.reshard_all(operands, layouts(params["in_specs"], equation.invars))
    bind = partial(primitive.bind, **primitive.get_bind_params(params))
    return mesh.automatic(bind, placed, layouts(params["out_specs"], equation.outvars))


def _settled(
    mesh: ExplicitMesh, body: Body, carry: Values, rows: Values, note: Note
) -> tuple[Values, Body]:
    """A loop's first carry and its body, so that the carry lies alike before and after."""

    def after(carry: Values) -> list[Any]:
        return mesh.layouts(jax.eval_shape(body, carry, rows)[0])

    before, found = mesh.layouts(carry), after(carry)
    if before == found:
        return carry, body
    changed = (v for v, *lies in zip(carry, before, found, strict=True) if lies[0] != lies[1])
    if any(id(value) not in mesh.repeated for value in changed):
        note.reason = "the carry lies otherwise after an iteration than before it"
    # Moved once, before the loop, it is cheaper than in every iteration.
    moved = mesh.reshard_all(carry, found)
    if after(moved) == found:
        return moved, body

    def returned(carry: Values, slices: Values) -> tuple[list[Any], list[Any]]:
        new, stacked = body(carry, slices)
        return mesh.reshard_all(new, before), stacked

    return carry, returned


def _whole_along_loop(mesh: ExplicitMesh, value: Any, note: Note) -> Any:
    first, *rest = mesh.layout(value)
    if first:
        note.reason = "the dim that the loop goes along is split"
    return mesh.reshard(value, ((), *rest))


def _row(mesh: ExplicitMesh, value: Any) -> jax.ShapeDtypeStruct:
    """One slice of what a loop goes along."""
    sharding = mesh.sharding(mesh.layout(value)[1:])
    return jax.ShapeDtypeStruct(value.shape[1:], value.dtype, sharding=sharding)


def _constants_and_carried(params: Any) -> tuple[int, int]:
    """How many operands of a scan are the same in every iteration, and how many are its carry."""
    if "num_carry" in params:  # jax 0.10
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


CONTROL_FLOW: dict[str, Callable[..., Sequence[Any]]] = {
    "remat2": _checkpoint,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
"""Primitive -> its results under explicit types."""
