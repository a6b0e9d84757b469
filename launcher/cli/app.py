"""The `launch` command: parses, calls, prints. No logic of its own, and nothing slow at import.

Exit codes: 0 ok; 1 the job failed; 2 usage or configuration; 3 the cluster cannot be reached or
provisioned; 130 interrupted.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli import checkpoint_commands, file_commands, run_commands
from launcher.cli.options import (
    Agreed,
    ClusterName,
    CompileCheck,
    Detach,
    Fresh,
    JobFile,
    OtherCluster,
    Output,
    OutputOption,
    Overrides,
    RunName,
    Runs,
    Simulate,
    SimulateHosts,
)
from launcher.core.errors import SlipwayError, UsageError
from launcher.core.exit_codes import print_error
from launcher.core.output import prepare
from trainer.contract.config.errors import suggest

if TYPE_CHECKING:
    from launcher.planning.spec import LaunchSpec


class DefaultToRun(TyperGroup):
    """`launch --cluster C job.yaml` is `launch run --cluster C job.yaml`."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command; prints its error, if there is one, and exits with the error's code.

        Prepares the standard streams first: closed ones, or their encoding, fail no command.
        """
        prepare()
        try:
            return super().main(*args, **options)
        except SlipwayError as error:
            raise SystemExit(print_error(error)) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own_options = {"--help", "-h", "--install-completion", "--show-completion"}
        if args and args[0] not in self.commands and not own_options.intersection(args[:1]):
            verb = args[0]
            if not verb.startswith("-") and _looks_like_a_verb(verb):
                hint = suggest(verb, sorted(self.commands))
                raise UsageError(f"launch: '{verb}' is neither a command nor a job file.{hint}")
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _looks_like_a_verb(word: str) -> bool:
    return word.isidentifier() and not Path(word).exists()


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
def run(
    job: JobFile,
    overrides: Overrides = None,
    cluster: ClusterName = "local",
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    detach: Detach = False,
    yes: Agreed = False,
    compile_check: CompileCheck = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="start nothing; print the plan, or the Kubernetes manifest"),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Run a job on a cluster. This is the default command: `run` can be omitted.

    launch --cluster local jobs/quickstart.yaml --detach
    """
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(
        fresh=fresh, detach=detach, assume_yes=yes, compile_check=compile_check,
        as_json=output is Output.json,
    )  # fmt: skip
    spec = _plan(job, overrides, cluster, simulate, simulate_hosts, runs)
    if dry_run:
        from launcher.commands.plan import show_dry_run

        show_dry_run(spec, as_json=options.as_json)
        return
    from launcher.commands.run import run as run_spec

    run_spec(spec, options)


@app.command()
def resume(
    run: RunName,
    overrides: Overrides = None,
    cluster: OtherCluster = None,
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    detach: Detach = False,
    yes: Agreed = False,
    compile_check: CompileCheck = True,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Resume a run from its last checkpoint, on the same cluster or on another one.

    launch resume quickstart --detach steps=300
    """
    from launcher.commands.run import resume as resume_run
    from launcher.executors.options import LaunchOptions

    options = LaunchOptions(
        overrides=overrides or (), detach=detach, assume_yes=yes, compile_check=compile_check,
        as_json=output is Output.json,
    )  # fmt: skip
    resume_run(run, runs, (cluster, simulate, simulate_hosts), options)


run_commands.add_to(app)
file_commands.add_to(app)


@app.command()
def plan(
    job: JobFile,
    overrides: Overrides = None,
    cluster: ClusterName = "local",
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    runs: Runs = Path("runs"),
    shardings: Annotated[
        bool, typer.Option("--shardings", help="list the layout of every parameter")
    ] = False,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="ask the TPU compiler whether the step fits"),
    ] = None,
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
    """Show the plan of a run without starting it: hosts, mesh, batch, memory.

    launch plan --cluster tpu-v4-32 job.yaml --compile

    launch plan --cluster tpu-v4-32 job.yaml --check-sharding

    launch plan --cluster tpu-v4-32 job.yaml --search
    """
    from launcher.commands.plan import PlanOptions, show_plan

    options = PlanOptions(
        shardings=shardings, compiled=compiled, searched=searched, check_sharding=check_sharding,
        draw=draw, as_json=output is Output.json,
    )  # fmt: skip
    options.check()
    show_plan(_plan(job, overrides, cluster, simulate, simulate_hosts, runs), options)


app.add_typer(checkpoint_commands.app, name="checkpoints")
app.command()(checkpoint_commands.sample)


@app.command()
def doctor(
    cluster: ClusterName = "local",
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    output: OutputOption = Output.text,
) -> None:
    """Check the hosts of a cluster as a run would, and report every problem.

    launch doctor --cluster tpu-v4-32 --simulate
    """
    from launcher.cluster.schema import ClusterRef
    from launcher.commands.doctor import examine

    cluster_ref = ClusterRef(name=cluster, simulate=simulate, simulate_hosts=simulate_hosts)
    examine(cluster_ref, as_json=output is Output.json)


@app.command()
def up(
    cluster: Annotated[str, typer.Argument(help="the cluster to simulate")],
    simulate_hosts: SimulateHosts = None,
) -> None:
    """Start a simulated cluster and keep it, with its trainers ready, for later runs."""
    from launcher.commands.clusters import keep_warm

    keep_warm(cluster, simulate_hosts)


@app.command()
def down(
    cluster: Annotated[
        str, typer.Argument(help="a warm cluster, a cluster file, or the name of TPU slices")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="skip the confirmation")] = False,
) -> None:
    """Shut down a warm cluster, or release the hosts of a cloud.

    Runs on it are stopped with a checkpoint. The command asks for confirmation, and needs
    --yes when it runs without a terminal.

    launch down pod.yaml

    launch down slipway-small-98334a0e --yes
    """
    from launcher.commands.clusters import end

    end(cluster, agreed=yes)


def _plan(
    job: Path,
    overrides: list[str] | None,
    cluster: str,
    simulate: bool,
    simulate_hosts: int | None,
    runs: Path,
) -> "LaunchSpec":
    """Plans a job from the options that `run` and `plan` share. Raises ConfigError."""
    from launcher import api

    return api.plan(
        job, cluster=cluster, simulate=simulate, simulate_hosts=simulate_hosts,
        overrides=overrides or (), runs=runs,
    )  # fmt: skip
