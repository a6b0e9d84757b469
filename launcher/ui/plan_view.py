"""The output of `launch plan`: tables and the mesh picture, or the same facts as JSON."""

import math
import shlex
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from launcher.core.formatting import describe_hosts, format_bytes, format_seconds, plural, pluralize
from launcher.host.process import SEARCH_PATHS
from launcher.planning import host_memory, job_secrets
from launcher.planning.planner import COORDINATOR_PLACEHOLDER, TrainingLaunch
from launcher.planning.spec import AttemptInfo, LaunchSpec
from launcher.ui.forecast_view import forecast_rows
from trainer.contract.config.model import CustomModel
from trainer.contract.estimates.host_check import HostCheckCost
from trainer.contract.estimates.roofline import Bounds
from trainer.contract.planning import accelerators, pipeline, sharding_rules
from trainer.contract.planning.plan import ArrayPlan
from trainer.contract.protocol.environment import JAX_COORDINATOR_ADDRESS, PROCESS_ID
from trainer.contract.protocol.process_names import process_noun

INSIDE = ("expert", "context", "tensor")
"""Mesh axes that label the lines of the picture; its headers name the other axes."""
KERNELS = {
    "splash": "the splash kernel",
    "cudnn": "cuDNN's kernel",
    "cudnn_packed": "cuDNN's kernel, document by document",
    "triton": "JAX's Triton kernel",
}
HOST_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


def host_color(process: int) -> str:
    """Returns the colour of a host, the same in the mesh picture and before its log lines."""
    return HOST_COLORS[process % len(HOST_COLORS)]


def print_plan(
    console: Console, launch: LaunchSpec, *, shardings: bool, forecasts: bool = True
) -> None:
    """Prints the whole plan of an attempt; `forecasts`: with an estimated forecast."""
    console.print(f"[bold]{launch.job.name}[/bold] on {describe_world(launch)}", highlight=False)
    if isinstance(launch, TrainingLaunch):
        console.print(Padding(_facts(launch, forecasts=forecasts), (1, 0, 0, 0)))
        console.print(Padding(mesh_picture(launch, console.width), (1, 0, 0, 0)))
        if shardings:
            console.print(Padding(_shardings(launch.plan.parameters), (1, 0, 0, 0)))
    console.print(Padding(_process(launch), (1, 0, 0, 0)))
    for warning in launch.plan.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)


def describe_world(launch: AttemptInfo) -> str:
    """Describes the cluster in one line: its name, hosts, devices and topology."""
    world = launch.plan.world
    text = f"{launch.cluster_name}: {describe_hosts(world)}"
    if world.accelerator != "cpu":
        text += f" of {world.accelerator}"
    if world.topology:
        text += f", torus {'x'.join(map(str, world.topology))}"
    if world.slices > 1:
        text += f", {world.slices} slices"
    if isinstance(launch, LaunchSpec) and launch.cluster.spares:
        text += f", {launch.cluster.spares} spare"
    return text + (" (simulated on this machine)" if world.simulated else "")


