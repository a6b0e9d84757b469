"""The commands of `launch` that find a run again: from any terminal, in any folder."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from launcher.cli.options import Output, OutputOption, RunName, Runs, refuse
from launcher.core.exit_codes import BAD_USAGE, NO_CLUSTER

if TYPE_CHECKING:
    from launcher.runs.slurm_job import SlurmJob


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    app.command("list")(list_runs)
    for command in (status, logs, attach, stop):
        app.command()(command)


def list_runs(runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """List all runs, the newest first.

    The list has the runs in --runs and those that were started in other folders. A run is `died`
    when its state is `running` but no process runs it: `launch resume` continues it.

    launch list -o json | jq -r '.[] | select(.alive) | .name'
    """
    from launcher.commands.held_slices import print_held
    from launcher.commands.list_runs import as_json, show
    from launcher.runs.status import take_all

    found = take_all(runs)
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

    with _refusals():
        folder = find_run(run, runs)
        print_held(folder)
        _if_elsewhere(folder, "status", *_asked(output))
        found = read(folder)
    if output is Output.json:
        print(as_json(found))
    else:
        show(found)


def logs(
    run: RunName,
    host: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="of this host alone, without a prefix")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="the last N lines of each host (-f: 10; else all)"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until the run is over; Ctrl-C lets go")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Show the output of the hosts of a run.

    launch logs quickstart -f

    launch logs quickstart --host 3 --tail 100
    """
    from launcher.commands.logs import show_logs
    from launcher.runs.directory import find_run

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `launch logs RUN | head` ends in silence
    as_json = output is Output.json
    with _refusals():
        folder = find_run(run, runs)
        words = [f"--host={host}"] * (host is not None) + [f"--tail={tail}"] * (tail is not None)
        _if_elsewhere(folder, "logs", *words, *["-f"] * follow, *_asked(output))
        code = show_logs(folder, host=host, tail=tail, follow=follow, as_json=as_json)
    raise typer.Exit(code)


def attach(run: RunName, runs: Runs = Path("runs"), output: OutputOption = Output.text) -> None:
    """Follow a run until it ends, with the display of `launch run`.

    The exit code is that of the run. Ctrl-C detaches, and the run continues.

    launch attach quickstart
    """
    from launcher.executors.follow import attach_run
    from launcher.runs.directory import find_run

    with _refusals():
        folder = find_run(run, runs)
        _if_elsewhere(folder, "attach", *_asked(output))
        if job := _job_in_queue(folder):
            from launcher.executors.options import OutputOptions
            from launcher.executors.slurm import follow

            code = follow(folder, job, OutputOptions(detached=False, as_json=output is Output.json))
        else:
            code = attach_run(folder, aside=output is Output.json)
    _end(folder, code, output)


def stop(
    run: RunName,
    runs: Runs = Path("runs"),
    now: Annotated[
        bool,
        typer.Option("--now", help="end it immediately; steps after the last checkpoint are lost"),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Stop a run after it has saved a checkpoint.

    launch stop quickstart
    """
    from launcher.commands.stop import stop_run
    from launcher.runs.directory import find_run

    with _refusals():
        folder = find_run(run, runs)
        _if_elsewhere(folder, "stop", *["--now"] * now, *_asked(output))
        if job := _job_in_queue(folder, or_late=True):
            from launcher.executors.slurm import stop_job

            code = stop_job(folder, job, now=now, aside=output is Output.json)
        else:
            code = stop_run(folder, now=now, aside=output is Output.json)
    _end(folder, code, output)


def _end(folder: Path, code: int, output: Output) -> NoReturn:
    """Ends the command, after the status of the run when JSON is requested."""
    from launcher.commands.status import as_json, read

    if output is Output.json:
        print(as_json(read(folder)))
    raise typer.Exit(code)


def _asked(output: Output) -> list[str]:
    return ["-o", "json"] if output is Output.json else []


def _if_elsewhere(folder: Path, *words: str) -> None:
    """Runs the command on the machine that has the run, and ends with its exit code."""
    from launcher.runs.directory import REMOTE

    if not (folder / REMOTE).exists():
        return
    from launcher.executors.remote import still_there

    if there := still_there(folder):
        raise typer.Exit(there.launch(*words, terminal=sys.stdout.isatty()))


def _job_in_queue(folder: Path, *, or_late: bool = False) -> "SlurmJob | None":
    """Returns a run's Slurm job unless it has ended; `or_late`: also one that may yet appear."""
    from launcher.runs.slurm_job import SlurmJob

    job = SlurmJob.read(folder)
    is_late = job is not None and not job.job_id and not job.is_to_end
    return job if job and ((or_late and is_late) or job.queue_status()) else None


@contextmanager
def _refusals() -> Iterator[None]:
    """Ends the command with a message when a run is not found or cannot be used in this way."""
    from launcher.core.errors import HostError
    from launcher.runs.directory import RunFolderError

    try:
        yield
    except RunFolderError as error:
        refuse(str(error), BAD_USAGE)
    except HostError as error:
        refuse(str(error), NO_CLUSTER)
