"""The `launch` command: parses, calls, prints. No logic of its own, and nothing slow at import.

Exit codes: 0 ok; 1 the job failed; 2 usage or configuration; 3 the cluster cannot be reached or
provisioned; 130 interrupted.
"""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from launcher.cli import (
    audit_commands,
    checkpoint_commands,
    diagnose_commands,
    file_commands,
    flow_commands,
    run_commands,
)
from launcher.cli.options import (
    ClusterOptions,
    Consent,
    Detach,
    Fresh,
    Hot,
    JobFile,
    OtherClusterOptions,
    Output,
    OutputOption,
    Overrides,
    Queued,
    RunName,
    Runs,
    SimulateHosts,
    command_line,
    with_groups,
)
from launcher.cli.sections import SectionedGroup
from launcher.core.errors import SlipwayError, UsageError, error_of
from launcher.core.exit_codes import OK, print_error
from launcher.core.json_output import print_json_error, requests_json
from launcher.core.output import prepare, reporting_output_errors
from trainer.contract.config.errors import suggest

if TYPE_CHECKING:
    from launcher.planning.spec import LaunchSpec


STEPS_OF_FLOW = re.compile(
    rb"^steps:[ \t]*(\[|(#.*)?(\r?\n[ \t]*(#.*)?)*\r?\n[ \t]*- )", re.MULTILINE
)
"""A list of steps. Those of a job are a number."""
SEARCHED_BYTES = 1 << 20
"""A configuration file is not larger."""


class DefaultToRun(SectionedGroup):
    """`launch job.yaml` is `launch run job.yaml`, and `launch flow.yaml` is `launch flow ...`."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command; prints its error, if there is one, and exits with the error's code.

        Prepares the standard streams first: closed ones, or their encoding, fail no command.
        """
        prepare()
        as_json = requests_json(sys.argv[1:])
        try:
            with reporting_output_errors():
                if as_json:
                    raise SystemExit(self._main_with_json(*args, **options))
                return super().main(*args, **options)
        except SlipwayError as error:
            code = print_json_error(error) if as_json else print_error(error)
            raise SystemExit(code) from None

    def _main_with_json(self, *args: Any, **options: Any) -> int:
        """Runs a command, and returns its exit code. Prints an error as JSON."""
        try:
            return super().main(*args, **options, standalone_mode=False) or OK
        except TyperException as error:  # of the parser
            return print_json_error(error_of(error.exit_code, error.format_message()))
        except SlipwayError as error:
            return print_json_error(error)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own_options = {"--help", "-h", "--install-completion", "--show-completion"}
        if args and args[0] not in self.commands and not own_options.intersection(args[:1]):
            verb = args[0]
            if not verb.startswith("-") and _looks_like_a_verb(verb):
                hint = suggest(verb, sorted(self.commands))
                raise UsageError(f"launch: '{verb}' is neither a command nor a job file.{hint}")
            args = ["flow" if any(map(_is_flow, args)) else "run", *args]
        return super().parse_args(ctx, args)


def _looks_like_a_verb(word: str) -> bool:
    try:
        return word.isidentifier() and not Path(word).exists()
    except OSError:  # longer than the name of a file can be
        return True


def _is_flow(word: str) -> bool:
    try:
        if not Path(word).is_file():
            return False
        with Path(word).open("rb") as file:
            return bool(STEPS_OF_FLOW.search(file.read(SEARCHED_BYTES)))
    except OSError:  # an override that is longer than a file's name, or a file without permission
        return False


