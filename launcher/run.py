"""What `launch run` does, in order: check, make the run's folder, get hosts, run, tell the end."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher import gang
from launcher.cluster import Cluster, Local
from launcher.display import count
from launcher.gather import gather
from launcher.interrupts import INTERRUPTED, Interrupts, ending_on_signals
from launcher.outcome import Outcome
from launcher.plan import Launch
from launcher.progress import LastCheckpoint, RunDisplay, describe_stop, print_summary
from launcher.providers import local, memory, warm
from launcher.providers.hosts import Hosts, ProviderError
from launcher.resume import Resumed, cluster_words, plan_resume
from launcher.runs import Run, RunFolderError, find_run, resume_command
from trainer.spec.config import ConfigError
from trainer.spec.plan import World

OK, JOB_FAILED, BAD_USAGE, NO_CLUSTER = 0, 1, 2, 3
REFUSALS = (ConfigError, RunFolderError, ProviderError)


def run_job(launch: Launch, *, fresh: bool) -> int:
    """Run the first attempt of a job in the foreground; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        _refuse(launch)
        run = Run.create(launch, fresh=fresh)
    except REFUSALS as error:
        return _tell_refusal(errors, error)
    with run:
        return _run(launch, run, RunDisplay(console, launch), console, errors)


def resume_run(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    *,
    cluster: str | None,
    simulate: bool,
    simulate_hosts: int | None,
) -> int:
    """Run the next attempt of a run in the foreground; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        with Run.open(find_run(name, runs)) as run:
            words = cluster_words(run.words, cluster, simulate, simulate_hosts)
            resumed = plan_resume(run, overrides, words)
            if resumed.is_complete:
                return _tell_complete(console, resumed)
            _refuse(resumed.launch)
            run.begin(resumed.launch)
            display = _resumed_display(console, resumed)
            return _run(resumed.launch, run, display, console, errors)
    except REFUSALS as error:
        return _tell_refusal(errors, error)


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
        with console.status(f"starting {count(world.processes, 'host')}"), ending_on_signals():
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


def _refuse(launch: Launch) -> None:
    """Raise one of REFUSALS for what can be known not to work before anything is made."""
    if launch.lacks_storage:
        raise ConfigError([launch.lacks_storage])
    refuse_unreachable(launch.cluster, launch.plan.world)
    memory.refuse_if_too_large(launch.plan.world, launch.state_bytes)


def _run(launch: Launch, run: Run, display: RunDisplay, console: Console, errors: Console) -> int:
    for warning in launch.plan.warnings:
        errors.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    began = time.monotonic()
    with ending_on_signals() as interrupts:
        try:
            with display:
                outcome = _attempt(launch, run, display, interrupts)
        except KeyboardInterrupt:
            return _tell_stop(errors, launch, run, display, asked=True)
        except ProviderError as error:
            run.set_state("failed", reason=str(error), **_position(display))
            return _fail(errors, str(error), NO_CLUSTER)
        except gang.GangError as error:
            run.set_state("failed", reason=str(error), **_position(display))
            return _fail(errors, str(error), JOB_FAILED)
    if outcome.stopped:
        cut_off = outcome.cut_off
        return _tell_stop(errors, launch, run, display, asked=interrupts.asked, cut_off=cut_off)
    if not outcome.ok:
        run.set_state("failed", reason=outcome.reason, **_position(display))
        return _tell_failure(errors, run, display, outcome)
    run.set_state("finished", **{**_position(display), "step": launch.job.steps})
    print_summary(console, launch, display, time.monotonic() - began)
    return OK


def _attempt(launch: Launch, run: Run, display: RunDisplay, interrupts: Interrupts) -> Outcome:
    def on_event(event: dict[str, Any]) -> None:
        run.add_event(event)
        display.on_event(event)

    def stop_asked() -> bool:
        if interrupts.asked:
            display.stopping()
        return interrupts.asked

    world = launch.plan.world
    display.status(f"starting {count(world.processes, 'host')}")
    with (
        _hosts(launch, display) as hosts,
        gather(hosts, world, run.folder, on_event, display.on_line, display.status) as crew,
    ):
        display.status("checking versions, code and data on every host")
        reports = crew.check(launch)
        _check_corpus(launch, reports)
        run.set_state("running")
        display.status("starting the trainer on every host")
        with interrupts.stopping_in_order():
            port = launch.cluster.coordinator_port
            return crew.run(launch, port, stop_asked, launch.grace_s)


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


def _resumed_display(console: Console, resumed: Resumed) -> RunDisplay:
    launch, newest = resumed.launch, resumed.newest
    where = f" after step {newest.step}" if newest else ""
    console.print(f"{launch.job.name} goes on{where}: attempt {launch.attempt}", highlight=False)
    for note in resumed.notes:
        console.print(Text(note), soft_wrap=True)
    saved = LastCheckpoint(newest.step, newest.time) if newest else None
    return RunDisplay(console, launch, saved)


def _tell_complete(console: Console, resumed: Resumed) -> int:
    launch = resumed.launch
    more = f"{resume_command(launch.run_dir)} steps={2 * launch.job.steps}"
    done = max(launch.job.steps, resumed.newest.step if resumed.newest else 0)
    console.print(
        Text(f"{launch.job.name} is complete: {done} steps are done. To train on: {more}"),
        soft_wrap=True,
    )
    return OK


def _tell_failure(errors: Console, run: Run, display: RunDisplay, outcome: Outcome) -> int:
    """The first host that failed, its last lines and what ended it: the last thing shown."""
    for line in outcome.tail:
        errors.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    message = f"{outcome.reason}; all other hosts were ended. Logs: {run.folder}/logs"
    if display.checkpoint:
        message += f". Continue from step {display.checkpoint.step}: {resume_command(run.folder)}"
    return _fail(errors, message, JOB_FAILED)


def _tell_stop(
    errors: Console,
    launch: Launch,
    run: Run,
    display: RunDisplay,
    *,
    asked: bool,
    cut_off: str = "",
) -> int:
    """A run that ended before its last step without a failure; `asked`: by a signal to us."""
    run.set_state("interrupted" if asked else "stopped", **_position(display))
    if cut_off:
        errors.print(
            Text(f"{cut_off}, before it had stopped in order", style="yellow"), soft_wrap=True
        )
    if asked:
        _fail(errors, f"interrupted; everything is ended. Logs: {run.folder}", INTERRUPTED)
    how = "stopped" if asked else "stopped on request"
    message = describe_stop(launch, display, how)
    return _fail(errors, message, INTERRUPTED if asked else JOB_FAILED)


def _position(display: RunDisplay) -> dict[str, int | None]:
    """How far the run is, for state.json."""
    checkpoint = display.checkpoint
    return {
        "step": display.last_step.get("step"),
        "checkpoint": checkpoint.step if checkpoint else None,
    }


def _tell_refusal(errors: Console, error: Exception) -> int:
    return _fail(errors, str(error), NO_CLUSTER if isinstance(error, ProviderError) else BAD_USAGE)


def _fail(errors: Console, message: str, code: int) -> int:
    errors.print(Text(message, style="bold red"), soft_wrap=True)
    return code
