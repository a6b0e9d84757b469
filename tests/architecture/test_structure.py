"""The report on the structure, on small packages."""

from pathlib import Path

import pytest

from tests.architecture.structure import Structure


def structure_of(folder: Path, **imports: str) -> Structure:
    """Returns the structure of a package in which each room imports the rooms named for it."""
    package = folder / "package"
    package.mkdir()
    for room, others in imports.items():
        lines = [f"from package.{other} import something\n" for other in others.split()]
        (package / f"{room}.py").write_text("import os\n" + "".join(lines))
    return Structure.read(package)


def test_a_chain_has_a_floor_for_each_room_and_no_cycle(tmp_path: Path) -> None:
    found = structure_of(tmp_path, top="middle low", middle="low", low="")
    assert (found.floors, len(found.lines)) == (3, 3)
    assert not found.cycles and not found.back_edges


def test_a_circle_has_one_back_edge(tmp_path: Path) -> None:
    found = structure_of(tmp_path, a="b", b="c", c="a", top="a")
    assert found.cycles == [frozenset("abc")]
    assert found.back_edges == [("a", "b")]
    assert found.floors == 3, "b, c, a"


def test_the_arrow_that_breaks_two_circles_is_the_back_edge(tmp_path: Path) -> None:
    found = structure_of(tmp_path, a="b c", b="d", c="d", d="a")
    assert found.back_edges == [("d", "a")]


@pytest.mark.parametrize("line", ["import package.room.file", "from package import room"])
def test_files_of_a_folder_are_one_room(tmp_path: Path, line: str) -> None:
    room = tmp_path / "package" / "room"
    room.mkdir(parents=True)
    (room / "file.py").write_text("from package.room import other\n")
    (room / "other.py").write_text("")
    (tmp_path / "package" / "top.py").write_text(line)
    found = Structure.read(tmp_path / "package")
    assert found.rooms == {"room", "top"}
    assert list(found.lines) == [("top", "room")]
