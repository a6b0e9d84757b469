"""Products in 8 bits: their arithmetic, and training with them."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.sampling import sampled
from trainer.contract.planning.sharding_rules import MESH_AXES
from trainer.model import quantized
from trainer.model.seed import SEED_SHAPE
from trainer.model.sharding import constrain
from trainer.step import loss as losses

STEPS = 20
MESH_TOLERANCE = 1e-3
PRECISIONS = ["int8", "fp8"]
ROWS = ("batch", "sequence", None)
LARGEST = {"int8": (127, 127), "fp8": (448, 57344)}
MESHES = {
    "fsdp 4": (4, {"fsdp": 4}),
    "tensor 2, fsdp 2": (4, {"tensor": 2, "fsdp": 2}),
    "tensor 4": (4, {"tensor": 4}),
    "context 2, fsdp 2": (4, {"context": 2, "fsdp": 2}),
    "data 2, fsdp 2, tensor 2": (8, {"data": 2, "fsdp": 2, "tensor": 2}),
}


def _job(precision, **changes):
    model = {"precision": precision, **changes.pop("model", {})}
    return job_of(steps=STEPS, model=model, **changes)


def _losses(made, steps=STEPS):
    return np.array([metrics.loss for metrics in made.run(steps)[1]])


def _product(precision, contracted=1):
    axes = ("norm",) * (contracted + 1)
    return lambda x, kernel: quantized.product(x, kernel, contracted, axes, precision)


def _drawn(*shape, seed=0):
    """Numbers with a different size in every row and column."""
    key = jax.random.key(seed)
    x = jax.random.normal(key, shape)
    for dim in range(len(shape)):
        sizes = jnp.exp(jax.random.normal(jax.random.fold_in(key, dim), (shape[dim],)))
        x = x * sizes.reshape(*(-1 if at == dim else 1 for at in range(len(shape))))
    return x


def _rounded(x, dims, precision, number):
    """What 8 bits keep of an array, in float64."""
    x = np.asarray(x, np.float64)
    scale = np.abs(x).max(dims, keepdims=True) / LARGEST[precision][number]
    if precision == "int8":
        return np.round(x / scale), scale
    dtype = (jnp.float8_e4m3fn, jnp.float8_e5m2)[number]
    return (x / scale).astype(np.float32).astype(dtype).astype(np.float64), scale


@pytest.mark.parametrize("precision", PRECISIONS)
def test_product_and_gradients_are_those_of_rounded_operands(precision):
    """Two dims are summed, as in the output of attention."""
    x, kernel, gradient = _drawn(3, 5, 4, 6), _drawn(4, 6, 7, seed=1), _drawn(3, 5, 7, seed=2)
    found, back = jax.vjp(_product(precision, 2), x, kernel)
    x_gradient, kernel_gradient = back(gradient)

    rows, of_rows = _rounded(x, (2, 3), precision, 0)
    columns, of_columns = _rounded(kernel, (0, 1), precision, 0)
    wanted = np.einsum("bsij,ijo->bso", rows * of_rows, columns * of_columns)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)

    by_row, scale = _rounded(gradient * of_columns[0], (2,), precision, 1)
    wanted = np.einsum("bso,ijo->bsij", by_row * scale, columns)
    np.testing.assert_allclose(x_gradient, wanted, rtol=1e-4, atol=1e-3)

    by_column, scale = _rounded(gradient * of_rows[..., 0], (0, 1), precision, 1)
    wanted = np.einsum("bsij,bso->ijo", rows, by_column * scale)
    np.testing.assert_allclose(kernel_gradient, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("precision", "most"), [("int8", 0.04), ("fp8", 0.1)])
def test_products_are_close_to_those_in_float32(precision, most):
    x, kernel, gradient = _drawn(64, 96), _drawn(96, 48, seed=1), _drawn(64, 48, seed=2)
    exact, back = jax.vjp(lambda x, k: x @ k, x, kernel)
    found, narrow = jax.vjp(_product(precision), x, kernel)
    for one, other in zip((found, *narrow(gradient)), (exact, *back(gradient)), strict=True):
        assert jnp.linalg.norm(one - other) < most * jnp.linalg.norm(other)


@pytest.mark.parametrize(("devices", "mesh"), MESHES.values(), ids=MESHES)
def test_scales_over_split_dims_are_those_of_one_device(devices, mesh):
    """The scale of a dim that devices share is a maximum over all of them."""
    x, kernel, gradient = _drawn(8, 4, 32), _drawn(32, 16, seed=1), _drawn(8, 4, 16, seed=2)

    def computed(x, kernel, gradient):
        x = constrain(x, "batch", "sequence", "mlp")
        kernel = constrain(kernel, "mlp", None)
        rounded = [
            quantized.quantize(array, dims, jnp.dtype("int8"))
            for array, dims in ((x, (2,)), (kernel, (0,)), (constrain(gradient, *ROWS), (0, 1)))
        ]
        product = partial(quantized.product, contracted=1, axes=("mlp", "embed"), precision="int8")
        found, back = jax.vjp(product, x, kernel)
        return rounded, (found, *back(gradient))

    rounded, products = jax.jit(computed)(x, kernel, gradient)
    sizes = tuple(mesh.get(axis, 1) for axis in MESH_AXES)
    made = jax.make_mesh(
        sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes), devices=jax.devices()[:devices]
    )
    with jax.set_mesh(made):
        also_rounded, also_products = jax.jit(computed)(x, kernel, gradient)
    for one, other in zip(jax.tree.leaves(rounded), jax.tree.leaves(also_rounded), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(products, also_products, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_zeros_stay_zeros_and_a_nan_spreads(precision):
    x, kernel = jnp.zeros((2, 4)).at[1, 2].set(jnp.nan), jnp.ones((4, 3))
    found = _product(precision)(x, kernel)
    assert np.all(found[0] == 0) and np.all(np.isnan(found[1]))


CASES = {
    "int8, fsdp 4": ("int8", "fsdp 4"),
    "int8, tensor 2, fsdp 2": ("int8", "tensor 2, fsdp 2"),
    "fp8, tensor 2, fsdp 2": ("fp8", "tensor 2, fsdp 2"),
    **{f"{precision}, {mesh}": (precision, mesh) for precision in PRECISIONS for mesh in MESHES},
}


@pytest.mark.parametrize(("precision", "name"), sampled(CASES, list(CASES)[:3]))
def test_losses_in_8_bits_do_not_depend_on_the_mesh(precision, name):
    """Float rounding moves a value to the next of 8 bits now and then."""
    devices, mesh = MESHES[name]
    alone, split = bench(_job(precision)), bench(_job(precision, mesh=mesh), devices)
    np.testing.assert_allclose(_losses(split), _losses(alone), rtol=MESH_TOLERANCE)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_in_8_bits_are_close_to_those_of_float32(precision):
    found, wanted = (_losses(bench(_job(one))) for one in (precision, None))
    assert np.all(found != wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-2)


def test_stages_and_experts_compute_in_8_bits():
    model = {"layers": 4, "moe": {"count": 4, "capacity_factor": 2.0}}
    data = {"grad_accum_steps": 2}
    wide, one, many = (
        _losses(bench(_job(precision, model=model, data=data, mesh=mesh), devices), 5)
        for precision, devices, mesh in (
            (None, 1, {}), ("int8", 1, {}), ("int8", 8, {"pipeline": 2, "expert": 2})
        )
    )  # fmt: skip
    np.testing.assert_allclose(one, many, rtol=MESH_TOLERANCE)
    np.testing.assert_allclose(one, wide, rtol=1e-2)
    assert np.all(one != wide)


PRODUCTS = {
    "none": ({"remat": "none"}, 21),
    "dots keeps the products": ({"remat": "dots"}, 21),
    "full repeats all but the last": ({"remat": "full"}, 27),
    "experts, without the router": ({"moe": {"count": 4, "capacity_factor": 2.0}}, 21),
}


@pytest.mark.parametrize(("model", "count"), PRODUCTS.values(), ids=PRODUCTS)
def test_all_products_of_a_layer_have_8_bits_in_three_passes(model, count):
    """Seven kernels: queries, keys, values, the output of attention, gate, up and down."""
    made = bench(_job("int8", model=model))
    network, batch = made.program.network, jax.tree.map(lambda x: x[0], made.batch(1))
    params = jax.eval_shape(network.initial, SEED_SHAPE)
    text = str(jax.make_jaxpr(jax.grad(lambda p: losses.loss_sum(network.bind(p), batch)))(params))
    assert len(re.findall(r":i32\[[^\]]*\] = dot_general\[", text)) == count


def test_devices_gather_kernels_in_8_bits():
    """Each kernel is gathered whole, in no other dtype."""
    made = bench(_job("int8", mesh={"fsdp": 4}), 4)
    kernels = {
        array.shape[1:]
        for array in made.plan.parameters
        if array.name.startswith("layers.") and array.name.endswith(".kernel")
    }
    gathers = re.findall(r"= (\w+)\[(?:1,)?([\d,]+)\]\S* all-gather\(", made.text)
    widths = {kernel: set() for kernel in kernels}
    for dtype, dims in gathers:
        widths.get(tuple(map(int, dims.split(","))), set()).add(dtype)
    assert widths == {kernel: {"s8"} for kernel in kernels}


def test_rematerialization_in_8_bits_changes_no_loss():
    wanted = _losses(bench(_job("int8")), 5)
    for remat in ("dots", "full"):
        found = _losses(bench(_job("int8", model={"remat": remat})), 5)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_adapters_train_beside_products_in_8_bits():
    adapters = {
        "lora": {"rank": 4, "alpha": 8.0},
        "checkpoint": {"every_steps": 1, "init_from": "base"},
        "optimizer": {"learning_rate": 1e-2},
    }
    wide, narrow = (_losses(bench(_job(one, **adapters)), 10) for one in (None, "int8"))
    assert narrow[-1] < narrow[0]
    np.testing.assert_allclose(narrow, wide, rtol=1e-2)
