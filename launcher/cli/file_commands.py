"""The commands of `launch` about job, cluster and flow files."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import (
    ClusterName,
    JobFile,
    JsonOutput,
    JsonOutputOption,
    Output,
    OutputOption,
    Overrides,
    Runs,
    finite,
)

MOST_DAYS = 36_500
"""Limit of the rehearsed time: a hundred years."""


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `launch`."""
    for command in (init, rehearse, schema):
        app.command()(command)


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = Path(
        "job.yaml"
    ),
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="begin with the model in this Hugging Face folder: its weights and its tokenizer",
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Write a commented job file that runs as it is.

    launch init my-job.yaml

    launch init tuned.yaml --from models/qwen3-0.6b
    """
    from launcher.commands.init import write_job
    from launcher.core.json_output import print_json

    written = write_job(path, weights)
    if output is Output.json:
        print_json(written)
    else:
        print(f"wrote {path}. Run it with: {written.command}")


def rehearse(
    job: JobFile,
    overrides: Overrides = None,
    cluster: ClusterName = "local",
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            metavar="RATES",
            help='rates of the whole cluster, such as "host 1/3h, preemption 2/day"; kinds: host, '
            "process, hang, preemption; periods: h, day, week, month",
        ),
    ] = "",
    days: Annotated[
        float,
        typer.Option(
            metavar="N",
            min=0.001,
            max=MOST_DAYS,
            help="days of the run to rehearse",
        ),
    ] = 7.0,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, help="rehearsals, each with other random faults")
    ] = 100,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="seed of the faults")] = 0,
    step_time: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1e-6,
            callback=finite,
            help="time of a step (default: the plan's, or --like's)",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="take the times of steps, saves, starts and restores from a run"
        ),
    ] = None,
    replacement: Annotated[
        float | None,
        typer.Option(
            "--replacement-s",
            metavar="SECONDS",
            min=0.0,
            help="time until a lost host is replaced (default: 180); inf: never",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="find the best checkpoint interval, spares and least number of hosts"
        ),
    ] = False,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Rehearse a run with faults, in accelerated time.

    The real control plane runs with stubs of hosts: what it retries, waits for and gives up, it
    would do in the run. Prints goodput, days and dollars, and where the time goes. Nothing is
    started and nothing is written.

    launch rehearse job.yaml --cluster v5p-128 --faults "host 1/3h, hang 1/week" --days 30

    launch rehearse job.yaml --cluster pod.yaml --faults "host 1/day" --like my-run --tune
    """
    from launcher import api
    from launcher.commands.rehearse import RehearseOptions, rehearse_run
    from launcher.rehearsal.faults import parse_faults

    options = RehearseOptions(
        faults=parse_faults(faults), days=days, draws=draws, seed=seed, step_time_s=step_time,
        like=like, replacement_s=replacement, tune=tune, runs=runs,
        as_json=output is Output.json,
    )  # fmt: skip
    rehearse_run(api.plan(job, cluster=cluster, overrides=overrides or (), runs=runs), options)


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
