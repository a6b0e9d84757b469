"""`launch checkpoints`: list, verify, restore-damaged, export; and `launch sample`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from launcher.cli.options import Output, OutputOption, Runs, finite
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
CheckpointName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="a run, a folder of checkpoints, run:NAME@STEP or run:NAME@best"
    ),
]
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
    from launcher.commands.checkpoints import CheckpointResult, show, verified
    from launcher.core.json_output import print_json

    folder, found = _checkpoints_of(run, runs)
    if verify:
        found = verified(found)
    if output is Output.json:
        print_json([CheckpointResult.of(entry) for entry in found])
    else:
        show(found, folder, run)
    raise typer.Exit(JOB_FAILED if verify and any(entry.problem for entry in found) else 0)


@app.command("restore-damaged")
def restore_damaged(
    run: RunOrFolder, runs: Runs = Path("runs"), output: OutputOption = Output.text
) -> None:
    """Verify checkpoints that were moved aside as damaged; put back those that are whole."""
    from launcher.commands.checkpoints import put_back, show_put_back
    from launcher.core.json_output import print_json

    folder, found = _checkpoints_of(run, runs)
    results = list(put_back(found))
    if output is Output.json:
        print_json(results)
    else:
        show_put_back(results, folder)
    raise typer.Exit(JOB_FAILED if any(one.problem for one in results) else 0)


@app.command("export")
def export_checkpoint(
    run: CheckpointName,
    to: Annotated[Path, typer.Option(help="the folder to write")],
    step: Annotated[
        int | None, typer.Option(metavar="N", help="step of the checkpoint (default: the newest)")
    ] = None,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Export the weights of a checkpoint for other programs, with its lineage as a model card."""
    from launcher.chains.checkpoints import choose, named
    from launcher.commands.checkpoints import export
    from launcher.core.json_output import print_json

    exported = export(choose(named(run), step, runs), to)
    if output is Output.json:
        print_json(exported)
    else:
        print(exported.message)


def sample(
    run: CheckpointName,
    prompt: Annotated[str, typer.Option(help="what the text begins with")],
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="number of tokens to generate")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T",
            min=0,
            callback=finite,
            help="randomness; 0: always the most likely token",
        ),
    ] = 0.8,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="S", min=0, max=2**63 - 1, help="seed of the text (default: the job's)"
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="step of the checkpoint (default: the newest)")
    ] = None,
    runs: Runs = Path("runs"),
    output: OutputOption = Output.text,
) -> None:
    """Generate text with the model of a checkpoint.

    The model runs on this machine.

    launch sample quickstart --prompt "def main(" --tokens 100 --temperature 0
    """
    from launcher.chains.checkpoints import choose, named
    from launcher.commands.sample import SampleRequest, folder_of_paths
    from launcher.commands.sample import sample as generate
    from launcher.core.json_output import print_json

    ref = named(run)
    request = SampleRequest(prompt, tokens, temperature, seed)
    generated = generate(choose(ref, step, runs), request, folder_of_paths(ref.run, runs))
    if output is Output.json:
        print_json(generated)
    else:
        print(generated.text)


def _checkpoints_of(run: str, runs: Path) -> "tuple[str, list[Entry]]":
    from launcher.chains.checkpoints import find_folder
    from launcher.runs.checkpoints import entries

    folder = find_folder(run, runs)
    return folder, list(entries(folder))
