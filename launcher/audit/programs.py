"""The code and the packages that have computed steps, and how those of a replay differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainer.contract.records.compatibility import SHOWN_OF_HASH

Versions = Mapping[str, str]
"""Version of Python and of each package, by name."""


@dataclass(frozen=True)
class Program:
    """The code and the packages that have computed steps."""

    code: str
    """SHA-256 over the code; "" when unknown."""
    versions: Versions
    """Empty when unknown."""


def versions_of(programs: Sequence[Program]) -> Versions:
    """Returns the versions of all programs; several of one package are joined by "and"."""
    names = {name: None for program in programs for name in program.versions}
    return {
        name: " and ".join(dict.fromkeys(one.versions.get(name, "none") for one in programs))
        for name in names
    }


def codes_of(programs: Sequence[Program]) -> set[str]:
    """Returns the hashes of the code of all programs, as far as they are known."""
    return {program.code for program in programs if program.code}


def shown_codes(codes: set[str]) -> str:
    """Returns hashes of code for the user."""
    return " and ".join(sorted(code[:SHOWN_OF_HASH] for code in codes)) or "unknown"


def version_changes(before: Versions, now: Versions) -> Iterator[str]:
    """Yields each version that differs, as "jax: 0.10.2 -> 0.12.0"."""
    for name, versions in _changed(before, now).items():
        yield f"{name}: {' -> '.join(versions)}"


def made_with(before: Versions, now: Versions) -> str:
    """Returns a sentence with the versions that differ; "" when none does."""
    changed = _changed(before, now)
    if not changed:
        return ""
    made, replayed = (
        ", ".join(f"{name} {versions[which]}" for name, versions in changed.items())
        for which in (0, 1)
    )
    return f"The run was made with {made}, and replayed with {replayed}"


def _changed(before: Versions, now: Versions) -> dict[str, tuple[str, str]]:
    missing = "none" if before else "unknown"
    pairs = {name: (before.get(name, missing), now.get(name, "none")) for name in {**before, **now}}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}
