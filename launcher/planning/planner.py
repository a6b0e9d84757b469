"""(Job, Cluster) -> LaunchSpec: the plan, and each process's command and environment.

Starts nothing and writes nothing: `launch plan` prints the result, and `launch run` starts exactly
that result.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from launcher.cluster.schema import Cluster, ClusterRef, find_cluster
from launcher.planning import budget, host_check, host_memory, notify_targets, trainer_process
from launcher.planning.command import CommandLaunch
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.data import Data
from trainer.contract.config.job import BaseJob, Job
from trainer.contract.config.loader import ConfigError, Loaded
from trainer.contract.config.task_file import load_tasks
from trainer.contract.errors import Problem
from trainer.contract.estimates import host_memory as estimates
from trainer.contract.estimates.activations import offloaded_bytes
from trainer.contract.estimates.host_check import HostCheckCost, host_check_cost
from trainer.contract.estimates.host_memory import HostMemory
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.planning import accelerators, optimizer_state, planner
from trainer.contract.planning.plan import BasePlan, Corpus, Plan, World
from trainer.contract.planning.save_interval import SaveInterval, choose, settled
from trainer.contract.protocol.environment import HOST_MEMORY_BYTES
from trainer.contract.records.teacher import teacher_model
from trainer.contract.storage import corpus
from trainer.contract.storage.paths import is_url
from trainer.contract.storage.retries import StorageError
from trainer.contract.storage.tokenizer_info import VocabularyError, vocabulary

AnyJob = TypeVar("AnyJob", bound=BaseJob)

COORDINATOR_PLACEHOLDER = "<first host>:<free port>"
GLIBC_TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
OPENBLAS_THREAD_TIMEOUT, SHORT_WAIT = "OPENBLAS_THREAD_TIMEOUT", "20"
"""An idle thread of NumPy's OpenBLAS spins for 2**20 cycles before it sleeps, not for 2**28. NumPy
starts one for every core when it is imported: https://github.com/numpy/numpy/issues/29193."""
NOTHING_TO_SAVE_S = 2.0
FAILURE_GRACE_S = 0.2
"""Most trainers are stuck then, in a step that lacks a process, and cannot react. What they were
saving cannot be committed without it."""


def library_environment(world: World) -> dict[str, str]:
    """Returns the variables of the C libraries that trainers load.

    The launching user's settings take precedence: glibc's follow ours, and it uses the last one.
    """
    variables = {
        OPENBLAS_THREAD_TIMEOUT: os.environ.get(OPENBLAS_THREAD_TIMEOUT, SHORT_WAIT),
    }
    if world.on_cpu:
        # XLA allocates its buffers with malloc in every step. Huge pages avoid most page faults.
        own = [one for one in os.environ.get(GLIBC_TUNABLES, "").split(":") if one]
        tunables = own if HUGE_PAGES in own else [HUGE_PAGES, *own]
        variables[GLIBC_TUNABLES] = ":".join(tunables)
    return variables


