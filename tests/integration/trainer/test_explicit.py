"""A function under explicit axis types: every place that is ambiguous or reshards, and no other."""

import itertools
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.analysis.explicit import layouts
from trainer.analysis.explicit.layouts import ExplicitMesh
from trainer.analysis.explicit.step import check
from trainer.contract.protocol.reports import ShardingFinding, ShardingReport

ROOT = Path(__file__).parents[3]
MESH = AbstractMesh(
    (1, 2, 4), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto, AxisType.Auto)
)


def array(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


def forward(function: Callable[..., Any], *arguments: Any) -> list[ShardingFinding]:
    return check(function, MESH, *arguments, gradient=False).findings


def line_of(found: ShardingFinding) -> str:
    """The line of source that a finding names."""
    frame = found.place[0]
    return linecache.getline(str(ROOT / frame.file), frame.line).strip()


def product(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x @ weights))


def test_a_clean_function_reports_nothing() -> None:
    weights, rows = array((8, 16), None, "tensor"), array((4, 8), "fsdp")
    assert check(product, MESH, weights, rows) == ShardingReport([])


def test_operands_split_over_the_contracted_dim_are_ambiguous() -> None:
    (found,) = forward(product, array((8, 16), "tensor"), array((4, 8), "fsdp", "tensor"))
    assert (found.kind, found.operation) == ("ambiguous", "dot_general")
    assert line_of(found) == "return jnp.sum(jnp.tanh(x @ weights))"
    assert (found.old, found.new) == ("parts over tensor", "float32[4@fsdp,16]")
    assert found.bytes == 2 * (2 * 16 * 4) * 3 // 4, "an all-reduce in a ring of four"
    assert "ambiguous how the output should be sharded" in found.reason


def test_an_operand_split_over_the_contracted_dim_alone_is_gathered() -> None:
    (found,) = forward(product, array((8, 16), "fsdp", "tensor"), array((4, 8), ("data", "fsdp")))
    assert (found.kind, found.reason) == ("reshard", "")
    assert (found.old, found.new) == ("float32[8@fsdp,16@tensor]", "float32[8,16@tensor]")
    assert found.bytes == 8 * 4 * 4 // 2, "half of the rows of a quarter of the columns"


def test_an_operation_that_cannot_choose_is_reported_with_its_line() -> None:
    def ambiguous(weights: jax.Array, x: jax.Array) -> jax.Array:
        x = jnp.tanh(x)
        return weights + x

    (found,) = forward(ambiguous, array((8, 8), "fsdp"), array((8, 8), None, "fsdp"))
    assert line_of(found) == "return weights + x"
    assert (found.kind, found.operation, found.times) == ("ambiguous", "add", 1)
    assert (found.old, found.new) == ("float32[8,8@fsdp]", "float32[8@fsdp,8]")


def test_every_place_is_reported_not_the_first_alone() -> None:
    def twice(weights: jax.Array, x: jax.Array) -> jax.Array:
        once = weights + x
        return once.T + x.T

    found = forward(twice, array((8, 8), "fsdp"), array((8, 8), None, "fsdp"))
    assert {line_of(one) for one in found} == {"once = weights + x", "return once.T + x.T"}


def test_models_own_constraints_are_distinguished() -> None:
    def constrained(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, P(None, "tensor"))

    (found,) = forward(constrained, array((8, 8), "fsdp", "tensor"))
    assert (found.kind, found.new) == ("constraint", "float32[8,8@tensor]")


def test_a_constraint_further_on_says_what_an_ambiguous_product_becomes() -> None:
    def constrained(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ weights), P(None, "tensor"))

    (found,) = forward(constrained, array((8, 16), "tensor"), array((4, 8), None, "tensor"))
    assert (found.kind, found.new) == ("ambiguous", "float32[4,16@tensor]")


def test_loops_count_as_often_as_they_go_round() -> None:
    def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, one: (jnp.tanh(x @ one), None), x, weights)[0]

    arguments = array((5, 8, 8), None, "fsdp"), array((4, 8))
    (found,) = check(layers, MESH, *arguments, gradient=False, times=3).findings
    assert found.times == 15
    assert found.bytes == 15 * (8 * 8 * 4) // 2


def test_what_is_recomputed_for_the_backward_pass_is_moved_again() -> None:
    arguments = array((8, 16), "fsdp"), array((4, 8), "fsdp")

    def passes(function: Callable[..., Any]) -> list[str]:
        found = check(function, MESH, *arguments).findings
        gathers = (one for one in found if one.new == "float32[8,16]")
        return [
            ("backward" if one.backward else "forward") for one in gathers for _ in range(one.times)
        ]

    assert passes(product) == ["forward"]
    assert sorted(passes(jax.checkpoint(product))) == ["backward", "forward"]


