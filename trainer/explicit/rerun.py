"""A traced function run again under explicit types, past every place where jax would stop.

Jax ends a trace under explicit types at the first operation whose result has no obvious layout.
Here such an operation is given one, and why jax would have stopped is noted.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from trainer.explicit.ahead import CALLS, constraints_ahead, open_jaxpr
from trainer.explicit.ambiguous import assumed
from trainer.explicit.arrays import Asked, ExplicitMesh, Values
from trainer.explicit.control_flow import CONTROL_FLOW
from trainer.explicit.layouts import of_spec
from trainer.explicit.notes import Note, Notebook
from trainer.explicit.source import Place, is_of_library, place, sees_to_layouts


class Rerun:
    """Runs jaxprs on values with explicit types, and notes each of their equations."""

    def __init__(self, mesh: ExplicitMesh) -> None:
        self.mesh, self.notebook = mesh, Notebook()

    def run(self, function: Any, values: Values, asked: Asked, within: Place = ()) -> list[Any]:
        """The results of a jaxpr that was called at `within`."""
        jaxpr, constants = open_jaxpr(function)
        ahead = constraints_ahead(jaxpr, asked, self.mesh.sizes)
        known = dict(zip(jaxpr.constvars, map(_without_mesh, constants), strict=True))
        known |= zip(jaxpr.invars, values, strict=True)

        def read(atom: Any) -> Any:
            return _without_mesh(atom.val) if hasattr(atom, "val") else known[atom]

        # Jax traces a library's function once for all its callers: its lines tell the first one.
        is_library = is_of_library(jaxpr)
        for equation in jaxpr.eqns:
            there = within if is_library else place(equation, within)
            note = Note(there, equation.primitive.name)
            wanted = [ahead.get(variable) for variable in equation.outvars]
            with jax.named_scope(self.notebook.add(note)):
                results = self._results(equation, [*map(read, equation.invars)], wanted, note)
            known |= zip(equation.outvars, results, strict=True)
        return [*map(read, jaxpr.outvars)]

    def _results(self, equation: Any, operands: Values, asked: Asked, note: Note) -> Sequence[Any]:
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

    def _bind(self, equation: Any, operands: Values, asked: Asked, note: Note) -> Sequence[Any]:
        primitive = equation.primitive
        # Without the shardings of the automatic mesh that the function was traced under.
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
    """The results, or the error: the operation was traced before, only the layouts can be wrong."""
    try:
        return bind(*operands)
    except Exception as error:
        return error


def _without_mesh(constant: Any) -> Any:
    """A constant of a traced function, which has the mesh of that trace in its type."""
    is_key = jnp.issubdtype(jax.typeof(constant).dtype, jax.dtypes.prng_key)
    return constant if is_key else np.asarray(constant)
