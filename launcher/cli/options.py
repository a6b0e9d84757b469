"""Options that the commands of `launch` share, alone or in groups."""

import shlex
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

if TYPE_CHECKING:
    from launcher.cluster.schema import ClusterRef


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
Hot = Annotated[
    bool,
    typer.Option(
        "--hot/--no-hot",
        help="load the programs that `launch plan --compile --keep` has kept for this run",
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


class ClusterOptions(NamedTuple):
    """The cluster of new runs."""

    cluster: ClusterName = "local"
    simulate: Simulate = False
    simulate_hosts: SimulateHosts = None

    @property
    def reference(self) -> "ClusterRef":
        from launcher.cluster.schema import ClusterRef

        return ClusterRef(
            name=self.cluster, simulate=self.simulate, simulate_hosts=self.simulate_hosts
        )


class OtherClusterOptions(NamedTuple):
    """The cluster of a run that is resumed, when it is another one than before."""

    cluster: OtherCluster = None
    simulate: Simulate = False
    simulate_hosts: SimulateHosts = None


class Consent(NamedTuple):
    """What is asked or checked before runs start."""

    yes: Agreed = False
    compile_check: CompileCheck = True


def finite(value: float | None) -> float | None:
    """Returns a number of an option. Raises BadParameter for infinity."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"expected a finite number, found {value}")
    return value


GROUPS = (ClusterOptions, OtherClusterOptions, Consent)
PLACE = Parameter.KEYWORD_ONLY
"""Kind of all parameters: Typer passes them by name."""


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command for Typer that has the options of a group in place of the group.

    A parameter of `command` whose type is one of `GROUPS` receives the values of these options.
    """
    types = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in types.items() if kind in GROUPS}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _options_of(groups[name])
        else:
            parameters.append(parameter.replace(annotation=types[name], kind=PLACE))

    @wraps(command)
    def with_options(**given: Any) -> None:
        values = {
            name: group(**{field: given.pop(field) for field in group._fields})
            for name, group in groups.items()
        }
        command(**given, **values)

    with_options.__dict__["__signature__"] = Signature(parameters)
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def _options_of(group: Any) -> list[Parameter]:
    types, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    return [
        Parameter(name, PLACE, default=defaults[name], annotation=types[name])
        for name in group._fields
    ]


def command_line() -> str:
    """Returns the command that the user has entered, for messages that say how to repeat it."""
    return shlex.join(["launch", *sys.argv[1:]])
