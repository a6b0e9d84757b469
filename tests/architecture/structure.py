"""The structure of the code by its imports: rooms, floors, arrows, back edges and cycles.

    python -m tests.architecture.structure [PACKAGE ...] [--root FOLDER]

A room is a file or a folder directly in a package. An arrow leads from a room to another one whose
modules it imports. A cycle is a group of rooms that can all reach each other. Back edges are the
arrows that point up when the rooms of each cycle are put in the order with the fewest of them. A
room's floor is the number of rooms on the longest way down from it. The time doubles with each room
of a cycle.
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


def main() -> None:
    """Prints a table, and the back edges and cycles under it."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.structure")
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--root", type=Path, default=Path(), help="the folder of the packages")
    options = parser.parse_args()
    print(f"{'':10}{'rooms':>8}{'floors':>8}{'arrows':>8}{'back':>8}{'cycles':>8}")
    for name in options.packages:
        found = Structure.read(options.root / name)
        counts = (len(found.rooms), found.floors, len(found.lines), len(found.back_edges))
        print(f"{name:10}" + "".join(f"{number:8}" for number in (*counts, len(found.cycles))))
        for here, there in found.back_edges:
            print(f"  back: {here} -> {there} ({found.lines[here, there]} lines)")
        for cycle in found.cycles:
            print(f"  cycle: {', '.join(sorted(cycle))}")


if __name__ == "__main__":
    main()
