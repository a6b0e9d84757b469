"""Whether there is a compiler here for an accelerator that is elsewhere."""

from importlib.util import find_spec

from trainer.spec.plan import World


def lacks_compiler(world: World) -> str:
    """Why nobody here can compile for a world, and what helps; "": somebody can."""
    if world.on_cpu:
        return "it is for a real TPU: name one, and leave out --simulate"
    if world.platform != "tpu" or not (world.topology and world.host_bounds):
        return f"{world.accelerator}: only for TPUs there is a compiler without one"
    if find_spec("libtpu") is None:
        return "the TPU compiler is not installed: uv sync --extra tpu"
    return ""