def mesh_picture(launch: TrainingLaunch, width: int) -> RenderableType:
    """Draws the host of each mesh coordinate: a grid of host numbers per stage and `data`."""
    mesh = launch.plan.mesh
    cell = len(str(launch.plan.world.hosts - 1)) + 1
    columns = max(1, (width - 14) // cell)
    grids: list[RenderableType] = [Text("mesh, by host number", style="bold")]
    for outer in range(mesh["pipeline"] * mesh["data"]):
        for start in range(0, mesh["fsdp"], columns):
            fsdp = range(start, min(start + columns, mesh["fsdp"]))
            grids.append(_grid_header(mesh, outer, fsdp, cell))
            grids += [
                _grid_line(launch, outer, fsdp, inside, cell)
                for inside in range(math.prod(mesh[axis] for axis in INSIDE))
            ]
    return Group(*grids)


def _grid_header(mesh: dict[str, int], outer: int, fsdp: range, cell: int) -> Text:
    stage, data = divmod(outer, mesh["data"])
    place = f"data {data:<3}" if mesh["pipeline"] == 1 else f"pi {stage} da {data}"
    span = f"fsdp {fsdp.start}" if len(fsdp) == 1 else f"fsdp {fsdp.start}..{fsdp.stop - 1}"
    return Text(f"  {place}    ".ljust(13) + " " * (cell - 1) + span, style="dim")


def _grid_line(launch: TrainingLaunch, outer: int, fsdp: range, inside: int, cell: int) -> Text:
    """Draws one line of a grid; `inside` is its flat index along the INSIDE axes."""
    mesh, world = launch.plan.mesh, launch.plan.world
    line = Text(f"  {_place_inside(mesh, inside)} ".ljust(13), style="dim")
    for column in fsdp:
        above = (outer * mesh["fsdp"] + column) * math.prod(mesh[axis] for axis in INSIDE)
        position = above + inside
        host = launch.plan.device_order[position] // world.devices_per_host
        line.append(f"{host:>{cell}}", style=f"not dim {host_color(host)}")
    return line


def _place_inside(mesh: dict[str, int], inside: int) -> str:
    """Returns a line's label: `tensor 1`, or `co 0 te 1` when the mesh has rare axes."""
    places = dict[str, int]()
    for axis in reversed(INSIDE):
        inside, places[axis] = divmod(inside, mesh[axis])
    if all(mesh[axis] == 1 for axis in INSIDE if axis != "tensor"):
        return f"tensor {places['tensor']:<3}"
    shown = [axis for axis in INSIDE if axis == "tensor" or mesh[axis] > 1]
    return " ".join(f"{axis[:2]} {places[axis]}" for axis in shown)


def _facts(launch: TrainingLaunch, *, forecasts: bool) -> Table:
    plan, batch = launch.plan, launch.plan.batch
    table = Table.grid(padding=(0, 2))
    table.add_row("mesh", sharding_rules.mesh_text(plan.mesh))
    table.add_row("batch", _batch_text(launch))
    if plan.mesh["context"] > 1:
        table.add_row("sequences", _sequences_text(launch))
    table.add_row("tokens", f"{batch.global_batch * launch.job.data.seq_len:,} a step")
    corpus = plan.corpus.sha256
    seen = f"sha256 {corpus[:16]}" if corpus else "seen by the hosts only"
    table.add_row("corpus", f"{plan.corpus.source}, {seen}")
    table.add_row("parameters", _parameters_text(launch))
    if plan.teacher and launch.job.distill:
        count = sum(_size(array) for array in plan.teacher.parameters)
        table.add_row("teacher", f"{count:,} parameters, from {launch.job.distill.teacher}")
    sizes = bytes_per_device(launch)
    table.add_row("per device", _sizes_text(sizes))
    for kind, moved in (
        ("activations", launch.offloaded_bytes),
        ("moments", launch.offloaded_moments_bytes),
    ):
        if moved:
            text = f"{format_bytes(moved)} of {kind} per device and step, to the host and back"
            table.add_row("offloaded", text)
    for title, text in zip(("per host", ""), _host_memory_lines(launch), strict=True):
        table.add_row(title, text)
    for title, text in zip(("checkpoints", ""), _saving_lines(launch), strict=False):
        table.add_row(title, text)
    if check := launch.host_check:
        table.add_row("host checks", _host_check_text(check))
    if best := launch.bounds:
        for title, text in zip(("at best", "", ""), _bounds_lines(launch, best), strict=True):
            table.add_row(title, text)
    for row in forecast_rows(launch) if forecasts else ():
        table.add_row(*row)
    table.add_row("run", Text(str(launch.run_dir), overflow="fold"))
    return table


def _saving_lines(launch: TrainingLaunch) -> list[str]:
    """Returns a line for the first interval between checkpoints, and one for a later one."""
    first, later = launch.first_save_interval, launch.settled_save_interval
    if first is None or later is None:
        return []
    return [
        f"auto, {first}",
        f"later at most every {format_seconds(later.seconds)}: the published rate of faults is one "
        f"in {format_seconds(later.mtbf_s)}",
    ]


def _host_check_text(check: HostCheckCost) -> str:
    return (
        f"every {pluralize(check.every_steps, 'step')}: {pluralize(check.examples, 'example')} on "
        f"each host, {check.step_time_share:.2%} of the time of steps, "
        f"{format_bytes(check.bytes_per_device)} per device"
    )


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())


def _bounds_lines(launch: TrainingLaunch, best: Bounds) -> tuple[str, str, str]:
    """Returns a line each for a step's times, its rates, and the whole run."""
    world, steps = launch.plan.world, launch.job.last_step
    chips = accelerators.parse(world.accelerator).chips * world.slices
    hours = steps * best.step_s / 3600
    return (
        f"{best.step_s:.3g} s a step: compute {best.compute_s:.3g} s, HBM {best.hbm_s:.3g} s, "
        f"links {best.link_s:.3g} s",
        f"MFU {best.mfu:.1%}, {best.tokens_per_s:,.0f} tokens/s",
        f"{steps:,} steps in {format_seconds(3600 * hours)}, {chips * hours:,.1f} chip-hours",
    )


