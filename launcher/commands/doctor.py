"""`launch doctor`: gets a cluster's hosts, inspects them as a run would, and releases them."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.commands.held_slices import print_held
from launcher.core.errors import HostError, InterruptError, JobError
from launcher.core.formatting import format_bytes, pluralize
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.executors.registry import executor_for
from launcher.gang.agent_calls import GangError
from launcher.gang.preflight import HostProblem, Needs, Seen, judge
from launcher.planning.planner import make_launch
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.command import CommandJob
from trainer.contract.config.loader import Loaded
from trainer.contract.protocol.process_names import host_name


@dataclass(frozen=True, kw_only=True)
class InspectedHost(Seen):
    """A host of the cluster, and the result of its checks."""

    host: int
    """Number of the host, from 0."""


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """The hosts of a cluster and their problems."""

    hosts: Sequence[InspectedHost]
    problems: Sequence[HostProblem]


def examine(cluster_ref: ClusterRef, *, as_json: bool) -> None:
    """Inspects every host of a cluster, and prints the reports.

    Raises JobError when hosts cannot serve a run, HostError when they cannot be inspected.
    """
    print_held()
    with tempfile.TemporaryDirectory(prefix="slipway-doctor-") as folder:
        spec, began = _spec(cluster_ref, Path(folder)), time.monotonic()
        seen = _inspect(spec)
        took_s = time.monotonic() - began
    problems = judge(seen, Needs(spec.plan.world))
    if as_json:
        print_json(_result(seen, problems))
    else:
        _print(Console(), seen, problems)
        took = f"hosts acquired, inspected and released in {took_s:.1f} s"
        Console().print(Text(took, style="dim"))
    if any(problem.is_fatal for problem in problems):
        raise JobError("the hosts cannot serve a run")


def _spec(cluster_ref: ClusterRef, folder: Path) -> LaunchSpec:
    """Returns a launch without a program, to hold the hosts. Raises ConfigError, HostError."""
    job = CommandJob(name="doctor", command=["true"])
    cluster = find_cluster(cluster_ref.name)
    spec = make_launch(Loaded(job, "doctor", {}), cluster, folder, cluster_ref)
    spec.run_dir.mkdir()
    return spec


def _inspect(spec: LaunchSpec) -> Mapping[int, Seen]:
    """Gets the hosts, inspects them, and releases them. Raises HostError, InterruptError."""
    executor = executor_for(spec.cluster, simulated=spec.plan.world.simulated)
    executor.check(spec)
    try:
        with Console(stderr=True).status("") as status, ending_on_signals():
            return executor.inspect_hosts(spec, status.update)
    except GangError as error:
        raise HostError(str(error)) from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; everything has ended") from None


def _print(console: Console, seen: Mapping[int, Seen], problems: Sequence[HostProblem]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("host", "address", "chips", "memory", "/dev/shm", "disk", "files", "clock"):
        table.add_column(title, justify="left" if title in ("host", "address") else "right")
    for host, one in sorted(seen.items()):
        table.add_row(host_name(host), *_cells(one))
    console.print(table)
    for problem in problems:
        style = "bold red" if problem.is_fatal else "yellow"
        console.print(Text(str(problem), style=style), soft_wrap=True)
    if not problems:
        console.print(f"{pluralize(len(seen), 'host')} without a problem", highlight=False)


def _cells(one: Seen) -> list[str]:
    report = one.report
    return [
        report.address,
        str(report.chips),
        format_bytes(report.memory_bytes),
        "" if report.shared_memory_bytes is None else format_bytes(report.shared_memory_bytes),
        format_bytes(report.disk_bytes),
        str(report.open_files),
        f"{one.clock_ahead_s:+.1f} s",
    ]


def _result(seen: Mapping[int, Seen], problems: Sequence[HostProblem]) -> DoctorResult:
    hosts = [InspectedHost(host=host, **vars(one)) for host, one in sorted(seen.items())]
    return DoctorResult(hosts=hosts, problems=problems)
