"""The commands of `launch` that look at runs: from any terminal, in any folder."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.forwarding import find_or_forward, json_words
from launcher.cli.options import (
    JsonOutput,
    JsonOutputOption,
    Output,
    OutputOption,
    RunName,
    Runs,
)


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
    ):
        app.command()(command)


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
    from launcher.runs.folder import find_run

    print_held(find_run(run, runs))
    found = read(find_or_forward(run, runs, "status", *json_words(output)).folder)
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
    handle = find_or_forward(run, runs, "logs", *arguments, *["-f"] * follow, *json_words(output))
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
    for event in find_or_forward(run, runs, "events").events():
        print(encode(event), flush=True)


def attach(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Follow a run until it ends, as `launch run` does.

    The exit code is that of the run. Ctrl-C detaches, and the run continues.

    launch attach quickstart
    """
    from launcher.commands.run import print_status, status_after_errors
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(as_json=output is Output.json)
    handle = find_or_forward(run, runs, "attach", *json_words(output))
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

    handle = find_or_forward(run, runs, "stop", *["--force"] * force, *json_words(output))
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
