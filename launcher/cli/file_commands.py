"""The commands of `launch` about job and cluster files."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class FileKind(StrEnum):
    job = "job"
    cluster = "cluster"


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    for command in (init, schema):
        app.command()(command)


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = Path(
        "job.yaml"
    ),
) -> None:
    """Write a commented job file that runs as it is.

    launch init my-job.yaml
    """
    from launcher.commands.init import write_job

    write_job(path)
    print(f"wrote {path}. Run it with: launch {path}")


def schema(
    kind: Annotated[FileKind, typer.Argument(help="the kind of file")],
) -> None:
    """Print the JSON Schema of job or cluster files, for editors.

    launch schema job > job.schema.json
    """
    from launcher.commands import schema as schemas

    of_kind = {FileKind.job: schemas.job_schema, FileKind.cluster: schemas.cluster_schema}
    print(schemas.as_text(of_kind[kind]()))
