"""Mutation check: which small changes of the code that recovery depends on do the quick tests miss?

    uv run --group mutation --group gcp python -m tests.mutation.operators [TARGET ...] [--jobs 2]

Makes one of cosmic-ray's changes in a clone of the last commit and runs the target's tests.
`targets.toml` lists the targets, their tests, and the accepted survivors with the reason for each.
The score does not count survivors marked `equivalent`: they leave the behaviour as it was.
Prints every change as its tests end, then the score of each target and every survivor. The exit
code is 1 where a target's score is below 90 % or a survivor has no reason.

A busy machine makes tests time out. Those that do run again at the end, one change at a time, and
only what fails then too is killed.
"""

import argparse
import difflib
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.mutation.clone import Clone, cloned
from tests.mutation.fork_server import TIMED_OUT

TARGETS = Path(__file__).with_name("targets.toml")
GOAL = 0.9
EXCLUDED_OPERATORS = re.compile(
    # One change of each kind is enough: the others fail in the same tests, or with a TypeError.
    "core/ReplaceBinaryOperator_(?!Add_Sub$|Sub_Add$|Mul_Div$|Pow_Mul$|LShift_RShift$)|"
    "core/ReplaceComparisonOperator_(?!Eq_NotEq$|NotEq_Eq$|Is_IsNot$|IsNot_Is$)"
    "(?!Lt_LtE$|Lt_GtE$|LtE_Lt$|LtE_Gt$|Gt_GtE$|Gt_LtE$|GtE_Gt$|GtE_Lt$)"
)
FAILURE = re.compile(r"^\S+:\d+: (.*)", re.MULTILINE)
"""The exception of a failed test, as `pytest --tb=line` prints it."""


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
    imports: Sequence[str] = ()
    """Modules that the tests need and that the changed file is no part of."""
    accepted: dict[Change, Acceptance] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A change and how the tests ended."""

    change: Change
    code: str
    """The changed file."""
    exit_code: int
    output: str

    @property
    def survived(self) -> bool:
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.exit_code == TIMED_OUT or "Timeout" in self.failure

    @property
    def failure(self) -> str:
        """The first exception of a test, as one line; empty without one."""
        found = FAILURE.search(self.output)
        return found[1] if found else ""


@dataclass(frozen=True)
class Result:
    target: Target
    trials: list[Trial]

    @property
    def survivors(self) -> list[Change]:
        return [trial.change for trial in self.trials if trial.survived]

    @property
    def killed(self) -> int:
        return len(self.trials) - len(self.survivors)

    @property
    def killed_by_timeout(self) -> int:
        return sum(trial.timed_out for trial in self.trials)

    @property
    def equivalent(self) -> int:
        """The number of changes that leave the behaviour as it was."""
        accepted = (self.target.accepted.get(change) for change in self.survivors)
        return sum(one is not None and one.is_equivalent for one in accepted)

    @property
    def total(self) -> int:
        """The number of changes that a test could notice."""
        return len(self.trials) - self.equivalent

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
    parser.add_argument("--jobs", type=int, default=2, help="changes to try at the same time")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(targets):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    results = [_run(targets[name], options.jobs) for name in options.targets or targets]
    for result in results:
        _print(result)
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
        imports = one.get("imports", [])
        targets[name] = Target(name, one["file"], one["tests"], one["timeout_s"], imports, accepted)
    return targets


def _run(target: Target, jobs: int) -> Result:
    """Raises RuntimeError when the tests fail with the unchanged code."""
    with ExitStack() as stack:
        clones = [stack.enter_context(cloned(target.imports)) for _ in range(jobs)]
        original = clones[0].read(target.file)
        unchanged = _attempt(target, clones[0], Change("", ""), original)
        if not unchanged.survived:
            raise RuntimeError(f"{target.name}: the tests fail as it is: {unchanged.output}")
        free = SimpleQueue[Clone]()
        for clone in clones:
            free.put(clone)

        def attempt(changed: tuple[Change, str]) -> Trial:
            clone = free.get()
            try:
                return _attempt(target, clone, *changed)
            finally:
                free.put(clone)

        with ThreadPoolExecutor(jobs) as pool:
            trials = list(pool.map(attempt, _changes(original)))
        # Alone: a timeout of the first run may be that of a busy machine.
        again = [attempt((one.change, one.code)) if one.timed_out else one for one in trials]
        return Result(target, again)


def _attempt(target: Target, clone: Clone, change: Change, code: str) -> Trial:
    tests = ["-m", "not slow and not faults", *target.tests]
    trial = Trial(change, code, *clone.run_tests(target.file, code, tests, target.timeout_s))
    how = "survived" if trial.survived else "timed out" if trial.timed_out else "killed"
    print(f"{target.name} {how}: {trial.failure}\n      {change}", flush=True)
    return trial


def _changes(original: str) -> Iterator[tuple[Change, str]]:
    """Yields cosmic-ray's changes and the changed code."""
    nodes = list(ast_nodes(get_ast(original)))
    for name in operator_names():
        operator = get_operator(name)
        if EXCLUDED_OPERATORS.match(name) or operator.arguments():
            continue
        count = sum(len(list(operator().mutation_positions(node))) for node in nodes)
        for occurrence in range(count):
            try:
                code = mutate_code(original, operator(), occurrence)
            except AttributeError:
                continue  # `except a.B`: cosmic-ray can replace plain names only
            assert code is not None, "the occurrence was counted"
            change = _change(original, code)
            if change != Change("", "") and not change.is_of_frozen:
                yield change, code


def _change(original: str, code: str) -> Change:
    """The first line that differs and is not empty."""
    diff = list(difflib.ndiff(original.splitlines(), code.splitlines()))
    before, after = (
        [line[2:].strip() for line in diff if line[:2] == sign] for sign in ("- ", "+ ")
    )
    return Change(next(filter(None, before), ""), next(filter(None, after), ""))


def _print(result: Result) -> None:
    target = result.target
    print(
        f"{target.name:12} {result.killed} of {result.total} killed: {100 * result.score:.1f} %, "
        f"{result.killed_by_timeout} by a timeout "
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
