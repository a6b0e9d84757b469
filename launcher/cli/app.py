"""The `launch` command: parses, calls, prints. No logic of its own, and nothing slow at import.

Exit codes: 0 ok; 1 the job failed; 2 usage or configuration; 3 the cluster cannot be reached or
provisioned; 130 interrupted.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli import checkpoint_commands, file_commands, run_commands
from launcher.cli.options import (
    Agreed,
    CompileCheck,
    Detach,
    Output,
    OutputOption,
    Overrides,
    RunName,
    Runs,
    Simulate,
    SimulateHosts,
    refuse,
)
from launcher.core.exit_codes import BAD_USAGE
from launcher.core.files import NoLocksError, NoStateFolderError
from launcher.core.output import prepare
from trainer.contract.config.errors import suggest

if TYPE_CHECKING:
    from launcher.cluster.schema import Cluster
    from launcher.planning.planner import LaunchSpec
    from trainer.contract.config.loader import Loaded


class DefaultToRun(TyperGroup):
    """`launch --cluster C job.yaml` is `launch run --cluster C job.yaml`."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Prepares the standard streams: closed ones, or their encoding, fail no command."""
        prepare()
        return super().main(*args, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own_options = {"--help", "-h", "--install-completion", "--show-completion"}
        if args and args[0] not in self.commands and not own_options.intersection(args[:1]):
            verb = args[0]
            if not verb.startswith("-") and _looks_like_a_verb(verb):
                hint = suggest(verb, sorted(self.commands))
                refuse(f"launch: '{verb}' is neither a command nor a job file.{hint}", BAD_USAGE)
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; prints one line when no state can be kept between commands."""
        try:
            return super().invoke(ctx)
        except NoStateFolderError as error:
            refuse(str(error), BAD_USAGE)
        except NoLocksError as error:
            refuse(f"{error}. Set XDG_STATE_HOME to a folder of another one", BAD_USAGE)


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


JobFile = Annotated[Path, typer.Argument(help="the job file, such as jobs/quickstart.yaml")]
ClusterName = Annotated[
    str,
    typer.Option("--cluster", "-c", help="a name in clusters/, a path, or an accelerator: v4-64"),
]


class Check(StrEnum):
    """A property of the training step to check."""

    explicit = "explicit"


Shardings = Annotated[bool, typer.Option("--shardings", help="list the layout of every parameter")]


@app.command()
def run(
    job: JobFile,
    overrides: Overrides = None,
    cluster: ClusterName = "local",
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    runs: Runs = Path("runs"),
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="move an existing run of this name aside and start from scratch"
        ),
    ] = False,
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
    launch = _prepare(job, overrides, cluster, simulate, simulate_hosts, runs)
    if dry_run:
        _print_dry_run(launch, output)
        return
    from launcher.commands.run import run_job
    from launcher.executors.options import OutputOptions

    shown = OutputOptions(detach, output is Output.json, yes)
    code = run_job(launch, fresh=fresh, shown=shown, compiled=compile_check)
    raise typer.Exit(code)


@app.command()
def resume(
    run: RunName,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="another cluster than before")
    ] = None,
    simulate: Simulate = False,
    simulate_hosts: SimulateHosts = None,
    detach: Detach = False,
    yes: Agreed = False,
    compile_check: CompileCheck = True,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Resume a run from its last checkpoint, on the same cluster or on another one.

    launch resume quickstart --detach steps=600
    """
    from launcher.commands.run import resume_run
    from launcher.executors.options import OutputOptions

    code = resume_run(
        run,
        overrides or (),
        runs,
        cluster=cluster,
        simulate=simulate,
        simulate_hosts=simulate_hosts,
        shown=OutputOptions(detach, output is Output.json, yes),
        compiled=compile_check,
    )
    raise typer.Exit(code)


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
    shardings: Shardings = False,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="ask the TPU compiler whether the step fits"),
    ] = None,
    searched: Annotated[
        bool,
        typer.Option("--search", help="rank alternative meshes, remat policies and micro-batches"),
    ] = False,
    check: Annotated[
        Check | None,
        typer.Option("--check", help="list ambiguous shardings and operations that reshard"),
    ] = None,
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

    launch plan --cluster tpu-v4-32 job.yaml --check explicit

    launch plan --cluster tpu-v4-32 job.yaml --search
    """
    if check and compiled:
        refuse("--check and --compile: one of them at a time", BAD_USAGE)
    if draw and output is Output.json:
        refuse("--draw: a picture is no JSON", BAD_USAGE)
    launch = _prepare(job, overrides, cluster, simulate, simulate_hosts, runs)
    if draw:
        _draw(launch, draw)
        return
    if check:
        from launcher.commands.check_explicit import tell

        raise typer.Exit(tell(launch, shardings=shardings, as_json=output is Output.json))
    if searched:
        from launcher.commands.search import search

        raise typer.Exit(search(launch, compiled=compiled, as_json=output is Output.json))
    if compiled:
        from launcher.commands.compile import tell

        raise typer.Exit(tell(launch, shardings=shardings, as_json=output is Output.json))
    _print_plan(launch, output, shardings=shardings)


def _draw(launch: "LaunchSpec", pattern: str) -> None:
    from rich.console import Console

    from launcher.planning.planner import TrainingLaunch
    from launcher.ui import sharding_view

    if not isinstance(launch, TrainingLaunch):
        refuse("--draw: a job with `command` has no arrays that are planned", BAD_USAGE)
    try:
        arrays = sharding_view.matching(launch.plan, pattern)
    except sharding_view.NoSuchArrayError as error:
        refuse(f"--draw {error}", BAD_USAGE)
    for array in arrays:
        Console().print(sharding_view.picture(array, launch.plan))


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

    words = ClusterRef(name=cluster, simulate=simulate, simulate_hosts=simulate_hosts)
    raise typer.Exit(examine(words, as_json=output is Output.json))


@app.command()
def up(
    cluster: Annotated[str, typer.Argument(help="the cluster to simulate")],
    simulate_hosts: SimulateHosts = None,
) -> None:
    """Start a simulated cluster and keep it warm for later runs."""
    from launcher.commands.clusters import keep_warm

    raise typer.Exit(keep_warm(_find_cluster(cluster), cluster, simulate_hosts))


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

    raise typer.Exit(end(cluster, agreed=yes))


def _prepare(
    job_file: Path,
    overrides: list[str] | None,
    cluster_name: str,
    simulate: bool,
    simulate_hosts: int | None,
    runs: Path,
) -> "LaunchSpec":
    """Loads and plans a job; ends the command with all problems at once."""
    from launcher.cluster.schema import ClusterRef
    from launcher.planning.planner import prepare
    from trainer.contract.config.loader import ConfigError

    words = ClusterRef(name=cluster_name, simulate=simulate, simulate_hosts=simulate_hosts)
    try:
        return prepare(job_file, overrides or (), words, runs)
    except ConfigError as error:
        refuse(str(error), BAD_USAGE)


def _find_cluster(name: str) -> "Loaded[Cluster]":
    from launcher.cluster.schema import find_cluster
    from trainer.contract.config.loader import ConfigError

    try:
        return find_cluster(name)
    except ConfigError as error:
        refuse(str(error), BAD_USAGE)


def _print_dry_run(launch: "LaunchSpec", output: Output) -> None:
    if output is Output.text and (created := _what_is_created(launch)):
        print(created, end="")
    else:
        _print_plan(launch, output, shardings=False)


def _what_is_created(launch: "LaunchSpec") -> str:
    from launcher.providers.registry import provider_for

    if launch.is_remote:
        return ""
    return provider_for(launch.cluster, launch.plan.world.simulated).describe(launch)


def _print_plan(launch: "LaunchSpec", output: Output, *, shardings: bool) -> None:
    from launcher.ui import plan_view

    if output is Output.json:
        print(plan_view.plan_as_json(launch))
        return
    from rich.console import Console

    plan_view.print_plan(Console(), launch, shardings=shardings)
