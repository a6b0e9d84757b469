"""The commands of `launch` that find a run again: from any terminal, in any folder."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import Output, OutputOption, RunName, Runs

if TYPE_CHECKING:
    from launcher.executors.handle import RunHandle


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    app.command("list")(list_runs)
    for command in (status, logs, events, attach, stop):
        app.command()(command)


def list_runs(runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """List all runs, the newest first.

    The list has the runs in --runs and those that were started in other folders. A run is `lost`
    when its state is `running` but no process runs it: `launch resume` continues it.

    launch list -o json | jq -r '.[] | select(.alive) | .name'
    """
    from launcher import api
    from launcher.commands.held_slices import print_held
    from launcher.commands.list_runs import as_json, show

    found = api.list_runs(runs)
    if output is Output.json:
        print(as_json(found))
    else:
        show(found, runs)
    print_held()


def status(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Show the state of a run and what happened to it.

    launch status quickstart
    """
    from launcher.commands.held_slices import print_held
    from launcher.commands.status import as_json, read, show
    from launcher.runs.directory import find_run

    print_held(find_run(run, runs))
    found = read(_find(run, runs, "status", *_json(output)).folder)
    if output is Output.json:
        print(as_json(found))
    else:
        show(found)


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


def events(run: RunName, runs: Runs = Path("runs")) -> None:
    """Print the events of a run as JSON lines, until it ends.

    launch events quickstart | jq -c 'select(.event == "checkpoint_saved")'
    """
    from trainer.contract.protocol.wire import encode

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for event in _find(run, runs, "events").events():
        print(encode(event), flush=True)


def attach(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Follow a run until it ends, with the display of `launch run`.

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
    """Stop a run after it has saved a checkpoint.

    launch stop quickstart
    """
    from launcher.commands.stop import stop_run

    handle = _find(run, runs, "stop", *["--force"] * force, *_json(output))
    stop_run(handle, force=force, as_json=output is Output.json)


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
