"""The structure of the code: rooms, floors, back edges, cycles; root files; provider checks.

    python -m tests.architecture.structure [PACKAGE ...] [--root FOLDER]

A room is a file or a folder directly in a package. An arrow leads from a room to another one whose
modules it imports. A cycle is a group of rooms that can all reach each other. Back edges are the
arrows that point up when the rooms of each cycle are put in the order with the fewest of them. A
room's floor is the number of rooms on the longest way down from it. The time doubles with each room
of a cycle.

A root file is a module directly in a package that is no entry point. A provider check is a place
that asks for the kind of a provider's section: it belongs into one of the two tables of kinds, or
becomes a method of the section.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Arrow = tuple[str, str]
PACKAGES = ("launcher", "trainer")
ENTRY_POINTS = {
    "launcher": {"__init__", "__main__", "api"},
    "trainer": {
        "__init__",
        "__main__",
        "standby",
        "train",
        "loop",
        "callbacks",
        "run_plan",
        "preflight",
    },
}
"""Where a reader starts: modules that belong directly into a package."""
TABLES = {"executors/registry.py", "providers/registry.py"}
"""The files of the launcher that map kinds of providers to what serves them."""
SECTIONS = {"Local", "Attach", "Ssh", "Gcp", "Kubernetes", "Slurm"}
"""The classes of a cluster file's `provider` section, one for each kind."""
KINDS = {name.lower() for name in SECTIONS}


@dataclass(frozen=True)
class Structure:
    """The rooms of one package, and how many import lines each arrow stands for."""

    rooms: frozenset[str]
    lines: Counter[Arrow]

    @classmethod
    def read(cls, package: Path) -> "Structure":
        """Reads the imports of every module below the folder `package`."""
        files = list(package.rglob("*.py"))
        rooms = frozenset(_room(_parts(file, package)) for file in files)
        lines: Counter[Arrow] = Counter()
        for file in files:
            here = _room(_parts(file, package))
            for parts in _imports(file, package):
                if (there := _room(parts)) in rooms and there != here:
                    lines[here, there] += 1
        return cls(rooms, lines)

    @cached_property
    def cycles(self) -> list[frozenset[str]]:
        """The groups of two rooms or more that can all reach each other."""
        reach = {room: self._reachable(room) for room in self.rooms}
        groups = {
            frozenset(other for other in reach[room] if room in reach[other]) for room in self.rooms
        }
        return sorted((group for group in groups if len(group) > 1), key=sorted)

    @cached_property
    def back_edges(self) -> list[Arrow]:
        """The arrows to remove so that no cycle is left."""
        return sorted(arrow for cycle in self.cycles for arrow in self._pointing_up(cycle))

    @property
    def floors(self) -> int:
        """The number of rooms on the longest way down, back edges left out."""
        down = self.lines.keys() - set(self.back_edges)
        heights: dict[str, int] = {}

        def height(room: str) -> int:
            if room not in heights:
                heights[room] = 1 + max((height(b) for a, b in down if a == room), default=0)
            return heights[room]

        return max(map(height, self.rooms), default=0)

    def _reachable(self, start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            room = left.pop()
            new = {there for here, there in self.lines if here == room} - found
            found |= new
            left += new
        return found

    def _pointing_up(self, cycle: frozenset[str]) -> list[Arrow]:
        """Returns the fewest, by the best order of each subset of the rooms."""
        best: dict[frozenset[str], list[Arrow]] = {frozenset(): []}
        for _ in cycle:
            larger: dict[frozenset[str], list[Arrow]] = {}
            for placed, up in best.items():
                for room in sorted(cycle - placed):
                    arrows = [
                        *up,
                        *((low, room) for low in sorted(placed) if (low, room) in self.lines),
                    ]
                    subset = placed | {room}
                    larger[subset] = min(larger.get(subset, arrows), arrows, key=self._cost)
            best = larger
        return best[cycle]

    def _cost(self, arrows: list[Arrow]) -> tuple[int, int, list[Arrow]]:
        """Few arrows first, then few import lines, then the names, so that the answer is one."""
        return len(arrows), sum(self.lines[arrow] for arrow in arrows), sorted(arrows)


def _parts(file: Path, package: Path) -> tuple[str, ...]:
    return file.relative_to(package).with_suffix("").parts


def _room(parts: tuple[str, ...]) -> str:
    return parts[0] if parts else "__init__"


def _imports(file: Path, package: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file imports, below the package's name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found = [(*module.split("."), alias.name) for alias in names]
            case ast.Import(names=names):
                found = [tuple(alias.name.split(".")) for alias in names]
            case _:
                continue
        for parts in found:
            if parts[0] == package.name and parts[1:]:
                yield parts[1:]


def root_files(package: Path) -> list[str]:
    """Returns the modules directly in a package that are no entry points."""
    expected = ENTRY_POINTS.get(package.name, {"__init__", "__main__"})
    return sorted(file.name for file in package.glob("*.py") if file.stem not in expected)


def provider_checks(package: Path) -> list[str]:
    """Returns "file:line" of every check of a provider's kind outside the tables."""
    return sorted(
        f"{file.relative_to(package)}:{node.lineno}"
        for file in package.rglob("*.py")
        if file.relative_to(package).as_posix() not in TABLES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.expr | ast.pattern) and _is_provider_check(node)
    )


def _is_provider_check(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name("isinstance"), args=[_, classes]):
            return any(_name(part) in SECTIONS for part in ast.walk(classes))
        case ast.Call(func=ast.Name("type"), args=[value]):
            return _name(value) == "provider"
        case ast.MatchClass(cls=cls):
            return _name(cls) in SECTIONS
        case ast.Attribute(attr="kind", value=value):
            return _name(value) == "provider"
        case ast.Compare(left=ast.Attribute(attr="kind"), comparators=[*values]):
            texts = (part for value in values for part in ast.walk(value))
            return any(isinstance(part, ast.Constant) and part.value in KINDS for part in texts)
    return False


def _name(node: ast.AST) -> str:
    """Returns the last part of a dotted name, or ""."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


def main() -> None:
    """Prints a table, and the back edges and cycles under it."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.structure")
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--root", type=Path, default=Path(), help="the folder of the packages")
    options = parser.parse_args()
    titles = ("rooms", "floors", "arrows", "back", "cycles", "root files", "provider checks")
    print(f"{'':10}" + "".join(f"{title:>{len(title) + 3}}" for title in titles))
    for name in options.packages:
        found = Structure.read(options.root / name)
        at_root, checks = root_files(options.root / name), provider_checks(options.root / name)
        lists = (found.back_edges, found.cycles, at_root, checks)
        counts = (len(found.rooms), found.floors, len(found.lines), *map(len, lists))
        cells = zip(counts, titles, strict=True)
        print(f"{name:10}" + "".join(f"{n:{len(title) + 3}}" for n, title in cells))
        for here, there in found.back_edges:
            print(f"  back: {here} -> {there} ({found.lines[here, there]} lines)")
        for cycle in found.cycles:
            print(f"  cycle: {', '.join(sorted(cycle))}")
        for file in at_root:
            print(f"  root file: {file}")
        for place in checks:
            print(f"  provider check: {place}")


if __name__ == "__main__":
    main()
