"""The sharding of each parameter, and its bytes on a device."""

import math

from trainer.contract.planning import lora, sharding_rules
from trainer.contract.planning.parameter_shapes import BALANCING_BIASES, Parameter
from trainer.contract.planning.plan import ArrayPlan, Dtype, Plan

FLOAT32_BYTES = 4
DTYPE_BYTES = {"float32": FLOAT32_BYTES, "bfloat16": 2}


def array_plan(parameter: Parameter, mesh: dict[str, int]) -> ArrayPlan:
    """Returns the plan of a parameter that is trained, in float32."""
    spec = sharding_rules.partition(parameter.shape, parameter.axes, mesh)
    parts = math.prod(sharding_rules.parts(entry, mesh) for entry in spec)
    return ArrayPlan(
        name=parameter.name,
        shape=parameter.shape,
        axes=parameter.axes,
        spec=spec,
        bytes_per_device=parameter.size // parts * FLOAT32_BYTES,
    )


def frozen(parameter: Parameter, mesh: dict[str, int], dtype: Dtype) -> ArrayPlan:
    """Returns a frozen parameter's plan. Norms and biases of experts stay float32.

    They compute in it, and are small.
    """
    is_wide = "norm" in parameter.axes or parameter.name == BALANCING_BIASES
    kept: Dtype = "float32" if is_wide else dtype
    plan = array_plan(parameter, mesh)
    size = plan.bytes_per_device // FLOAT32_BYTES * DTYPE_BYTES[kept]
    return plan.model_copy(update={"bytes_per_device": size, "is_trained": False, "dtype": kept})


def is_quantized(array: ArrayPlan, plan: Plan) -> bool:
    """Returns whether `model.precision` applies: to the kernels of layers, except routers."""
    is_kernel = "layer" in array.axes and array.name.endswith(lora.KERNEL)
    return plan.precision is not None and is_kernel and "router" not in array.axes
