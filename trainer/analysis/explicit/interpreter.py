"""Runs a traced function again under explicit types, past every place where JAX would stop.

JAX ends a trace under explicit types at the first operation whose result has no obvious layout.
Here that operation gets an assumed one, and the reason why JAX would have stopped is recorded.
The carries of loops, branches and checkpoints must come out with the types that went in.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from trainer.analysis.explicit.ambiguous import assumed
from trainer.analysis.explicit.findings import (
    EquationNote,
    Notebook,
    SourceLocation,
    is_of_library,
    place,
    sees_to_layouts,
)
from trainer.analysis.explicit.layouts import Asked, ExplicitMesh, Layout, Values, of_spec
from trainer.analysis.explicit.lookahead import CALLS, constraints_ahead, open_jaxpr
from trainer.analysis.explicit.stages import is_of_stages, run_on_stages

Call = Callable[[Any, Values, Asked], list[Any]]
"""Runs a jaxpr on values, given the layouts that later constraints request of its results."""
Body = Callable[[Values, Values], tuple[list[Any], list[Any]]]
"""(carry, slices) -> (carry, results)."""


def _checkpoint(
    mesh: ExplicitMesh,
    call: Call,
    equation: Any,
    operands: Values,
    asked: Asked,
    note: EquationNote,
) -> list[Any]:
    params = equation.params

    def body(*values: Any) -> list[Any]:
        return call(params["jaxpr"], values, asked)

    policy, prevent_cse = params["policy"], params["prevent_cse"]
    return jax.checkpoint(body, policy=policy, prevent_cse=prevent_cse)(*operands)


def _scan(
    mesh: ExplicitMesh,
    call: Call,
    equation: Any,
    operands: Values,
    asked: Asked,
    note: EquationNote,
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

    # The number of unrolled iterations does not matter here.
    rows = [_row(mesh, value) for value in slices]
    first, settled = _settled(mesh, body, carry, rows, note)
    length, reverse = params["length"], params["reverse"]
    last, stacked = jax.lax.scan(settled, first, slices, length, reverse)
    return [*last, *stacked]


def _while(
    mesh: ExplicitMesh,
    call: Call,
    equation: Any,
    operands: Values,
    asked: Asked,
    note: EquationNote,
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
    mesh: ExplicitMesh,
    call: Call,
    equation: Any,
    operands: Values,
    asked: Asked,
    note: EquationNote,
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
    mesh: ExplicitMesh,
    call: Call,
    equation: Any,
    operands: Values,
    asked: Asked,
    note: EquationNote,
) -> list[Any]:
    """Lays out operands and results by the specs of a shard_map.

    Does not check its body, unless the shard_map is over pipeline stages.
    """

    def layouts(specs: Any, variables: Any) -> list[Layout]:
        pairs = zip(specs, variables, strict=True)
        return [of_spec(spec, len(v.aval.shape), mesh.sizes) for spec, v in pairs]

    primitive, params = equation.primitive, equation.params
    if is_of_stages(params):
        return run_on_stages(params, lambda f, x: call(f, x, [None] * len(f.out_avals)), operands)
    placed = mesh.reshard_all(operands, layouts(params["in_specs"], equation.invars))
    bind = partial(primitive.bind, **primitive.get_bind_params(params))
    return mesh.automatic(bind, placed, layouts(params["out_specs"], equation.outvars))


def _settled(
    mesh: ExplicitMesh, body: Body, carry: Values, rows: Values, note: EquationNote
) -> tuple[Values, Body]:
    """Returns a loop's first carry and a body that preserves the layout of the carry."""

    def after(carry: Values) -> list[Any]:
        return mesh.layouts(jax.eval_shape(body, carry, rows)[0])

    before, found = mesh.layouts(carry), after(carry)
    if before == found:
        return carry, body
    changed = (v for v, *lies in zip(carry, before, found, strict=True) if lies[0] != lies[1])
    if any(id(value) not in mesh.repeated for value in changed):
        note.reason = "the carry lies otherwise after an iteration than before it"
    # Moving it once before the loop is cheaper than in every iteration.
    moved = mesh.reshard_all(carry, found)
    if after(moved) == found:
        return moved, body

    def returned(carry: Values, slices: Values) -> tuple[list[Any], list[Any]]:
        new, stacked = body(carry, slices)
        return mesh.reshard_all(new, before), stacked

    return carry, returned


