"""The commands of `launch` about job, cluster and flow files."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import JsonOutput, JsonOutputOption, Output, OutputOption


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    for command in (init, schema):
        app.command()(command)


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = Path(
        "job.yaml"
    ),
    output: OutputOption = Output.text,
) -> None:
    """Write a commented job file that runs as it is.

    launch init my-job.yaml
    """
    from launcher.commands.init import write_job
    from launcher.core.json_output import print_json

    written = write_job(path)
    if output is Output.json:
        print_json(written)
    else:
        print(f"wrote {path}. Run it with: {written.command}")


def schema(
    name: Annotated[
        list[str],
        typer.Argument(
            metavar="job|cluster|flow-file|error|COMMAND...",
            help="a kind of file, the errors of all commands, or a command: checkpoints list",
        ),
    ],
    output: JsonOutputOption = JsonOutput.json,
) -> None:
    """Print the JSON Schema of a file or of a command's output.

    launch schema job > job.schema.json

    launch schema status
    """
    from launcher.commands.schema import as_text, schema_of

    del output  # the only format
    print(as_text(schema_of(" ".join(name))))