@dataclass(frozen=True, kw_only=True)
class TrainingLaunch(LaunchSpec):
    """One attempt of a training job."""

    job: Job
    plan: Plan

    def command(self, process: int) -> list[str]:
        """Returns the process's command, the same for all hosts: the environment has the rank."""
        del process
        return [sys.executable, "-m", "trainer", str(self.run_dir / "job.yaml")]

    def standby_command(self, process: int, *, check: bool) -> list[str]:
        """Returns the command of a standby process; a check compares versions, code and data."""
        del process
        options = ["--check", "--standby"] if check else ["--standby"]
        return [sys.executable, "-m", "trainer", *options, str(self.run_dir / "job.yaml")]

    def environment(self, process: int) -> dict[str, str]:
        """Returns the variables of one process.

        The agent adds the coordinator's address and the event pipe.
        """
        size = self.in_memory_bytes // self.plan.world.processes_per_host
        memory = {HOST_MEMORY_BYTES: str(size)} if size else {}
        return {
            **super().environment(process),
            **library_environment(self.plan.world),
            **memory,
        }

    def plan_on(self, world: World) -> Plan | None:
        """Returns a plan with the same global batch.

        Returns None if the mesh or the batch does not fit, or a host's memory is too small.
        """
        plan = _shrunken(self.job, self.plan, world)
        if plan is None:
            return None
        forecast = self._host_memory(plan)
        return plan if host_memory.fits(self.cluster, world, forecast) else None

    @property
    def grace_s(self) -> float:
        """Seconds that the trainer may take to save and end after a stop request."""
        return self.job.checkpoint.grace_s if self.job.checkpoint else NOTHING_TO_SAVE_S

    @property
    def failure_grace_s(self) -> float:
        return FAILURE_GRACE_S

    @property
    def corpus_sha256(self) -> str | None:
        return self.plan.corpus.sha256

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters on one device."""
        return sum(array.bytes_per_device for array in self.plan.parameters)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients on one device: as many as of the trained parameters."""
        return _gradient_bytes(self.plan)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer moments on one device."""
        return _optimizer_bytes(self.job, self.plan)

    @property
    def teacher_bytes(self) -> int:
        """Bytes of the weights of a teacher on one device; 0 without one."""
        return self.plan.teacher_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the trained parameters and their moments, each once; 0 if none are saved."""
        return estimates.checkpoint_bytes(self.job, self.plan) if self.saves else 0

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of in-memory checkpoints on each host: its slots, for itself and a neighbor."""
        return estimates.in_memory_bytes(self.job, self.plan)

    @property
    def first_save_interval(self) -> SaveInterval | None:
        """The interval between checkpoints when the run starts; None without `auto`."""
        known = self.plan.save_statistics
        return known and choose(known, self.plan.world.hosts)

    @property
    def settled_save_interval(self) -> SaveInterval | None:
        """The interval if the hosts fail as often as published; None without `auto`."""
        known = self.plan.save_statistics
        return known and settled(known, self.plan.world.hosts)

    @property
    def standby_bytes(self) -> int:
        """Bytes of the standby processes on each host beside the programs; 0 without one."""
        return estimates.standby_bytes(self.job, self.plan)

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of activations that a device copies to its host's memory in a step, and back."""
        return offloaded_bytes(self.job, self.plan)

    @property
    def offloaded_moments_bytes(self) -> int:
        """Bytes of moments that a device copies from its host's memory in a step, and back."""
        return optimizer_state.offloaded_bytes(self.job.optimizer, self.plan)

    @property
    def host_memory(self) -> HostMemory:
        """Forecast of the memory of each host."""
        return self._host_memory(self.plan)

    def _host_memory(self, plan: Plan) -> HostMemory:
        may_shrink = any(one.hosts < plan.world.hosts for one in self.smaller_worlds)
        return estimates.host_memory(self.job, plan, may_shrink=may_shrink)

    @property
    def host_check(self) -> HostCheckCost | None:
        """The cost of checks of hosts; None without checks."""
        return host_check_cost(self.job, self.plan, self.bounds)

    @property
    def bounds(self) -> Bounds | None:
        """Bounds of one step's time; None when the specifications of the devices are unknown."""
        return bounds(self.job, self.plan)


def load(
    job_file: Path, overrides: Sequence[str], cluster: str
) -> tuple[Loaded[Job | CommandJob], Loaded[Cluster]]:
    """Reads the files that the arguments of a command name.

    Raises ConfigError with every problem of the files and the overrides.
    """
    problems: list[Problem] = []
    job = found = None
    try:
        job = load_job(job_file, overrides)
    except ConfigError as error:
        problems += error.problems
    try:
        found = find_cluster(cluster)
    except ConfigError as error:
        problems += error.problems
    if job is None or found is None:
        raise ConfigError(problems)
    return job, found


def make_launch(
    job: Loaded[Job | CommandJob], cluster: Loaded[Cluster], runs: Path, cluster_ref: ClusterRef
) -> TrainingLaunch | CommandLaunch:
    """Checks a job against a cluster and plans it. Raises ConfigError with every problem found."""
    try:
        world = cluster.value.world(cluster_ref.simulated, cluster_ref.simulate_hosts)
    except ValueError as error:
        raise ConfigError([f"--simulate-hosts {cluster_ref.simulate_hosts}: {error}"]) from error
    if problem := budget.problem(job.value.budget, cluster.value):
        raise ConfigError([job.problem("budget.dollars", problem)])
    stored = _with_storage(job.value, cluster.value)
    where: dict[str, Any] = {
        "cluster": cluster.value,
        "cluster_name": Path(cluster.source).stem,
        "run_dir": (runs / stored.name).absolute(),
        "cluster_ref": cluster_ref.lasting(),
    }
    notes = tuple(notify_targets.warnings(stored))
    if isinstance(stored, CommandJob):
        return CommandLaunch(job=stored, plan=BasePlan(world=world, warnings=notes), **where)
    plan = _plan(stored, job.problem, world)
    problem = _storage_problem(stored, job.source, cluster, world)
    if problem:
        plan = _with_warning(plan, problem)
    launch = TrainingLaunch(job=stored, plan=plan, storage_problem=problem, **where)
    if too_large := host_memory.problem(job.problem, cluster.value, world, launch.host_memory):
        raise ConfigError([too_large])
    hbm = _hbm_bytes(world)
    state = _state_bytes(stored, plan)
    if too_large := host_check.problem(job.problem, launch.host_check, state, hbm):
        raise ConfigError([too_large])
    for note in (budget.warning(launch), *host_check.warnings(stored, plan), *notes):
        plan = _with_warning(plan, note) if note else plan
    return replace(launch, plan=plan)


