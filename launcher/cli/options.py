"""Options that the commands of `launch` share, and how a command ends with an error."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer


class Output(StrEnum):
    text = "text"
    json = "json"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="changes to the job: steps=20 mesh.tensor=2"),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="simulate the hosts on this machine, with CPU devices")
]
SimulateHosts = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="simulate N hosts of the same kind (implies --simulate)"),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", "-d", help="return once the run has started; keep it running in the background"
    ),
]
Agreed = Annotated[
    bool,
    typer.Option("--yes", "-y", help="skip the confirmation before creating billable resources"),
]
CompileCheck = Annotated[
    bool,
    typer.Option(
        "--compile-check/--no-compile-check",
        help="on real TPUs, with the extra `tpu`: compile the step first to see whether it fits",
    ),
]
Runs = Annotated[Path, typer.Option(help="the folder that holds a folder per run")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="the name of a run, or the path of its folder")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="the format of the output")]


def refuse(message: str, code: int) -> NoReturn:
    """Ends the command with a message on standard error."""
    print(message, file=sys.stderr)
    raise SystemExit(code)
