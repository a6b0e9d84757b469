"""Replays steps of a run as runs of their own, in a temporary folder."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher import api
from launcher.audit.differences import Steps
from launcher.audit.hosts import Order, usual
from launcher.audit.recorded import Recorded
from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.errors import JobError, UsageError
from launcher.executors.options import LaunchOptions
from launcher.planning.planner import TrainingLaunch, make_launch
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, Loaded, dump
from trainer.contract.planning.plan import Plan, Replay
from trainer.contract.records import replay_file

QUIET = (
    "storage=null", "after=[]", "eval=null", "sample=null", "tensorboard=false", "wandb=null",
    "profile=null", "notify=[]", "budget=null", "preemptible=false", "log_every=1",
    "retries.failures=0", "retries.preemptions=0",
)  # fmt: skip
"""Changes to the job of a replay that change no number of a step."""
OF_PROGRAM = {"warnings", "corpus", "save_statistics", "replay"}
"""Parts of a plan that do not belong to the program of a step."""


class Replays:
    """Replays on one cluster; each is a run of its own."""

    def __init__(
        self,
        recorded: Recorded,
        cluster: Loaded[Cluster],
        cluster_ref: ClusterRef,
        overrides: Sequence[str],
        folder: Path,
        on_start: Callable[[str], None],
    ) -> None:
        """Plans the replays. Raises ConfigError when the job does not fit the cluster."""
        self._recorded, self._folder, self._on_start = recorded, folder, on_start
        self._cluster, self._cluster_ref = cluster, cluster_ref
        self._overrides = [*QUIET, *overrides]
        self.count = 0
        """Number of replays so far."""
        self.launch = self._planned("plan", [])

    @property
    def plan(self) -> Plan:
        return self.launch.plan

    @property
    def hosts(self) -> int:
        return self.plan.world.hosts

    @property
    def can_move(self) -> bool:
        """Whether a host can do the work of another one. In a TPU slice its place decides."""
        return self.hosts > 1 and (self.plan.world.platform != "tpu" or self.plan.world.on_cpu)

    def replay(self, first: int, last: int, order: Order, *, reordered: bool = False) -> Steps:
        """Returns what steps have computed. Raises JobError when the replay fails."""
        self.count += 1
        self._on_start(self._described(first, last, order, reordered=reordered))
        name = f"replay-{self.count}"
        changes = [self._other_sums()] if reordered else []
        launch = self._planned(name, [f"stop_after_step={last}", *changes])
        start = self._recorded.start
        replay = Replay(
            checkpoint=str(start.folder) if start else None,
            first_step=first,
            exclusions=self._recorded.checkpoint_folder,
            reordered=reordered,
        )
        plan = launch.plan.model_copy(update={"replay": replay})
        # It saves nothing, so that its hosts need no storage.
        launch = replace(launch, plan=plan, host_order=order, storage_problem="")
        api.start(launch, LaunchOptions(quiet=True, compile_check=False))
        try:
            found = replay_file.read(launch.run_dir)
        except FileNotFoundError:
            raise JobError(
                f"replay {self.count} has recorded nothing: it did not get the {self.hosts} hosts "
                "of its plan"
            ) from None
        if missing := set(range(first, last + 1)) - set(found):
            raise JobError(f"replay {self.count} has not recorded step {min(missing)}")
        return found

    def _planned(self, name: str, overrides: Sequence[str]) -> TrainingLaunch:
        """Plans a run of the recorded job with changes."""
        path = self._folder / f"{name}.yaml"
        path.write_text(dump(self._recorded.job), encoding="utf-8")
        given = [f"name={name}", *self._overrides, *overrides]
        if self._recorded.job.checkpoint:
            given += ["checkpoint.in_memory_every_steps=null"]
        launch = make_launch(
            load_job(path, given), self._cluster, self._folder / "runs", self._cluster_ref
        )
        assert isinstance(launch, TrainingLaunch)
        return launch

    def _other_sums(self) -> str:
        """Returns an override that sums the gradient of a step in another order.

        Raises UsageError when no other number of micro-batches fits.
        """
        now = self.plan.batch.grad_accum_steps
        for other in (2 * now, now // 2):
            override = f"data.grad_accum_steps={other}"
            with suppress(ConfigError):
                self._planned("reordered", [override])
                return override
        raise UsageError(
            f"data.grad_accum_steps: neither {2 * now} nor {now // 2} fits this mesh, so the "
            "tolerance of rounding cannot be measured. Use fewer devices, or the mesh of the run"
        )

    def _described(self, first: int, last: int, order: Order, *, reordered: bool) -> str:
        start = self._recorded.start_step
        moved = [host for place, host in enumerate(order) if place != host]
        if order == usual(self.hosts):
            how = "every host in its place"
        else:
            how = f"hosts moved: {', '.join(map(str, sorted(moved)))}"
        sums = ", sums in another order" * reordered
        return f"replay {self.count}: steps {start + 1} to {last}, {how}{sums}"


def is_same_computation(recorded: Recorded, replays: Replays) -> bool:
    """Returns whether the plan and the job of the replays compute each step as the run did."""
    plans = [plan.model_dump(exclude=OF_PROGRAM) for plan in recorded.plans.values()]
    now = replays.plan.model_dump(exclude=OF_PROGRAM)
    is_known = len(plans) == len({one.attempt for one in recorded.steps.values()})
    return (
        is_known
        and all(plan == now for plan in plans)
        and _is_same_job(recorded.job, replays.launch.job)
    )


def _is_same_job(recorded: Job, replayed: Job) -> bool:
    keys = ("model", "lora", "data", "mesh", "optimizer", "seed")
    return all(getattr(recorded, key) == getattr(replayed, key) for key in keys)
