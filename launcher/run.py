"""What `launch run` does, in order: check, make the run's folder, get hosts, run, tell the end."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher import gang
from launcher.cluster import Cluster, Local
from launcher.display import count
from launcher.gather import gather
from launcher.outcome import Outcome
from launcher.plan import Launch
from launcher.progress import RunDisplay, print_summary
from launcher.providers import local, memory, warm
from launcher.providers.hosts import Hosts, ProviderError
from launcher.runs import Run, RunFolderError
from trainer.spec.plan import World

OK, JOB_FAILED, BAD_USAGE, NO_CLUSTER, INTERRUPTED = 0, 1, 2, 3, 130


def run_job(launch: Launch, *, fresh: bool) -> int:
    """Run one attempt of a job in the foreground; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    if launch.lacks_storage:
        return _fail(errors, launch.lacks_storage, BAD_USAGE)
    try:
        refuse_unreachable(launch.cluster, launch.plan.world)
        memory.refuse_if_too_large(launch.plan.world, launch.state_bytes)
        run = Run.create(launch.run_dir, launch.job, launch.plan, fresh=fresh)
    except ProviderError as error:
        return _fail(errors, str(error), NO_CLUSTER)
    except RunFolderError as error:
        return _fail(errors, str(error), BAD_USAGE)
    for warning in launch.plan.warnings:
        errors.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    began = time.monotonic()
    with run, _ending_on_signals():
        return _watched(launch, run, console, errors, began)


def keep_warm(name: str, cluster: Cluster, simulate_hosts: int | None) -> int:
    """Start a simulated cluster that outlives this command; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        world = cluster.world(cluster.provider.kind != "local", simulate_hosts)
    except ValueError as error:
        return _fail(errors, f"--simulate-hosts {simulate_hosts}: {error}", BAD_USAGE)
    provider = _local_settings(cluster)
    settings = warm.settings_of(world, provider.netns, provider.host_env)
    try:
        if warm.find(name, settings):
            console.print(f"{name} is up already")
            return OK
        memory.refuse_if_too_large(world, state_bytes=0)
        with console.status(f"starting {count(world.processes, 'host')}"), _ending_on_signals():
            hosts = local.start(world, netns=provider.netns, host_env=provider.host_env)
            warm.keep(name, settings, hosts)
    except ProviderError as error:
        return _fail(errors, str(error), NO_CLUSTER)
    except KeyboardInterrupt:
        return _fail(errors, "interrupted; everything is ended", INTERRUPTED)
    console.print(
        f"{name} is up: {count(world.processes, 'host')}. End it with `launch down {name}`"
    )
    return OK


def end_warm(name: str) -> int:
    """End what `keep_warm` started; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        ended = warm.end(name)
    except ProviderError as error:
        return _fail(errors, str(error), NO_CLUSTER)
    console.print(f"{name} is down" if ended else f"{name} was not up")
    return OK


def refuse_unreachable(cluster: Cluster, world: World) -> None:
    """Raise ProviderError for hosts that this version has no way to reach."""
    if world.simulated or (cluster.built and (world.on_cpu or world.processes == 1)):
        return
    if cluster.built:
        raise ProviderError(
            f"{world.accelerator} has {world.processes} hosts, and this machine is one of them at "
            "most: name a provider in a cluster file, or simulate the hosts here with --simulate"
        )
    raise ProviderError(
        f"{cluster.provider.kind}: this version of Slipway cannot get hosts this way yet. "
        "What works: --simulate runs the same job, host by host, on this machine"
    )


def _watched(launch: Launch, run: Run, console: Console, errors: Console, began: float) -> int:
    display = RunDisplay(console, launch)
    try:
        with display:
            outcome = _attempt(launch, run, display)
    except KeyboardInterrupt:
        run.set_state("interrupted", step=display.last_step.get("step"))
        return _fail(errors, f"interrupted; everything is ended. Logs: {run.folder}", INTERRUPTED)
    except ProviderError as error:
        run.set_state("failed", reason=str(error))
        return _fail(errors, str(error), NO_CLUSTER)
    except gang.GangError as error:
        run.set_state("failed", reason=str(error))
        return _fail(errors, str(error), JOB_FAILED)
    if not outcome.ok:
        run.set_state("failed", reason=outcome.reason)
        return _tell_failure(errors, run, outcome)
    run.set_state("finished", step=launch.job.steps)
    print_summary(console, launch, display, time.monotonic() - began)
    return OK


def _attempt(launch: Launch, run: Run, display: RunDisplay) -> Outcome:
    def on_event(event: dict[str, Any]) -> None:
        run.add_event(event)
        display.on_event(event)

    world = launch.plan.world
    display.status(f"starting {count(world.processes, 'host')}")
    with (
        _hosts(launch, display) as hosts,
        gather(hosts, world, run.folder, on_event, display.on_line) as crew,
    ):
        display.status("checking versions, code and data on every host")
        reports = crew.check(launch)
        _check_corpus(launch, reports)
        run.set_state("running")
        display.status("starting the trainer on every host")
        return crew.run(launch, launch.cluster.coordinator_port)


def _hosts(launch: Launch, display: RunDisplay) -> Hosts:
    """The hosts that `launch up` keeps warm under the cluster's name, or new ones."""
    world, provider = launch.plan.world, _local_settings(launch.cluster)
    settings = warm.settings_of(world, provider.netns, provider.host_env)
    kept = warm.find(launch.cluster_name, settings)
    return kept or local.start(
        world, netns=provider.netns, host_env=provider.host_env, on_status=display.status
    )


def _local_settings(cluster: Cluster) -> Local:
    """Of the local provider; its defaults where another provider's cluster is simulated."""
    return cluster.provider if isinstance(cluster.provider, Local) else Local()


def _check_corpus(launch: Launch, reports: dict[int, dict[str, Any]]) -> None:
    """What the hosts would read must be what the plan was made for."""
    planned = launch.plan.corpus.sha256
    for process, report in reports.items():
        seen = report.get("corpus_sha256")
        if planned and seen != planned:
            raise gang.GangError(
                f"host-{process:04d} has another corpus than this machine ({seen} here, planned "
                f"{planned}): the hosts need the Python version of the launcher for 'stdlib'"
            )


def _tell_failure(errors: Console, run: Run, outcome: Outcome) -> int:
    """The first host that failed, its last lines and what ended it: the last thing shown."""
    for line in outcome.tail:
        errors.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    _fail(errors, f"{outcome.reason}; all other hosts were ended. Logs: {run.folder}/logs", 1)
    return JOB_FAILED


def _fail(errors: Console, message: str, code: int) -> int:
    errors.print(Text(message, style="bold red"), soft_wrap=True)
    return code


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """A closed terminal and SIGTERM end a run as Ctrl-C does; a second signal ends it at once.

    What is left then is ended by the reapers, which notice that this process is gone.
    """
    seen: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
