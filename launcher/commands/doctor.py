"""`launch doctor`: gets a cluster's hosts, inspects them as a run would, and releases them."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.commands.held_slices import print_held
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, JOB_FAILED, NO_CLUSTER, OK, fail
from launcher.core.formatting import format_bytes, host_name, pluralize
from launcher.core.signals import ending_on_signals
from launcher.executors.inspect_hosts import look_there
from launcher.gang.gang import GangError
from launcher.gang.host_pool import HostPool
from launcher.gang.preflight import Needs, Problem, Seen, judge
from launcher.planning.planner import make_launch
from launcher.planning.spec import LaunchSpec
from launcher.providers.registry import provider_for
from trainer.contract.config.command import CommandJob
from trainer.contract.config.loader import ConfigError, Loaded


def examine(words: ClusterRef, *, as_json: bool) -> int:
    """Inspects every host of a cluster; returns the exit code of `launch`."""
    errors = Console(stderr=True)
    print_held()
    with tempfile.TemporaryDirectory(prefix="slipway-doctor-") as folder:
        try:
            launch = _visit(words, Path(folder))
            began = time.monotonic()
            with errors.status("") as status, ending_on_signals():
                seen, looked_s = _look(launch, status)
        except ConfigError as error:
            return fail(errors, str(error), BAD_USAGE)
        except (HostError, GangError) as error:
            return fail(errors, str(error), NO_CLUSTER)
        except KeyboardInterrupt:
            return fail(errors, "interrupted; everything is ended", INTERRUPTED)
    problems = judge(seen, Needs(launch.plan.world))
    if as_json:
        print(_as_json(seen, problems))
    else:
        got_s = time.monotonic() - began - looked_s
        _print(Console(), seen, problems)
        took = f"hosts got and given back in {got_s:.1f} s, looked at in {looked_s:.1f} s"
        Console().print(Text(took, style="dim"))
    return JOB_FAILED if any(problem.is_fatal for problem in problems) else OK


def _visit(words: ClusterRef, folder: Path) -> LaunchSpec:
    """Returns a launch without a program, to hold the hosts. Raises ConfigError, HostError."""
    job = CommandJob(name="doctor", command=["true"])
    cluster = find_cluster(words.name)
    launch = make_launch(Loaded(job, "doctor", {}), cluster, folder, words)
    if not launch.is_remote:
        provider_for(launch.cluster, launch.plan.world.simulated).check(launch)
    launch.run_dir.mkdir()
    return launch


def _look(launch: LaunchSpec, status: Status) -> tuple[dict[int, Seen], float]:
    """Returns what was seen on each host, and the seconds that the inspection took."""
    if launch.is_remote or launch.is_queued:
        began = time.monotonic()
        return look_there(launch, status.update), time.monotonic() - began
    with HostPool(_Told(status)) as hosting:
        gang = hosting.gang(launch)
        status.update(f"looking at {pluralize(gang.size, 'host')}")
        began = time.monotonic()
        return gang.look(launch.plan.world.platform), time.monotonic() - began


class _Told(Listener):
    """Shows what the launcher does in the status line."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def on_status(self, text: str) -> None:
        self._status.update(text)


def _print(console: Console, seen: Mapping[int, Seen], problems: Sequence[Problem]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("host", "address", "chips", "memory", "/dev/shm", "disk", "files", "clock"):
        table.add_column(title, justify="left" if title in ("host", "address") else "right")
    for process, one in sorted(seen.items()):
        table.add_row(host_name(process), *_cells(one))
    console.print(table)
    for problem in problems:
        style = "bold red" if problem.is_fatal else "yellow"
        console.print(Text(str(problem), style=style), soft_wrap=True)
    if not problems:
        console.print(f"{pluralize(len(seen), 'host')} without a problem", highlight=False)


def _cells(one: Seen) -> list[str]:
    look = one.look
    return [
        look.address,
        str(look.chips),
        format_bytes(look.memory_bytes),
        "" if look.shared_memory_bytes is None else format_bytes(look.shared_memory_bytes),
        format_bytes(look.disk_bytes),
        str(look.open_files),
        f"{one.clock_ahead_s:+.1f} s",
    ]


def _as_json(seen: Mapping[int, Seen], problems: Sequence[Problem]) -> str:
    hosts = [asdict(one) | {"process": process} for process, one in sorted(seen.items())]
    return json.dumps({"hosts": hosts, "problems": [asdict(p) for p in problems]}, indent=2)
