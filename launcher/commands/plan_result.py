"""The plan of a run, and the processes that would start, for JSON output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.cluster.schema import Cluster
from launcher.planning import host_memory
from launcher.planning.forecast import Forecast, forecast
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.ui.plan_view import bytes_per_device, environment
from trainer.contract.config.command import CommandJob
from trainer.contract.config.job import Job
from trainer.contract.estimates.host_check import HostCheckCost
from trainer.contract.estimates.roofline import Bounds
from trainer.contract.planning.plan import ArrayPlan, BasePlan, Plan
from trainer.contract.planning.save_interval import SaveInterval
from trainer.contract.protocol.reports import StepSchedule


@dataclass(frozen=True, kw_only=True)
class PlannedProcess:
    """A process that would start."""

    process: int
    """Number of the process, from 0."""
    host: int
    """Number of its host, from 0."""
    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables that are set for it; the values of secrets are hidden."""


@dataclass(frozen=True, kw_only=True)
class ArrayLayout:
    """The sharding of one parameter."""

    name: str
    axes: Sequence[str]
    """Logical axis of each dim."""
    spec: Sequence[str | None]
    """Mesh axis of each dim; None for a dim that is not split."""
    bytes_per_device: int

    @classmethod
    def of(cls, array: ArrayPlan) -> "ArrayLayout":
        """Returns the fields of an array's plan that are printed."""
        return cls(
            name=array.name,
            axes=array.axes,
            spec=array.spec,
            bytes_per_device=array.bytes_per_device,
        )


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """FLOPs of one step on all devices. A multiply-add counts as two."""

    model: float
    program: float
    """Recomputation by rematerialization included."""


@dataclass(frozen=True, kw_only=True)
class StepBounds:
    """Bounds of one step: times in seconds, and the rates that follow from them."""

    compute_s: float
    hbm_s: float
    ici_s: float
    """Seconds over the links of an island: a slice of TPUs, a host of GPUs."""
    dcn_s: float
    """Seconds over the network between islands; 0 when its bandwidth is unknown."""
    link_s: float
    """Seconds over links and network, whose transfers overlap."""
    step_s: float
    """The longest of these times."""
    mfu: float
    """Model FLOPs utilization of a step that takes `step_s`."""
    tokens_per_s: float

    @classmethod
    def of(cls, best: Bounds) -> "StepBounds":
        """Returns the bounds that are printed."""
        return cls(
            compute_s=best.compute_s,
            hbm_s=best.hbm_s,
            ici_s=best.ici_s,
            dcn_s=best.dcn_s,
            link_s=best.link_s,
            step_s=best.step_s,
            mfu=best.mfu,
            tokens_per_s=best.tokens_per_s,
        )


@dataclass(frozen=True, kw_only=True)
class HostMemoryPhase:
    """A moment of a run, and what is in a host's memory then."""

    name: str
    """`prepare` (tokenize text), `restore`, `compile`, `run` or `save`."""
    parts: Mapping[str, int]
    """Part -> bytes."""
    bytes: int
    """Sum of the parts."""


@dataclass(frozen=True, kw_only=True)
class HostMemoryForecast:
    """Forecast of the memory of each host, in bytes."""

    phases: Sequence[HostMemoryPhase]
    peak: str
    """Name of the phase that needs the most."""
    peak_bytes: int
    available_bytes: int | None
    """Memory of a host; None when it is unknown, or the hosts are simulated."""
    export_bytes: int
    """Bytes that `launch checkpoints export` needs on the machine where it runs; 0 when the model
    cannot be exported."""

    @classmethod
    def of(cls, launch: TrainingLaunch) -> "HostMemoryForecast":
        """Returns the forecast of a launch, with the memory of its hosts."""
        found = launch.host_memory
        return cls(
            phases=[
                HostMemoryPhase(name=phase.name, parts=phase.parts, bytes=phase.total)
                for phase in found.phases
            ],
            peak=found.peak.name,
            peak_bytes=found.peak.total,
            available_bytes=host_memory.available_bytes(launch.cluster, launch.plan.world),
            export_bytes=found.export_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The plan of a run."""

    job: Job | CommandJob
    """The job with its defaults filled in."""
    cluster: Cluster
    run_dir: str
    """Directory of the run."""
    plan: Plan | BasePlan
    """All that the launcher and the processes agree on."""
    processes: Sequence[PlannedProcess]
    bytes_per_device: Mapping[str, int] | None
    """Bytes of the training state on a device, by part; None for a job with `command`."""
    in_memory_bytes_per_host: int | None
    """Bytes of in-memory checkpoints; None for a job with `command`."""
    standby_bytes_per_host: int | None
    """Bytes of a standby process; None for a job with `command`."""
    host_memory: HostMemoryForecast | None
    """Forecast of the memory of each host; None for a job with `command`."""
    offloaded_bytes_per_device: int | None
    """Bytes of activations that a device copies to the memory of its host in a step, and as many
    back; None for a job with `command`."""
    offloaded_moments_bytes_per_device: int | None
    """Bytes of moments that a device copies from the memory of its host in a step, and as many
    back; None for a job with `command`."""
    checkpoint_interval: SaveInterval | None
    """The first interval of `checkpoint.every_minutes: auto`; None without `auto`."""
    settled_checkpoint_interval: SaveInterval | None
    """The interval that follows if hosts fail as often as published; None without `auto`."""
    host_check: HostCheckCost | None
    """The cost of the checks of `integrity`; None without them, and on one host."""
    arrays: Sequence[ArrayLayout] | None
    """The sharding of every parameter; None for a job with `command`."""
    flops: StepFlops | None
    """None when the specifications of the devices are unknown."""
    bounds: StepBounds | None
    """None when the specifications of the devices are unknown."""
    forecast: Forecast | None
    """None when the speed of the devices or of the program is unknown."""


def plan_result(spec: LaunchSpec, schedule: StepSchedule | None = None) -> PlanResult:
    """Returns the plan, and the processes that would start.

    `schedule`: the time of a compiled step, on which the forecast is then based.
    """
    assert isinstance(spec.job, Job | CommandJob)
    training = spec if isinstance(spec, TrainingLaunch) else None
    best = training and training.bounds
    return PlanResult(
        job=spec.job,
        cluster=spec.cluster,
        run_dir=str(spec.run_dir),
        plan=spec.plan,
        processes=[_process(spec, process) for process in range(spec.plan.world.processes)],
        bytes_per_device=training and bytes_per_device(training),
        in_memory_bytes_per_host=training and training.in_memory_bytes,
        standby_bytes_per_host=training and training.standby_bytes,
        host_memory=training and HostMemoryForecast.of(training),
        offloaded_bytes_per_device=training and training.offloaded_bytes,
        offloaded_moments_bytes_per_device=training and training.offloaded_moments_bytes,
        checkpoint_interval=training and training.first_save_interval,
        settled_checkpoint_interval=training and training.settled_save_interval,
        host_check=training and training.host_check,
        arrays=training and [ArrayLayout.of(array) for array in training.plan.parameters],
        flops=best and StepFlops(model=best.model_flops, program=best.program_flops),
        bounds=best and StepBounds.of(best),
        forecast=training and forecast(training, schedule),
    )


def _process(spec: LaunchSpec, process: int) -> PlannedProcess:
    return PlannedProcess(
        process=process,
        host=spec.plan.world.host_of(process),
        command=spec.command(process),
        environment=environment(spec, process),
    )
