"""The commands of `launch` about the origin of a result: `audit` and `lineage`."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import (
    OtherClusterOptions,
    Output,
    OutputOption,
    RunName,
    Runs,
    with_groups,
)
from launcher.core.exit_codes import JOB_FAILED, OK


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    app.command()(audit)
    app.command()(lineage)


@with_groups
def audit(
    run: RunName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="changes to the replays: mesh.tensor=2"),
    ] = None,
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST", help="steps to replay (default: those between the checkpoints)"
        ),
    ] = None,
    where: OtherClusterOptions,
    other_code: Annotated[
        bool, typer.Option("--other-code", help="replay with another code version than the run's")
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Replay steps of a run and compare the results, bit for bit.

    Finds the first step that comes out different and, by moving the same work to other hosts, the
    host. On another mesh or with other library versions, a measured tolerance separates rounding
    from errors. Exits with 1 when something is wrong.

    launch audit quickstart --steps 51-100

    launch audit quickstart --cluster tpu-v4-8 --simulate mesh.tensor=2
    """
    from launcher import api
    from launcher.commands.audit import AuditOptions, audit_run, show
    from launcher.commands.audit_elsewhere import fetch
    from launcher.core.json_output import print_json

    as_json = output is Output.json
    options = AuditOptions(
        steps,
        (where.cluster, where.simulate, where.simulate_hosts),
        overrides or (),
        other_code,
        as_json,
    )
    found = audit_run(fetch(api.find_run(run, runs)), options)
    if as_json:
        print_json(found)
    else:
        show(found)
    raise typer.Exit(OK if found.is_good else JOB_FAILED)


def lineage(
    checkpoint: Annotated[
        str, typer.Argument(metavar="RUN[@STEP]", help="a run, RUN@STEP or RUN@best")
    ],
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Show where a checkpoint comes from, and how to repeat it.

    Data, code, libraries, attempts, hosts and meshes; and the same of the runs whose weights it
    started from. Without a step, the newest whole checkpoint.

    launch lineage quickstart@100
    """
    from launcher.commands.lineage import read, show
    from launcher.core.json_output import print_json

    found = read(checkpoint, runs)
    if output is Output.json:
        print_json(found)
    else:
        show(found)
