"""`launch checkpoints`: list, verify, restore-damaged, export; and `launch sample`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli.options import Output, OutputOption, Runs
from launcher.core.exit_codes import JOB_FAILED

if TYPE_CHECKING:
    from launcher.runs.checkpoints import Entry


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
    """List the saved steps. This is the default command: `list` can be omitted."""
    from launcher.commands.checkpoints import as_json, show, verified

    folder, found = _checkpoints_of(run, runs)
    if verify:
        found = verified(found)
    if output is Output.json:
        print(as_json(found))
    else:
        show(found, folder, run)
    raise typer.Exit(JOB_FAILED if verify and any(entry.problem for entry in found) else 0)


@app.command("restore-damaged")
def restore_damaged(run: RunOrFolder, runs: Runs = Path("runs")) -> None:
    """Verify checkpoints that were moved aside as damaged; put back those that are whole."""
    from launcher.commands.checkpoints import put_back

    folder, found = _checkpoints_of(run, runs)
    results = list(put_back(found))
    for entry, why in results:
        print(f"{entry.folder.name}: {f'stays aside: {why}' if why else 'whole, and put back'}")
    if not results:
        print(f"{folder}: no checkpoint was moved aside")
    raise typer.Exit(JOB_FAILED if any(why for _, why in results) else 0)


@app.command("export")
def export_checkpoint(
    run: RunOrFolder,
    to: Annotated[Path, typer.Option(help="the folder to write")],
    step: Annotated[int | None, typer.Option(help="the newest whole one by default")] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Export the weights of a checkpoint for other programs."""
    from launcher.commands.checkpoints import export, pick

    folder, found = _checkpoints_of(run, runs)
    entry = pick(found, folder, step)
    raise typer.Exit(export(entry, to))


def sample(
    run: RunOrFolder,
    prompt: Annotated[str, typer.Option(help="what the text begins with")],
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="so many follow")] = 200,
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0, help="0: always the likeliest token")
    ] = 0.8,
    seed: Annotated[
        int | None, typer.Option(metavar="S", min=0, help="the job's by default")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="the newest whole one by default")
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Generate text with the model of a checkpoint, on this machine.

    launch sample quickstart --prompt "def main(" --tokens 100 --temperature 0
    """
    from launcher.commands.checkpoints import pick
    from launcher.commands.sample import SampleRequest, folder_of_paths, write

    folder, found = _checkpoints_of(run, runs)
    entry = pick(found, folder, step)
    wish = SampleRequest(prompt, tokens, temperature, seed)
    raise typer.Exit(write(entry, wish, folder_of_paths(run, runs)))


def _checkpoints_of(run: str, runs: Path) -> "tuple[str, list[Entry]]":
    from launcher.commands.checkpoints import find_folder
    from launcher.runs.checkpoints import entries

    folder = find_folder(run, runs)
    return folder, list(entries(folder))