def test_same_line_is_one_place_for_any_first_caller() -> None:
    @jax.jit
    def inner(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights + x

    def first(weights: jax.Array, x: jax.Array) -> jax.Array:
        return inner(weights, x)

    def second(weights: jax.Array, x: jax.Array) -> jax.Array:
        return inner(weights, x)

    arguments = array((8, 8), "fsdp"), array((8, 8), None, "fsdp")
    for function in (first, second):
        (found,) = forward(function, *arguments)
        assert line_of(found) == "return weights + x"
        assert found.place[1].function.endswith(function.__name__)


def test_a_carry_that_comes_back_otherwise_is_ambiguous() -> None:
    def wandering(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: ((x @ weights).T, None), x, None, length=2)[0]

    found = forward(wandering, array((8, 8)), array((8, 8), "fsdp"))
    assert [one.operation for one in found] == ["scan"]
    assert "the carry lies otherwise" in found[0].reason


def test_branches_whose_results_lie_differently_are_ambiguous() -> None:
    def branching(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(jnp.sum(x) > 0, lambda: weights, lambda: x)

    found = forward(branching, array((8, 8), "fsdp"), array((8, 8), None, "tensor"))
    assert [one.operation for one in found] == ["cond"]


def test_the_operands_of_a_shard_map_are_moved_to_its_specs() -> None:
    def mapped(x: jax.Array) -> jax.Array:
        total = jax.shard_map(
            lambda x: jax.lax.psum(x, "tensor"),
            mesh=MESH,
            in_specs=P(None, "tensor"),
            out_specs=P(),
        )
        return total(x)

    (found,) = forward(mapped, array((8, 8), "fsdp", "tensor"))
    assert (found.kind, found.new) == ("reshard", "float32[8,8@tensor]")


def test_a_gradient_that_jax_cannot_take_leaves_the_forward_pass() -> None:
    def until_large(weights: jax.Array, x: jax.Array) -> jax.Array:
        grown = jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ weights, x)
        return jnp.sum(grown)

    report = check(until_large, MESH, array((8, 8), "fsdp"), array((4, 8)))
    assert "Reverse-mode differentiation does not work for lax.while_loop" in report.stopped
    assert [(one.kind, one.new) for one in report.findings] == [("reshard", "float32[8,8]")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((("fsdp",), ()), ((), ())),
        ((("fsdp",), ("tensor",)), ((), ("tensor",))),
        (((), ()), (("fsdp", "tensor"), ())),
        ((("fsdp", "tensor"), ()), (("fsdp",), ())),
        ((("fsdp", "tensor"), ()), (("tensor",), ())),
        ((("fsdp",), ()), ((), ("fsdp",))),
        ((("fsdp",), ("tensor",)), (("tensor",), ("fsdp",))),
        ((("fsdp", "tensor"), ()), (("tensor", "fsdp"), ())),
    ],
)
def test_moved_bytes_are_those_of_the_elements_that_a_device_lacks(
    old: layouts.Layout, new: layouts.Layout
) -> None:
    """The mean over all devices, by counting."""
    sizes, shape = {"fsdp": 2, "tensor": 4}, (8, 8)
    devices = [{"fsdp": f, "tensor": t} for f in range(2) for t in range(4)]

    def elements(layout: layouts.Layout, device: dict[str, int]) -> set[tuple[int, int]]:
        ranges = []
        for dim, axes in zip(shape, layout, strict=True):
            part = 0
            for axis in axes:
                part = part * sizes[axis] + device[axis]
            size = dim // layouts.parts(axes, sizes)
            ranges.append(range(part * size, (part + 1) * size))
        return set(itertools.product(*ranges))

    lacking = [len(elements(new, device) - elements(old, device)) for device in devices]
    moved = layouts.moved_bytes(array(shape), old, new, sizes)
    assert moved == 4 * sum(lacking) / len(devices)


LOGITS = array((8, 4, 16), "fsdp", None, "tensor")
ROWS = array((8, 8), "fsdp", "tensor")
OF_JAX: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "where": (lambda x: jnp.where(jnp.arange(16) < 13, x, -1e30), (LOGITS,)),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), (LOGITS,)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=-1), (LOGITS,)),
    "zeros_like": (
        lambda x: jax.lax.scan(lambda c, _: (c + x, None), jnp.zeros_like(x), None, length=2)[0],
        (LOGITS,),
    ),
    "repeat": (lambda x: jnp.repeat(x, 2, axis=1), (LOGITS,)),
    "heads": (lambda x: jnp.moveaxis(x.reshape(8, 2, 2, 16), 1, 0), (LOGITS,)),
    "cumsum": (lambda x: jnp.cumsum(x, axis=0), (ROWS,)),
    "sort": (lambda x: jnp.sort(x, axis=1), (ROWS,)),
    "slice": (lambda x: x[0], (ROWS,)),
    "look-up": (lambda x, i: x[i], (ROWS, array((4,), "fsdp", dtype=jnp.int32))),
    "flatten": (lambda x: x.reshape(64), (array((8, 8), None, "tensor"),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]), (ROWS, array((8, 8), "fsdp"))),
    "einsum": (lambda x, y: jnp.einsum("ij,kj->ik", x, y), (ROWS, array((8, 8), None, "tensor"))),
}


@pytest.mark.parametrize("name", OF_JAX)
def test_it_is_ambiguous_exactly_where_jax_itself_stops(name: str) -> None:
    function, arguments = OF_JAX[name]
    explicit = ExplicitMesh.of(MESH)
    with jax.sharding.use_abstract_mesh(explicit.mesh):
        try:
            jax.make_jaxpr(function)(*map(explicit.struct, arguments))
            stops = []
        except Exception as error:
            here = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
            stops = [here[-1].lineno]
    found = forward(function, *arguments)
    assert [one.place[0].line for one in found if one.kind == "ambiguous"] == stops
