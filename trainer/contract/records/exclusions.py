"""The examples that a run has excluded after spikes of the loss, in a file beside its checkpoints.

A run with `on_spike: rewind` goes back to its newest checkpoint and leaves out the examples of the
bad step. From then on the order of its examples is the order without them. The file is the one
place that says so; checkpoints repeat what it said when they were saved.
"""

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter

from trainer.contract.config.base import Section
from trainer.contract.storage.paths import AnyPath

EXCLUDED = "excluded.json"
"""Name of the file in the folder of the checkpoints."""


class Exclusion(Section):
    """The examples of one bad step, which the run never uses again."""

    step: int
    """The bad step."""
    attempt: int
    """The attempt that reached it."""
    first: int
    """Examples trained on before the step, by the order of examples at that time."""
    count: int
    """Number of examples of the step."""
    order: str
    """Hash of the order of all examples: with another corpus, the exclusion does not apply."""


Exclusions = tuple[Exclusion, ...]
NONE: Exclusions = ()
_ADAPTER = TypeAdapter(Exclusions)


def encode(excluded: Sequence[Exclusion]) -> str:
    """Returns the text of the file."""
    return _ADAPTER.dump_json(tuple(excluded), indent=1).decode()


def decode(text: str) -> Exclusions:
    """Returns what a text of the file lists. Raises ValueError when it is no such text."""
    return _ADAPTER.validate_json(text, strict=False)


def read(folder: AnyPath) -> Exclusions:
    """Returns the exclusions of the run whose checkpoints are in a folder; usually none.

    Raises ValueError with the path when the file cannot be parsed: training without it would use
    the excluded examples again.
    """
    path = folder / EXCLUDED
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    try:
        return decode(text)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read: {str(error).splitlines()[0]}. It lists the examples that the "
            "run has excluded; restore it, or start a new run"
        ) from None


def applicable(excluded: Iterable[Exclusion], order: str) -> Exclusions:
    """Returns those that belong to this order of examples."""
    return tuple(one for one in excluded if one.order == order)