def _whole_along_loop(mesh: ExplicitMesh, value: Any, note: EquationNote) -> Any:
    first, *rest = mesh.layout(value)
    if first:
        note.reason = "the dim that the loop goes along is split"
    return mesh.reshard(value, ((), *rest))


def _row(mesh: ExplicitMesh, value: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape of one slice along a loop's dim."""
    sharding = mesh.sharding(mesh.layout(value)[1:])
    return jax.ShapeDtypeStruct(value.shape[1:], value.dtype, sharding=sharding)


def _constants_and_carried(params: Any) -> tuple[int, int]:
    """Returns how many operands of a scan are constant, and how many are its carry."""
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
"""Primitive -> function that computes its results under explicit types."""


class Rerun:
    """Runs jaxprs on values with explicit types, and records a note for each equation."""

    def __init__(self, mesh: ExplicitMesh) -> None:
        self.mesh, self.notebook = mesh, Notebook()

    def run(
        self, function: Any, values: Values, asked: Asked, within: SourceLocation = ()
    ) -> list[Any]:
        """Returns the results of a jaxpr that was called at `within`."""
        jaxpr, constants = open_jaxpr(function)
        ahead = constraints_ahead(jaxpr, asked, self.mesh.sizes)
        known = dict(zip(jaxpr.constvars, map(_without_mesh, constants), strict=True))
        known |= zip(jaxpr.invars, values, strict=True)

        def read(atom: Any) -> Any:
            return _without_mesh(atom.val) if hasattr(atom, "val") else known[atom]

        # JAX traces a library function once for all callers: its lines name only the first one.
        is_library = is_of_library(jaxpr)
        for equation in jaxpr.eqns:
            location = within if is_library else place(equation, within)
            note = EquationNote(location, equation.primitive.name)
            wanted = [ahead.get(variable) for variable in equation.outvars]
            with jax.named_scope(self.notebook.add(note)):
                results = self._results(equation, [*map(read, equation.invars)], wanted, note)
            known |= zip(equation.outvars, results, strict=True)
        return [*map(read, jaxpr.outvars)]

    def _results(
        self, equation: Any, operands: Values, asked: Asked, note: EquationNote
    ) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params

        def call(function: Any, values: Values, asked: Asked) -> list[Any]:
            return self.run(function, values, asked, note.place)

        if name in CALLS:
            return call(params[CALLS[name]], operands, asked)
        if name in CONTROL_FLOW:
            return CONTROL_FLOW[name](self.mesh, call, equation, operands, asked, note)
        if name == "sharding_constraint":
            (value,) = operands
            wanted = of_spec(params["sharding"].spec, value.ndim, self.mesh.sizes)
            return [self.mesh.reshard(value, wanted)]
        return self._bind(equation, operands, asked, note)

    def _bind(
        self, equation: Any, operands: Values, asked: Asked, note: EquationNote
    ) -> Sequence[Any]:
        primitive = equation.primitive
        # Drops the shardings of the automatic mesh that the function was traced under.
        params = {
            name: None if isinstance(value, NamedSharding) else value
            for name, value in primitive.get_bind_params(equation.params).items()
        }
        bind = partial(primitive.bind, **params)
        results = _tried(bind, operands)
        if isinstance(results, Exception):
            results = _tried(bind, self.mesh.relaid(operands))
        if isinstance(results, Exception):
            note.reason = "" if sees_to_layouts(equation) else str(results).splitlines()[0]
            return assumed(self.mesh, equation, bind, operands, asked, note)
        results = results if primitive.multiple_results else [results]
        if primitive.name == "broadcast_in_dim" and isinstance(operands[0], np.ndarray):
            self.mesh.repeated[id(results[0])] = results[0]
        return results


def _tried(bind: Callable[..., Any], operands: Values) -> Any:
    """Returns the results or the error: it was traced before, so only layouts can be wrong."""
    try:
        return bind(*operands)
    except Exception as error:
        return error


def _without_mesh(constant: Any) -> Any:
    """Returns a traced function's constant without the mesh of the trace; keys stay as they are."""
    is_key = jnp.issubdtype(jax.typeof(constant).dtype, jax.dtypes.prng_key)
    return constant if is_key else np.asarray(constant)
