"""Mutation check: which small changes of the code that recovery depends on do the quick tests miss?

    uv run --group mutation --group gcp python -m tests.mutation.operators [TARGET ...] [--jobs 2]

cosmic-ray makes one change at a time in a clone of the last commit and runs the target's tests.
`targets.toml` lists the targets, their tests, and the accepted survivors with the reason for each.
The score does not count survivors marked `equivalent`: they leave the behaviour as it was.
Prints the score of each target and every survivor. The exit code is 1 where a target's score is
below 90 % or a survivor has no reason.
"""

import argparse
import shlex
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome

from tests.mutation.clone import cloned, pytest_command, run_in

TARGETS = Path(__file__).with_name("targets.toml")
GOAL = 0.9
ENDING_S = 30.0
"""For the processes that tests left."""
EXCLUDED_OPERATORS = [
    # One change of each kind is enough: the others fail in the same tests, or with a TypeError.
    "core/ReplaceBinaryOperator_(?!Add_Sub$|Sub_Add$|Mul_Div$|Pow_Mul$|LShift_RShift$)",
    "core/ReplaceComparisonOperator_(?!Eq_NotEq$|NotEq_Eq$|Is_IsNot$|IsNot_Is$)"
    "(?!Lt_LtE$|Lt_GtE$|LtE_Lt$|LtE_Gt$|Gt_GtE$|Gt_LtE$|GtE_Gt$|GtE_Lt$)",
]


@dataclass(frozen=True)
class Change:
    """One line that cosmic-ray changed."""

    before: str
    after: str

    @property
    def is_of_frozen(self) -> bool:
        """Whether it makes a dataclass mutable, which changes nothing that a run does."""
        return self.before.startswith("@dataclass(frozen=True)")

    def __str__(self) -> str:
        return f"- {self.before}\n      + {self.after}"


@dataclass(frozen=True)
class Acceptance:
    """Why no test should kill a survivor."""

    reason: str
    is_equivalent: bool
    """Whether no test could: the changed program behaves like the original."""


@dataclass(frozen=True)
class Target:
    """A file to change and the tests that must notice."""

    name: str
    file: str
    tests: Sequence[str]
    timeout_s: float
    accepted: dict[Change, Acceptance] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    target: Target
    killed: int
    survivors: list[Change]

    @property
    def equivalent(self) -> int:
        """The number of changes that leave the behaviour as it was."""
        accepted = (self.target.accepted.get(change) for change in self.survivors)
        return sum(one is not None and one.is_equivalent for one in accepted)

    @property
    def total(self) -> int:
        """The number of changes that a test could notice."""
        return self.killed + len(self.survivors) - self.equivalent

    @property
    def score(self) -> float:
        """The share of `total` that a test noticed, from 0 to 1."""
        return self.killed / self.total if self.total else 1.0

    @property
    def unexplained(self) -> list[Change]:
        return [change for change in self.survivors if change not in self.target.accepted]


def main() -> None:
    """Runs the chosen targets, prints their results and exits."""
    targets = _read_targets()
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.operators", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(targets)}")
    parser.add_argument("--jobs", type=int, default=2, help="targets to run at the same time")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(targets):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    chosen = [targets[name] for name in options.targets or targets]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for done in as_completed([pool.submit(_run, target) for target in chosen]):
            _print(done.result())
            results.append(done.result())
    sys.exit(0 if all(r.score >= GOAL and not r.unexplained for r in results) else 1)


def _read_targets() -> dict[str, Target]:
    read = tomllib.loads(TARGETS.read_text(encoding="utf-8"))
    targets = {}
    for name, one in read.items():
        accepted = {
            Change(survivor["before"], after): Acceptance(
                survivor["reason"], survivor.get("equivalent", False)
            )
            for survivor in one.get("accepted", [])
            for after in survivor["after"]
        }
        targets[name] = Target(name, one["file"], one["tests"], one["timeout_s"], accepted)
    return targets


def _run(target: Target) -> Result:
    """Raises RuntimeError where cosmic-ray fails, as it does where the unchanged code fails."""
    bin_dir = Path(sys.executable).parent
    with cloned(target.name) as clone:
        config, session = clone.with_name("config.toml"), clone.with_name("session.sqlite")
        config.write_text(_config(target), encoding="utf-8")
        for command in (
            [bin_dir / "cosmic-ray", "init", config, session],
            [bin_dir / "cr-filter-operators", session, config],
            [bin_dir / "cosmic-ray", "baseline", config],
            [bin_dir / "cosmic-ray", "exec", config, session],
        ):
            done = run_in(clone, command)
            if done.returncode:
                raise RuntimeError(f"{target.name}: {command[1]}: {done.stdout}{done.stderr}")
        return _read_results(target, session)


def _config(target: Target) -> str:
    arguments = ["-m", "not slow and not faults", *target.tests]
    command = shlex.join(pytest_command(target.timeout_s, arguments))
    excluded = ", ".join(f"'{pattern}'" for pattern in EXCLUDED_OPERATORS)
    return f"""\
[cosmic-ray]
module-path = "{target.file}"
timeout = {target.timeout_s + ENDING_S}
excluded-modules = []
test-command = '''{command}'''
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [{excluded}]
"""


def _read_results(target: Target, session: Path) -> Result:
    killed, survivors = 0, []
    with use_db(session, mode=WorkDB.Mode.open) as results:
        for _, result in results.completed_work_items:
            if result.test_outcome is None or not result.diff:  # filtered
                continue
            change = _change(result.diff)
            if change.is_of_frozen:
                continue
            if result.test_outcome == TestOutcome.SURVIVED:
                survivors.append(change)
            else:
                killed += 1
    return Result(target, killed, survivors)


def _change(diff: str) -> Change:
    """The first line that differs and is not empty."""
    lines = diff.splitlines()
    before = [line[1:].strip() for line in lines if line[:1] == "-" and line[:3] != "---"]
    after = [line[1:].strip() for line in lines if line[:1] == "+" and line[:3] != "+++"]
    return Change(next(filter(None, before), ""), next(filter(None, after), ""))


def _print(result: Result) -> None:
    target = result.target
    print(
        f"{target.name:12} {result.killed} of {result.total} killed: {100 * result.score:.1f} % "
        f"({result.equivalent} equivalent changes are not counted)"
    )
    for change in result.survivors:
        accepted = target.accepted.get(change)
        kind = "equivalent: " if accepted and accepted.is_equivalent else ""
        reason = f"{kind}{accepted.reason}" if accepted else "NO REASON GIVEN"
        print(f"  {target.file}: {reason}\n      {change}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