def _plan(job: Job, problem: Callable[[str, str], Problem], world: World) -> Plan:
    """Plans a job. Raises ConfigError with the key and location of everything that does not fit."""
    data, problems = job.data, _task_problems(job)
    try:
        corpus_seen = Corpus(source=data.source, sha256=_digest(data))
        plan = planner.resolve(job, world, corpus_seen, trainer_process.parameters, teacher_model)
    except planner.PlanError as error:
        of_job = [problem(*one) for one in error.problems]
        raise ConfigError([*of_job, *problems]) from error
    except (StorageError, corpus.DataError) as error:
        raise ConfigError([str(error)]) from error
    if problems:
        raise ConfigError(problems)
    return _with_memory_warning(job, plan)


def _digest(data: Data) -> str | None:
    """Returns the hash of the tokens; None where only the hosts can compute it.

    It is also None for a tokenizer that cannot be used, which the planner reports with its key.
    """
    try:
        vocabulary(data)
    except VocabularyError:
        return None
    return None if corpus.is_of_hosts(data) else corpus.digest(data)


def _task_problems(job: Job) -> Sequence[Problem]:
    """Returns what is wrong with the task files of a job."""
    try:
        load_tasks(job)
    except ConfigError as error:
        return error.problems
    return []


def _shrunken(job: Job, whole: Plan, world: World) -> Plan | None:
    """Returns the plan on fewer hosts: same global batch, no more tokens on a device at a time.

    Devices process their additional rows in more micro-batches. Returns None when the mesh or the
    batch does not fit.
    """
    for grad_accum_steps in range(job.data.grad_accum_steps, job.data.global_batch + 1):
        data = job.data.model_copy(update={"grad_accum_steps": grad_accum_steps})
        try:
            other = job.model_copy(update={"data": data})
            plan = planner.resolve(
                other,
                world,
                whole.corpus,
                lambda _: trainer_process.planned(whole.parameters),
                whole.teacher_model,
            )
        except planner.PlanError:
            continue
        if plan.batch.tokens_per_device <= whole.batch.tokens_per_device:
            return _with_memory_warning(job, plan)
    return None


def _with_storage(job: AnyJob, cluster: Cluster) -> AnyJob:
    """Returns the job with its storage, else the cluster's; a relative path becomes absolute."""
    storage = job.storage or cluster.storage
    if storage and not is_url(storage) and not storage.startswith("~"):
        storage = str(Path(storage).absolute())
    return job.model_copy(update={"storage": storage})


def _storage_problem(job: Job, job_source: str, cluster: Loaded[Cluster], world: World) -> str:
    """Returns a problem if `storage` is missing where the hosts need it, else ""."""
    if job.storage or job.checkpoint is None or world.simulated:
        return ""
    if not cluster.value.provider.needs_storage(world.hosts):
        return ""
    return (
        f"storage: missing in {job_source} and in {cluster.source}. Set it in one of them to a "
        "folder that all hosts share, or to gs://BUCKET/FOLDER: checkpoints are kept there. "
        "(checkpoint=null saves none; --simulate needs no storage)"
    )


def _state_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of parameters, gradients, moments and a teacher on one device."""
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    return parameters + _optimizer_bytes(job, plan) + _gradient_bytes(plan) + plan.teacher_bytes


def _optimizer_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of moments on one device; offloaded ones are not on it."""
    every = optimizer_state.bytes_per_device(job.optimizer, plan)
    return every - optimizer_state.offloaded_bytes(job.optimizer, plan)


def _gradient_bytes(plan: Plan) -> int:
    return sum(array.bytes_per_device for array in plan.trained)


def _hbm_bytes(world: World) -> int | None:
    """Returns the bytes of memory of a device; None if they are unknown."""
    if world.platform == "cpu":
        return None
    return accelerators.parse(world.accelerator, hosts=world.hosts_per_slice).hbm_bytes


def _with_memory_warning(job: Job, plan: Plan) -> Plan:
    """Adds a warning if the training state alone is larger than the memory of a device."""
    hbm_bytes, needed = _hbm_bytes(plan.world), _state_bytes(job, plan)
    if hbm_bytes is None or needed <= hbm_bytes:
        return plan
    warning = (
        f"does not fit: parameters, gradients and optimizer alone need {needed / 2**30:.1f} GiB "
        f"of {hbm_bytes / 2**30:.1f} GiB per device. Use more devices or a larger fsdp axis"
    )
    return _with_warning(plan, warning)


def _with_warning(plan: Plan, warning: str) -> Plan:
    return plan.model_copy(update={"warnings": (*plan.warnings, warning)})
