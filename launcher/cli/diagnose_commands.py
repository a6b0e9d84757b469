"""The commands of `launch` that show what a run does, and why."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.forwarding import find_or_forward, json_words
from launcher.cli.options import Output, OutputOption, RunName, Runs


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    for command in (why, stacks, debug, profile):
        app.command()(command)
    app.command("exec")(execute)


def why(
    run: RunName,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="show the examples of a step with the highest loss"),
    ] = None,
    top: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="with --step: number of examples")
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

    found = read(find_or_forward(run, runs, "why", *json_words(output)).folder)
    if output is Output.json:
        print_json(found.result())
    else:
        show(found)


def _why_step(run: str, step: int, top: int, runs: Path, output: Output) -> None:
    from launcher.commands.why_step import examples_of, show
    from launcher.core.json_output import print_json

    options = [f"--step={step}", f"--top={top}", *json_words(output)]
    found = examples_of(find_or_forward(run, runs, "why", *options).folder, step, top)
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

    handle = find_or_forward(run, runs, "stacks", *["--full"] * full, *json_words(output))
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
    found = write(find_or_forward(run, runs, "debug", *target, *json_words(output)).folder, to)
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

    options = [f"--host={host}", *json_words(output)]
    handle = find_or_forward(run, runs, "exec", *options, "--", *command)
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

    options = [f"--steps={steps}", f"--host={host}", *json_words(output)]
    found = trace(find_or_forward(run, runs, "profile", *options).folder, host, steps)
    if output is Output.json:
        print_json(found)
    else:
        show(found)
