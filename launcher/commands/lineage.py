"""`launch lineage`: where a checkpoint comes from, as text and as a model card."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from launcher.chains.checkpoints import choose
from launcher.chains.lineage import Ancestor, AttemptFacts, Lineage, lineage
from launcher.core.errors import UsageError
from launcher.core.formatting import pluralize
from launcher.core.printable import plain
from launcher.runs.checkpoints import Entry
from trainer.contract.config.checkpoint_ref import PREFIX, parse_checkpoint_ref
from trainer.contract.planning.sharding_rules import mesh_text

CARD = "README.md"
NO_COMMANDS = "none: the folder of a run, with its job file, is not on this machine"


def read(name: str, runs: Path) -> Lineage:
    """Returns the lineage of `RUN`, `RUN@STEP` or `RUN@best`.

    Raises UsageError for another form, RunFolderError for an unknown run or checkpoint.
    """
    try:
        ref = parse_checkpoint_ref(PREFIX + name.removeprefix(PREFIX))
    except ValueError as error:
        raise UsageError(str(error)) from None
    assert ref
    return lineage(choose(ref, None, runs))


def show(found: Lineage) -> None:
    """Prints the lineage as text, the run of the checkpoint first."""
    for one in found.runs:
        print(f"{plain(one.run)}, step {one.step:,}")
        for title, text in _facts(one):
            print(f"  {title:12} {plain(text)}")
    if found.unknown_origin:
        print(f"weights of the first run: {plain(found.unknown_origin)}")
    print("to repeat it:")
    for line in found.commands or [NO_COMMANDS]:
        print(f"  {plain(line)}")


def write_card(entry: Entry, folder: Path) -> None:
    """Writes the model card of an exported checkpoint, unless the folder has one."""
    path = folder / CARD
    if not path.exists():
        path.write_text(card(lineage(entry)), encoding="utf-8")


def card(found: Lineage) -> str:
    """Returns the model card of a checkpoint: only what was recorded."""
    last = found.last
    lines = [
        "---",
        "library_name: transformers",
        "---",
        "",
        f"# {last.run}, step {last.step:,}",
        "",
    ]
    for one in found.runs:
        if one is not last:
            lines += ["", f"## Started from {one.run}, step {one.step:,}", ""]
        lines += ["| | |", "|---|---|"]
        lines += [f"| {title} | {_cell(text)} |" for title, text in _facts(one)]
    if found.unknown_origin:
        lines += ["", f"The first run started from the weights in `{found.unknown_origin}`."]
    lines += ["", "## Commands that repeat it", ""]
    if found.commands:
        lines += ["```sh", *found.commands, "```"]
    else:
        lines += [f"{NO_COMMANDS[0].upper()}{NO_COMMANDS[1:]}."]
    return "\n".join([*lines, ""])


def _facts(one: Ancestor) -> Iterator[tuple[str, str]]:
    """Yields a title and a text for each fact about a run."""
    yield "checkpoint", one.checkpoint
    yield "saved at", f"{datetime.fromtimestamp(one.saved_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield "run id", one.run_id
    yield "parameters", f"{one.parameters:,} trained"
    yield "trained on", f"{pluralize(one.examples, 'example')}, {one.tokens:,} tokens"
    yield "loss", f"{one.loss:.4f}"
    if one.eval_loss is not None:
        yield "eval loss", f"{one.eval_loss:.4f}"
    total = sum(corpus.weight for corpus in one.corpora)
    for corpus in one.corpora:
        share = "" if len(one.corpora) == 1 else f", weight {corpus.weight} of {total}"
        path = f", {corpus.path}" if corpus.path and corpus.path != corpus.name else ""
        yield "data", f"{corpus.name} ({corpus.source}{path}{share})"
    yield "data hash", one.corpus_sha256
    for excluded in one.excluded:
        text = f"{pluralize(excluded.count, 'example')} of step {excluded.step:,}, a spike"
        yield "left out", text
    yield "seed", str(one.seed)
    yield "code hash", one.code_sha256
    yield "libraries", ", ".join(f"{name} {version}" for name, version in one.versions.items())
    for attempt in one.attempts:
        yield f"attempt {attempt.attempt}", _attempt(attempt)
    if not one.attempts:
        yield "saved on", _where(one.hosts, one.devices_per_host, one.accelerator, one.mesh)
    yield "weights of", one.init_from or "its own random initialization"
    if one.teacher:
        yield "learned from", one.teacher


def _attempt(one: AttemptFacts) -> str:
    steps = f"steps {one.first_step:,} to {one.last_step:,}"
    return f"{steps} on {_where(one.hosts, one.devices_per_host, one.accelerator, one.mesh)}"


def _where(hosts: int, devices: int, accelerator: str, mesh: Mapping[str, int]) -> str:
    count = f"{pluralize(hosts, 'host')} x {pluralize(devices, 'device')}"
    return f"{count} of {accelerator} ({mesh_text(mesh)})"


def _cell(text: str) -> str:
    """Returns a text for a cell of a Markdown table."""
    return plain(text).replace("|", "\\|")
