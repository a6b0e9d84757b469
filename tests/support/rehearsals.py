"""Small jobs to rehearse, on four hosts of one device each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.planning.planner import TrainingLaunch, make_launch
from launcher.rehearsal.faults import Fault, FaultKind
from launcher.rehearsal.play import Outcome, Scenario, rehearse
from launcher.rehearsal.timings import Timings
from trainer.contract.config.job import Job
from trainer.contract.config.loader import Loaded

HOUR_S = 3600.0
JOB: dict[str, Any] = {
    "name": "rehearsed",
    "steps": 2000,
    "model": {"layers": 1, "d_model": 16, "heads": 2, "d_ff": 32},
    "data": {"source": "stdlib", "seq_len": 16, "global_batch": 12},
    "mesh": {"data": -1, "fsdp": 1},
    "eval": None,
    "checkpoint": {"every_steps": 100},
}
CLUSTER: dict[str, Any] = {
    "accelerator": "cpu",
    "hosts": 4,
    "devices_per_host": 1,
    "provider": {"kind": "local", "price_per_chip_hour": 2.0},
}
TIMINGS = Timings(
    step_s=5.0,
    first_start_s=60.0,
    restart_s=10.0,
    cold_restart_s=30.0,
    first_step_s=2.0,
    agent_start_s=20.0,
    check_s=5.0,
    restore_s=15.0,
    save_blocked_s=1.0,
    save_s=21.0,
    stop_s=2.0,
    replacement_s=120.0,
)
"""Times that are all different, so that a test notices which of them count."""


def scenario(
    job: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    horizon_s: float = 24 * HOUR_S,
    **timings: float | None,
) -> Scenario:
    """Returns a scenario with changes to the job, the cluster and the timings."""
    made_job = Job.model_validate({**JOB, **(job or {})})
    made_cluster = Cluster.model_validate({**CLUSTER, **(cluster or {})})
    launch = make_launch(
        Loaded(made_job, "job.yaml", places={}),
        Loaded(made_cluster, "cluster.yaml", places={}),
        Path("runs"),
        ClusterRef(),
    )
    assert isinstance(launch, TrainingLaunch)
    changes: dict[str, Any] = dict(timings)
    return Scenario.of(launch, replace(TIMINGS, **changes), horizon_s)


def fault(at_s: float, kind: str, host: int = 1, hosts: int = 4) -> Fault:
    """Returns a fault of one of the hosts."""
    return Fault(at_s, FaultKind(kind), (host + 0.5) / hosts)


def played(faults: list[Fault], **changes: Any) -> Outcome:
    """Rehearses the scenario with these changes."""
    return rehearse(scenario(**changes), faults)
