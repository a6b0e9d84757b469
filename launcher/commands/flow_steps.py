"""`launch flow`: the steps of a flow file, each with the job that it runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.chains.checkpoints import named
from launcher.chains.link import link, source_of
from launcher.cluster.schema import Cluster, ClusterRef, find_cluster
from launcher.core.errors import SlipwayError
from launcher.flow.schema import Flow, Step
from launcher.planning.planner import load, make_launch
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.checkpoint_ref import CheckpointRef
from trainer.contract.config.command import CommandJob
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, Loaded
from trainer.contract.config.yaml import dump_inline
from trainer.contract.errors import Place, Problem


@dataclass(frozen=True)
class StepCommand:
    """The arguments of `launch` in a step."""

    path: tuple[str, ...]
    """Names of the command: `checkpoints`, `export`."""
    arguments: tuple[str, ...]
    runs: tuple[str, ...]
    """The runs and checkpoints that it reads."""
    creates: Path | None
    """The file or folder that it writes; None for output only."""


@dataclass(frozen=True, kw_only=True)
class FlowRequest:
    """The arguments of `launch flow`."""

    flow_file: Path
    cluster_ref: ClusterRef
    runs: Path
    parse_command: Callable[[Sequence[str]], StepCommand]
    """Reads the arguments of `launch` in a step. Raises ValueError."""


@dataclass(frozen=True, kw_only=True)
class FlowStep:
    """A step: a job, or a command of `launch`, which is a job that runs it."""

    job: Loaded[Job | CommandJob]
    cluster: Loaded[Cluster]
    cluster_ref: ClusterRef
    where: Place
    """Location of the step in the flow file."""
    reads: tuple[CheckpointRef, ...]
    """The checkpoints that it reads."""
    creates: Path | None = None
    """The file or folder that its command writes."""
    needs: tuple[str, ...] = ()
    """The steps that it waits for."""

    @property
    def name(self) -> str:
        return self.job.value.name

    @property
    def refers_to(self) -> tuple[str, ...]:
        """All steps, runs and folders that it waits for or reads."""
        return tuple(dict.fromkeys([*self.job.value.after, *(ref.run for ref in self.reads)]))

    def problem(self, message: str) -> Problem:
        """Returns a problem with the place of the step."""
        return Problem(**vars(self.where), message=message)

    def after_all(self, names: Collection[str]) -> "FlowStep":
        """Returns the step that waits for all those of `names` that it refers to."""
        needs = tuple(name for name in self.refers_to if name in names)
        after = tuple(dict.fromkeys([*self.job.value.after, *needs]))
        job = self.job.value.model_copy(update={"after": after})
        return replace(self, job=replace(self.job, value=job), needs=needs)

    def plan(self, runs: Path, upcoming: Collection[str] = ()) -> LaunchSpec:
        """Plans the step. `upcoming`: steps that have not finished. Raises ConfigError."""
        spec = make_launch(self.job, self.cluster, runs, self.cluster_ref)
        return link(spec, self.job.problem, upcoming)


class StepFile:
    """A step as the flow file has it."""

    def __init__(self, request: FlowRequest, flow: Loaded[Flow], number: int, step: Step) -> None:
        self._request, self._step = request, step
        self._flow, self._key = flow, f"steps.{number}"

    def read(self) -> FlowStep:
        """Reads the job or the command. Raises ConfigError."""
        return self._job() if self._step.job else self._command()

    def _job(self) -> FlowStep:
        assert self._step.job is not None
        ref = self._request.cluster_ref
        ref = ref.model_copy(update={"name": self._step.cluster or ref.name})
        file = self._request.flow_file.parent / self._step.job
        try:
            job, cluster = load(file, list(self._changes), ref.name)
        except ConfigError as error:
            raise ConfigError(
                [self._located(problem, file) for problem in error.problems]
            ) from None
        places = {key: self._place(place) for key, place in job.places.items()}
        return self._step_of(replace(job, places=places), cluster, ref)

    def _command(self) -> FlowStep:
        assert self._step.name is not None and self._step.launch is not None
        try:
            command = self._request.parse_command(self._step.launch)
            reads = tuple(named(run) for run in command.runs)
        except (ValueError, SlipwayError) as error:
            raise ConfigError([self._problem("launch", str(error))]) from None
        line = [*command.path, "--runs", str(self._request.runs), *command.arguments]
        job = CommandJob(name=self._step.name, command=["python", "-m", "launcher", *line])
        here, ref = _this_machine()
        step = self._step_of(Loaded(job, self._flow.source, {}), here, ref)
        return replace(step, reads=reads, creates=command.creates)

    def _step_of(
        self, job: Loaded[Job | CommandJob], cluster: Loaded[Cluster], ref: ClusterRef
    ) -> FlowStep:
        after = tuple(dict.fromkeys([*self._step.after, *job.value.after]))
        source = source_of(job.value)
        return FlowStep(
            job=replace(job, value=job.value.model_copy(update={"after": after})),
            cluster=cluster,
            cluster_ref=ref,
            where=self._flow.where(self._key),
            reads=(source,) if source else (),
        )

    @property
    def _changes(self) -> Mapping[str, str]:
        """The overrides of the job, each with its key in the step."""
        overrides = {
            f"{key}={dump_inline(value)}": f"overrides.{key}"
            for key, value in self._step.overrides.items()
        }
        name = {f"name={self._step.name}": "name"} if self._step.name else {}
        return {**overrides, **name}

    def _located(self, problem: Problem, file: Path) -> Problem:
        """Returns the problem of an override or a missing file with its line in the flow file."""
        if str(problem).startswith(f"{file}: no such file"):
            return self._problem("job", str(problem))
        place = self._place(problem)
        return replace(problem, file=place.file, line=place.line, override=place.override)

    def _place(self, place: Place) -> Place:
        """Returns a place in the job file, or that of an override in the flow file."""
        key = self._changes.get(place.override or "")
        return place if key is None else self._flow.where(f"{self._key}.{key}")

    def _problem(self, key: str, message: str) -> Problem:
        place = self._flow.where(f"{self._key}.{key}")
        return Problem(**vars(place), key=key, message=message)


def _this_machine() -> tuple[Loaded[Cluster], ClusterRef]:
    """Returns one host of this machine, even if the cluster `local` has several."""
    cluster = find_cluster("local")
    hosts = cluster.value.world(simulated=False).hosts
    return cluster, ClusterRef(name="local", simulate_hosts=None if hosts == 1 else 1)