app = typer.Typer(
    cls=DefaultToRun,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help in plain text: rich would take most of its time
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Run JAX training on many hosts, from this machine to a TPU pod.

    launch --cluster local jobs/quickstart.yaml

    launch --cluster tpu-v4-32 --simulate job.yaml steps=20 mesh.tensor=2

    launch plan --cluster tpu-v4-32 --simulate job.yaml --shardings

    launch resume quickstart --detach

    launch status quickstart""",
)


@app.command()
@with_groups
def run(
    job: JobFile,
    overrides: Overrides = None,
    *,
    where: ClusterOptions,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    detach: Detach = False,
    queue: Queued = False,
    consent: Consent,
    hot: Hot = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="start nothing; print the plan, or the Kubernetes manifest"),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Run a job on a cluster. This is the default command: `run` can be omitted.

    launch --cluster local jobs/quickstart.yaml --detach

    launch --cluster local jobs/quickstart.yaml --queue priority=5
    """
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(
        fresh=fresh, detach=detach, queue=queue, assume_yes=consent.yes,
        compile_check=consent.compile_check, hot=hot, as_json=output is Output.json,
    )  # fmt: skip
    spec = _plan(job, overrides, where, runs)
    if dry_run:
        from launcher.commands.plan import show_dry_run

        show_dry_run(spec, as_json=options.as_json)
        return
    from launcher.commands.run import run as run_spec

    run_spec(spec, options)


@app.command()
@with_groups
def resume(
    run: RunName,
    overrides: Overrides = None,
    *,
    where: OtherClusterOptions,
    detach: Detach = False,
    queue: Queued = False,
    consent: Consent,
    hot: Hot = True,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Resume a run from its last checkpoint, on any cluster.

    launch resume quickstart --detach steps=300
    """
    from launcher.commands.run import resume as resume_run
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(
        overrides=overrides or (), detach=detach, queue=queue, assume_yes=consent.yes,
        compile_check=consent.compile_check, hot=hot, as_json=output is Output.json,
    )  # fmt: skip
    resume_run(run, runs, where, options)


@app.command()
@with_groups
def sweep(
    job: JobFile,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUES]...",
            help="changes to the job; 4,8 or log(1e-4,1e-2) or uniform(0,0.2) are swept",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", metavar="N", min=1, help="points that run at the same time"),
    ] = 1,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="draws for each combination of listed values"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="seed of the draws (default: 0)")
    ] = None,
    early_stop: Annotated[
        bool,
        typer.Option(
            "--early-stop", help="continue only the better half of the points at some steps"
        ),
    ] = False,
    *,
    where: ClusterOptions,
    runs: Runs = Path("runs"),
    consent: Consent,
    output: OutputOption = Output.text,
) -> None:
    """Run a job with many values, and compare the losses.

    The same command continues a sweep that was interrupted. Finished points stay finished.

    launch sweep job.yaml optimizer.learning_rate=1e-3,3e-3 model.layers=4,8 --jobs 2

    launch sweep job.yaml "optimizer.learning_rate=log(1e-4,1e-2)" --samples 8 --early-stop
    """
    from launcher.commands.sweep import sweep as run_sweep
    from launcher.commands.sweep_plan import SweepRequest, plan_sweep
    from launcher.commands.sweep_runner import SweepOptions

    request = SweepRequest(
        job_file=job, arguments=values or (), samples=samples, seed=seed, early_stop=early_stop,
        cluster_ref=where.reference, runs=runs,
    )  # fmt: skip
    options = SweepOptions(jobs=jobs, assume_yes=consent.yes, compile_check=consent.compile_check)
    run_sweep(plan_sweep(request), options, as_json=output is Output.json, command=command_line())


flow_commands.add_to(app)
run_commands.add_to(app)
diagnose_commands.add_to(app)
audit_commands.add_to(app)
file_commands.add_to(app)


@app.command()
@with_groups
def plan(
    job: JobFile,
    overrides: Overrides = None,
    *,
    where: ClusterOptions,
    runs: Runs = Path("runs"),
    shardings: Annotated[
        bool, typer.Option("--shardings", help="list the layout of every parameter")
    ] = False,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="ask the TPU compiler whether the step fits"),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="with --compile, on CPU devices: keep the programs for a run of this name",
        ),
    ] = False,
    searched: Annotated[
        bool,
        typer.Option("--search", help="rank alternative meshes, remat policies and micro-batches"),
    ] = False,
    check_sharding: Annotated[
        bool,
        typer.Option(
            "--check-sharding", help="list ambiguous shardings and operations that reshard"
        ),
    ] = False,
    draw: Annotated[
        str | None,
        typer.Option(
            "--draw", metavar="NAME", help="draw which devices hold which part of an array"
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show a run's hosts, mesh and memory before it starts.

    launch plan --cluster tpu-v4-32 job.yaml --compile

    launch plan --cluster local job.yaml --compile --keep

    launch plan --cluster tpu-v4-32 job.yaml --check-sharding

    launch plan --cluster tpu-v4-32 job.yaml --search
    """
    from launcher.commands.plan import PlanOptions, show_plan

    options = PlanOptions(
        shardings=shardings, compiled=compiled, keep=keep, searched=searched,
        check_sharding=check_sharding, draw=draw, as_json=output is Output.json,
    )  # fmt: skip
    options.check()
    show_plan(_plan(job, overrides, where, runs), options)


app.add_typer(checkpoint_commands.app, name="checkpoints")
app.command()(checkpoint_commands.sample)


@app.command()
@with_groups
def doctor(
    *,
    where: ClusterOptions,
    output: OutputOption = Output.text,
) -> None:
    """Check the hosts of a cluster as a run would.

    Reports every problem of every host.

    launch doctor --cluster tpu-v4-32 --simulate
    """
    from launcher.commands.doctor import examine

    examine(where.reference, as_json=output is Output.json)


@app.command()
def up(
    cluster: Annotated[str, typer.Argument(help="the cluster to simulate")],
    simulate_hosts: SimulateHosts = None,
    output: OutputOption = Output.text,
) -> None:
    """Start a simulated cluster and keep it for later runs.

    Its trainers are ready before a run needs them.
    """
    from launcher.commands.clusters import keep_warm

    keep_warm(cluster, simulate_hosts, as_json=output is Output.json)


@app.command()
def down(
    cluster: Annotated[
        str, typer.Argument(help="a warm cluster, a cluster file, or the name of TPU slices")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="skip the confirmation")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Shut down a kept cluster, or release hosts of a cloud.

    Runs on it are stopped with a checkpoint. The command asks for confirmation, and needs
    --yes when it runs without a terminal.

    launch down pod.yaml

    launch down slipway-small-98334a0e --yes
    """
    from launcher.commands.clusters import end

    end(cluster, agreed=yes, as_json=output is Output.json)


def _plan(
    job: Path, overrides: list[str] | None, where: ClusterOptions, runs: Path
) -> "LaunchSpec":
    """Plans a job from the options that `run` and `plan` share. Raises ConfigError."""
    from launcher import api

    return api.plan(job, **where._asdict(), overrides=overrides or (), runs=runs)