def _batch_text(launch: TrainingLaunch) -> str:
    batch, world = launch.plan.batch, launch.plan.world
    holder = process_noun(world.processes_per_host)
    text = (
        f"global {batch.global_batch}, per {holder} {batch.rows_per_process}, per device "
        f"{batch.rows_per_device * batch.grad_accum_steps}"
    )
    micro = f"{batch.rows_per_device} at a time in {batch.grad_accum_steps} micro-batches"
    if (stages := launch.plan.mesh["pipeline"]) > 1:
        rounds = launch.plan.pipeline_rounds
        idle = pipeline.bubble(stages, batch.grad_accum_steps, rounds)
        micro += f" through {stages} stages{f' in {rounds} rounds' if rounds > 1 else ''}"
        micro += " by 1f1b" if pipeline.alternates(launch.plan) else ""
        micro += f", which are idle {idle:.0%} of the time"
    shared = f"; {world.processes // batch.blocks} {plural(holder)} share each block"
    return (
        text
        + (f" ({micro})" if batch.grad_accum_steps > 1 or stages > 1 else "")
        + (shared if batch.blocks < world.processes else "")
    )


def _sequences_text(launch: TrainingLaunch) -> str:
    """Describes what devices along `context` have, and how evenly they share attention."""
    plan, model = launch.plan, launch.job.model
    devices, chunks = plan.mesh["context"], plan.batch.chunks
    if isinstance(model, CustomModel):
        return f"{devices} parts in order, for a custom model"
    if chunks == 1:
        heads = model.heads // devices // plan.mesh["tensor"]
        text = f"{devices} parts in order; attention exchanges them for whole ones of {heads} heads"
    else:
        text = f"{chunks} chunks, an early and a late one for each of {devices} devices"
    return f"{text}; attention on the busiest device is {plan.busiest_attention:.2f} x the mean"


def bytes_per_device(launch: TrainingLaunch) -> dict[str, int]:
    """Returns the bytes of the training state on a device, by its parts."""
    teacher = {"teacher": launch.teacher_bytes} if launch.teacher_bytes else {}
    return {
        "parameters": launch.parameter_bytes,
        "optimizer": launch.optimizer_bytes,
        "gradients": launch.gradient_bytes,
        **teacher,
    }


def _parameters_text(launch: TrainingLaunch) -> str:
    plan, model = launch.plan, launch.job.model
    trained = sum(_size(array) for array in plan.trained)
    others = sum(_size(array) for array in plan.parameters) - trained
    if isinstance(model, CustomModel):
        return f"{trained:,} in float32, of {model.module}"
    text = f"{trained:,} in float32, compute in {plan.compute_dtype}"
    if plan.attention in KERNELS:
        text += f", attention by {KERNELS[plan.attention]}"
    if plan.precision:
        text += f", products of layers in {plan.precision}"
    return f"{text}; beside {others:,} that stay as they are" if others else text


def _size(array: ArrayPlan) -> int:
    size = 1
    for dim in array.shape:
        size *= dim
    return size


def _shardings(arrays: tuple[ArrayPlan, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("parameter", no_wrap=True)
    table.add_column("per device", justify="right", no_wrap=True)
    table.add_column("shape: logical axis of each dim = mesh axis that splits it", overflow="fold")
    for array in arrays:
        dims = zip(array.shape, array.axes, array.spec, strict=True)
        layout = ", ".join(
            f"{dim} {name}" + (f"={axis}" if axis else "") for dim, name, axis in dims
        )
        table.add_row(array.name, format_bytes(array.bytes_per_device), layout)
    return table


def environment(launch: LaunchSpec, process: int) -> dict[str, str]:
    """Returns the environment of a process for display, with secrets hidden."""
    coordinator = {JAX_COORDINATOR_ADDRESS: COORDINATOR_PLACEHOLDER}
    hidden = dict.fromkeys(launch.job.secrets, job_secrets.SHOWN)
    return {**coordinator, **launch.environment(process), **hidden}


def _process(launch: LaunchSpec) -> Group:
    """Returns the environment and command of each process, with the values of process 0."""
    count = launch.plan.world.processes_per_host
    title = f"started on each host (host 0 shown; {PROCESS_ID} counts on)"
    if count > 1:
        title = f"started {count} times on each host (process 0 shown; {PROCESS_ID} counts on)"
    lines = [Text(title, style="bold")]
    for name, value in environment(launch, 0).items():
        after = f':"${name}"' if name in SEARCH_PATHS else ""
        lines.append(Text(f"  {name}={shlex.quote(value)}{after} \\", overflow="fold"))
    lines.append(Text(f"  {shlex.join(launch.command(0))}", overflow="fold"))
    return Group(*lines)


def _host_memory_lines(launch: TrainingLaunch) -> tuple[str, str]:
    """Returns the phase of the peak with the memory of a host, its parts, and the other phases."""
    found, world = launch.host_memory, launch.plan.world
    peak, available = found.peak, host_memory.available_bytes(launch.cluster, world)
    of = "" if available is None else f" of {format_bytes(available)}"
    others = {phase.name: phase.total for phase in found.phases if phase.name != peak.name}
    return (
        f"{peak.name} {format_bytes(peak.total)}{of}, {_sizes_text(others)}",
        f"to {peak.name}: {_sizes_text(peak.parts)}",
    )
