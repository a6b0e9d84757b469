"""Deliberate faults: each entry of faults.toml must make the tests that it names fail.

    uv run --group mutation --group gcp python -m tests.mutation.faults [PART_OF_A_NAME ...]

Applies one fault after the other to a clone of the last commit and runs its tests. The exit code is
1 where the tests of a fault pass all the same, or where its text is not in the code any more.
"""

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.clone import Clone, cloned

FAULTS = Path(__file__).with_name("faults.toml")
TIMEOUT_S = 600.0
TESTS_FAILED = 1
"""pytest's exit code; another one means that the tests did not run."""


@dataclass(frozen=True)
class Fault:
    """One change of the code that a test must notice."""

    name: str
    file: str
    before: str
    """Occurs exactly once in the file."""
    after: str
    tests: list[str]
    """Arguments of pytest."""


def main() -> None:
    """Applies the chosen faults, prints a line for each and exits."""
    read = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    faults = [Fault(**one) for one in read]
    words = sys.argv[1:]
    chosen = [f for f in faults if not words or any(word in f.name for word in words)]
    with cloned() as clone:
        problems = [_problem(fault, clone) for fault in chosen]
    missed = sum(problem is not None for problem in problems)
    print(f"{len(chosen) - missed} of {len(chosen)} faults are noticed")
    sys.exit(1 if missed or not chosen else 0)


def _problem(fault: Fault, clone: Clone) -> str | None:
    """Why the fault is not noticed; None where it is. Prints the result."""
    code = clone.read(fault.file)
    if code.count(fault.before) != 1:
        problem = f"its text occurs {code.count(fault.before)} times in {fault.file}"
    else:
        changed = code.replace(fault.before, fault.after)
        exit_code, _ = clone.run_tests(fault.file, changed, fault.tests, TIMEOUT_S)
        problem = None if exit_code == TESTS_FAILED else f"pytest exits {exit_code}"
    print(f"{'MISSED ' if problem else 'noticed'} {fault.name}", problem or "", flush=True)
    return problem


if __name__ == "__main__":
    main()
