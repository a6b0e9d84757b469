"""What the commands of `launch` share: options, and how a refusal is told."""

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
    bool, typer.Option("--simulate", help="run it host by host on this machine, with CPU devices")
]
SimulateHosts = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="simulate N hosts of the same kind (implies --simulate)"),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="return once it runs; no terminal ends it then")
]
Agreed = Annotated[
    bool, typer.Option("--yes", "-y", help="do not ask whether to pay for hosts of a cloud")
]
CompileCheck = Annotated[
    bool,
    typer.Option(
        "--compile-check/--no-compile-check",
        help="on real TPUs, with the extra `tpu`: ask the compiler first whether the step fits",
    ),
]
Runs = Annotated[Path, typer.Option(help="the folder in which each run gets a folder of its own")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="a run's name, here or elsewhere, or its folder's path")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text, or json for programs")]


def refuse(message: str, code: int) -> NoReturn:
    """End the command with a message on standard error."""
    print(message, file=sys.stderr)
    raise SystemExit(code)
