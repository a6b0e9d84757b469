"""Options that the commands of `launch` share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    text = "text"
    json = "json"


class JsonOutput(StrEnum):
    json = "json"


JobFile = Annotated[Path, typer.Argument(help="the job file, such as jobs/quickstart.yaml")]
ClusterName = Annotated[
    str,
    typer.Option("--cluster", "-c", help="a name in clusters/, a path, or an accelerator: v4-64"),
]
OtherCluster = Annotated[
    str | None, typer.Option("--cluster", "-c", help="another cluster than before")
]
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
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="move an existing run of this name aside and start from scratch"),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        "-d",
        help="return as soon as the run has started and keep it running in the background",
    ),
]
Queued = Annotated[
    bool,
    typer.Option(
        "--queue",
        help="return, and start the run in the background when the cluster is free, by priority",
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
JsonOutputOption = Annotated[
    JsonOutput, typer.Option("--output", "-o", help="the format of the output: always JSON")
]
