"""`launch checkpoints`: list, verify, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli_options import Output, OutputOption, Runs, refuse
from launcher.exits import BAD_USAGE, JOB_FAILED, NO_CLUSTER

if TYPE_CHECKING:
    from launcher.commands.checkpoints import Entry


class DefaultToList(TyperGroup):
    """`launch checkpoints RUN` is `launch checkpoints list RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultToList, no_args_is_help=True, help="List, verify or export the checkpoints of a run."
)
RunOrFolder = Annotated[
    str, typer.Argument(metavar="RUN", help="a run's name or path, or a folder of checkpoints")
]


@app.command("list")
def list_checkpoints(
    run: RunOrFolder,
    runs: Runs = Path("runs"),
    verify: Annotated[bool, typer.Option("--verify", help="read every array")] = False,
    output: OutputOption = Output.text,
) -> None:
    """List the steps that are saved. The default command: `list` can be left out."""
    from launcher.commands.checkpoints import as_json, show, verified

    folder, found = _checkpoints_of(run, runs)
    if verify:
        found = verified(found)
    if output is Output.json:
        print(as_json(found))
    else:
        show(found, folder)
    raise typer.Exit(JOB_FAILED if verify and any(entry.problem for entry in found) else 0)


@app.command("export")
def export_checkpoint(
    run: RunOrFolder,
    to: Annotated[Path, typer.Option(help="the folder to write")],
    step: Annotated[int | None, typer.Option(help="the newest whole one by default")] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Write the weights of a checkpoint for other programs."""
    from launcher.commands.checkpoints import export, pick
    from launcher.runs import RunFolderError

    folder, found = _checkpoints_of(run, runs)
    try:
        entry = pick(found, folder, step)
    except RunFolderError as error:
        refuse(str(error), BAD_USAGE)
    raise typer.Exit(export(entry, to))


def _checkpoints_of(run: str, runs: Path) -> "tuple[str, list[Entry]]":
    from launcher.commands.checkpoints import UnreachableError, entries, find_folder
    from launcher.runs import RunFolderError
    from trainer.spec.config import ConfigError

    try:
        folder = find_folder(run, runs)
        return folder, list(entries(folder))
    except (ConfigError, RunFolderError) as error:
        refuse(str(error), BAD_USAGE)
    except UnreachableError as error:
        refuse(str(error), NO_CLUSTER)
