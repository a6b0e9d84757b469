"""The commands of `launch` that find a run again: from any terminal, in any folder."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    JsonOutput,
    JsonOutputOption,
    Output,
    OutputOption,
    RunName,
    Runs,
)

if TYPE_CHECKING:
    from launcher.executors.handle import RunHandle


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    app.command("list")(list_runs)
    for command in (
        status,
        logs,
        events,
        attach,
        stop,
        report,
        compare,
        why,
        stacks,
        debug,
        profile,
    ):
        app.command()(command)
    app.command("exec")(execute)


def list_runs(
    cost: Annotated[
        bool, typer.Option("--cost", help="add the chip-hours and dollars of each run")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """List all runs, the newest first.

    The list has the runs in --runs and those that were started in other folders. A run is `lost`
    when its state is `running` but no process runs it: `launch resume` continues it. Queued runs
    have their position and priority.

    launch list --cost

    launch list -o json | jq -r '.[] | select(.alive) | .name'
    """
    from launcher import api
    from launcher.commands.held_slices import print_held
    from launcher.commands.list_runs import read_usage, serve_queues, show
    from launcher.core.json_output import print_json
    from launcher.notify.lost import notify_lost

    places, found = serve_queues(), api.list_runs(runs)
    usage = read_usage(found) if cost else None
    if output is Output.json:
        used = usage or [None] * len(found)
        print_json(
            [run.result(places.get(run.folder), one) for run, one in zip(found, used, strict=True)]
        )
    else:
        show(found, runs, places, usage)
    print_held()
    notify_lost(found)


def status(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Show the state and the history of a run.

    launch status quickstart
    """
    from launcher.commands.held_slices import print_held
    from launcher.commands.status import read, show
    from launcher.core.json_output import print_json
    from launcher.notify.lost import notify_lost
    from launcher.runs.directory import find_run

    print_held(find_run(run, runs))
    found = read(_find(run, runs, "status", *_json(output)).folder)
    if output is Output.json:
        print_json(found.result())
    else:
        show(found)
    notify_lost([found.run])


def logs(
    run: RunName,
    host: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="only host N, without a prefix")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="the last N lines of each host (-f: 10; else all)"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="continue until the run ends; Ctrl-C detaches")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Show the output of the hosts of a run.

    launch logs quickstart -f

    launch logs quickstart --host 3 --tail 100
    """
    from launcher.commands.logs import show_logs

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `launch logs RUN | head` ends in silence
    as_json = output is Output.json
    arguments = [f"--host={host}"] * (host is not None) + [f"--tail={tail}"] * (tail is not None)
    handle = _find(run, runs, "logs", *arguments, *["-f"] * follow, *_json(output))
    show_logs(handle.folder, host=host, tail=tail, follow=follow, as_json=as_json)


def events(
    run: RunName, runs: Runs = Path("runs"), output: JsonOutputOption = JsonOutput.json
) -> None:
    """Print the events of a run as JSON lines, until it ends.

    launch events quickstart | jq -c 'select(.event == "checkpoint_saved")'
    """
    from trainer.contract.protocol.wire import encode

    del output  # the only format
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for event in _find(run, runs, "events").events():
        print(encode(event), flush=True)


def attach(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Follow a run until it ends, as `launch run` does.

    The exit code is that of the run. Ctrl-C detaches, and the run continues.

    launch attach quickstart
    """
    from launcher.commands.run import print_status, status_after_errors
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(as_json=output is Output.json)
    handle = _find(run, runs, "attach", *_json(output))
    with status_after_errors(as_json=options.as_json):
        found = handle.follow(options)
    print_status(handle, as_json=options.as_json)
    raise typer.Exit(found.exit_code)


