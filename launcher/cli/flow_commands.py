"""`launch flow`, and how the commands of its steps are read."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main

from launcher.cli.options import (
    ClusterOptions,
    Consent,
    Output,
    OutputOption,
    Runs,
    command_line,
    with_groups,
)

if TYPE_CHECKING:
    from launcher.commands.flow_steps import StepCommand

USAGE_ERROR: Any = typer.BadParameter.__base__
"""Raised for wrong arguments of a command. Typer has no public name for it."""
STEP_COMMANDS = {"checkpoints list", "checkpoints export", "sample", "report"}
"""Commands that a step may have: they read runs that have finished, and end by themselves."""


def add_to(app: typer.Typer) -> None:
    """Adds the command to `launch`."""

    @app.command()
    @with_groups
    def flow(
        file: Annotated[Path, typer.Argument(help="the flow file, such as jobs/flow.yaml")],
        jobs: Annotated[
            int,
            typer.Option(
                "--jobs", "-j", metavar="N", min=1, help="steps that run at the same time"
            ),
        ] = 1,
        *,
        where: ClusterOptions,
        runs: Runs = Path("runs"),
        consent: Consent,
        output: OutputOption = Output.text,
    ) -> None:
        """Run jobs and commands that depend on each other.

        For example: pretrain, fine-tune, export. The same command continues a flow that was
        interrupted. Finished steps stay finished.

        launch jobs/flow.yaml
        """
        from launcher.commands.flow import run_flow
        from launcher.commands.flow_plan import plan_flow
        from launcher.commands.flow_runner import FlowOptions
        from launcher.commands.flow_steps import FlowRequest

        request = FlowRequest(
            flow_file=file,
            cluster_ref=where.reference,
            runs=runs.absolute(),
            parse_command=lambda args: parse_step_command(app, args),
        )
        options = FlowOptions(
            jobs=jobs, assume_yes=consent.yes, compile_check=consent.compile_check
        )
        run_flow(plan_flow(request), options, as_json=output is Output.json, command=command_line())


def parse_step_command(app: typer.Typer, args: Sequence[str]) -> "StepCommand":
    """Reads the arguments of `launch` in a step as the command line reads them, and runs nothing.

    Raises ValueError for arguments that the command rejects.
    """
    from launcher.commands.flow_steps import StepCommand

    command: Any = typer.main.get_command(app)
    path, rest = [], list(args)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        path.append(rest.pop(0))
    if " ".join(path) not in STEP_COMMANDS:
        known = ", ".join(sorted(STEP_COMMANDS))
        raise ValueError(f"expected one of the commands {known}, found {shlex.join(args)!r}")
    try:
        parameters = command.make_context(shlex.join(["launch", *path]), list(rest)).params
    except USAGE_ERROR as error:
        raise ValueError(error.format_message()) from None
    named = parameters["run"] or ()
    return StepCommand(
        path=tuple(path),
        arguments=tuple(rest),
        runs=(named,) if isinstance(named, str) else tuple(named),
        creates=parameters.get("to"),
    )