def stop(
    run: RunName,
    runs: Runs = Path("runs"),
    force: Annotated[
        bool,
        typer.Option("--force", help="end it immediately; steps since the last save are lost"),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Save and stop a run, or remove it from its queue.

    launch stop quickstart
    """
    from launcher.commands.list_runs import serve_queues
    from launcher.commands.stop import stop_run

    handle = _find(run, runs, "stop", *["--force"] * force, *_json(output))
    stop_run(handle, force=force, as_json=output is Output.json)
    serve_queues()


def report(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="names of runs, or paths of their folders"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="write an index of all runs, and the report of each in --runs"),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="where to write it, if not to report.html in the run's folder (several runs: in "
            "--runs; --all: index.html in --runs)",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="update the file until the runs end")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Write one HTML page about one or several runs.

    Several runs have their curves in one chart.

    launch report quickstart

    launch report first second --to compare.html

    launch report --all --follow
    """
    from launcher.commands.report import ReportOptions, report_all, report_runs
    from launcher.core.errors import UsageError

    options = ReportOptions(runs=runs, to=to, follow=follow, as_json=output is Output.json)
    if every == bool(run):
        raise UsageError("launch report: name one or more runs, or use --all for all of them")
    if run:
        report_runs(run, options)
    else:
        report_all(options)


def compare(
    run: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="names or folders of two or more runs")
    ],
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="also write a report with all curves"),
    ] = None,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Compare jobs, examples, losses and cost of runs.

    launch compare first second

    launch compare first second third --report compared.html
    """
    from launcher.commands.compare import CompareOptions, compare_runs

    compare_runs(run, CompareOptions(runs=runs, report=report, as_json=output is Output.json))


def why(
    run: RunName,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="show the examples of a step with the highest loss"),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="with --step: so many examples")
    ] = 5,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Explain why a run failed, is slow, or had a spike.

    Shows what the wall time went into, and what to change. With --step, computes the step again on
    this machine, from the checkpoint before it, and names the documents of its examples.

    launch why quickstart

    launch why quickstart --step 30 --top 3
    """
    if step is not None:
        _why_step(run, step, top, runs, output)
        return
    from launcher.commands.why import read, show
    from launcher.core.json_output import print_json

    found = read(_find(run, runs, "why", *_json(output)).folder)
    if output is Output.json:
        print_json(found.result())
    else:
        show(found)


def _why_step(run: str, step: int, top: int, runs: Path, output: Output) -> None:
    from launcher.commands.why_step import examples_of, show
    from launcher.core.json_output import print_json

    options = [f"--step={step}", f"--top={top}", *_json(output)]
    found = examples_of(_find(run, runs, "why", *options).folder, step, top)
    if output is Output.json:
        print_json(found)
    else:
        show(found)


def stacks(
    run: RunName,
    full: Annotated[
        bool, typer.Option("--full", help="print all threads of one process of each group")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Show the stacks of a live run, equal ones once.

    launch stacks quickstart
    """
    from launcher.commands.stacks import collect, show
    from launcher.core.json_output import print_json

    handle = _find(run, runs, "stacks", *["--full"] * full, *_json(output))
    found = collect(handle.folder)
    if output is Output.json:
        print_json(found.result())
    else:
        show(found, full=full)


def debug(
    run: RunName,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="where to write it, if not to debug.zip in its folder"),
    ] = None,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Write an archive for a bug report, without secrets.

    It has the job, the plan, events, logs and versions.

    launch debug quickstart
    """
    from launcher.commands.debug import show, write
    from launcher.core.json_output import print_json

    target = [f"--to={to}"] if to else []
    found = write(_find(run, runs, "debug", *target, *_json(output)).folder, to)
    if output is Output.json:
        print_json(found)
    else:
        show(found)


def execute(
    run: RunName,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="the command and its arguments, after --")
    ],
    host: Annotated[
        int, typer.Option(metavar="N", min=0, help="the host, by the number of its process")
    ] = 0,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Run a command on a host of a live run.

    The command has the environment of the run's program. Its output is printed as it comes, and
    its exit code is that of this command. Ctrl-C ends it with all that it has started.

    launch exec quickstart --host 2 -- nvidia-smi
    """
    from launcher.commands.execute import execute as run_command

    options = [f"--host={host}", *_json(output)]
    handle = _find(run, runs, "exec", *options, "--", *command)
    as_json = output is Output.json
    raise typer.Exit(run_command(handle.folder, host, command, as_json=as_json))


def profile(
    run: RunName,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="number of steps to trace")
    ] = 3,
    host: Annotated[
        int, typer.Option(metavar="N", min=0, help="the host, by the number of its process")
    ] = 0,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Trace the next steps of a live run.

    The trace is written to the run's folder.

    launch profile quickstart --steps 3
    """
    from launcher.commands.profile import show, trace
    from launcher.core.json_output import print_json

    options = [f"--steps={steps}", f"--host={host}", *_json(output)]
    found = trace(_find(run, runs, "profile", *options).folder, host, steps)
    if output is Output.json:
        print_json(found)
    else:
        show(found)


def _json(output: Output) -> list[str]:
    return ["-o", "json"] if output is Output.json else []


def _find(run: str, runs: Path, *command: str) -> "RunHandle":
    """Returns the handle of a run of this machine.

    For a run that another machine has, runs the command there and exits with its exit code. Raises
    RunFolderError when there is no such run.
    """
    from launcher import api

    handle = api.find_run(run, runs)
    code = handle.forward(*command, terminal=sys.stdout.isatty())
    if code is not None:
        raise typer.Exit(code)
    return handle
