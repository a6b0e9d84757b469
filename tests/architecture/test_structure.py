"""The report on the structure, on small packages; and what the structure of this code must be."""

from pathlib import Path

import pytest

from tests.architecture.structure import PACKAGES, Structure, provider_checks, root_files

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("name", PACKAGES)
def test_package_has_no_cycle_or_back_edge_and_only_entry_points_at_root(name: str) -> None:
    found = Structure.read(ROOT / name)
    assert not found.cycles and not found.back_edges
    assert root_files(ROOT / name) == []


def test_the_launcher_has_at_most_12_floors() -> None:
    assert Structure.read(ROOT / "launcher").floors <= 12


def test_kinds_of_providers_are_checked_in_the_two_tables_only() -> None:
    assert provider_checks(ROOT / "launcher") == []


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(cluster.provider, Gcp)",
        "isinstance(settings, Attach | providers.Ssh)",
        "isinstance(settings, (Local, str))",
        "cluster.provider.kind in kinds",
        "settings.kind == 'slurm'",
        "settings.kind in ('local', 'ssh')",
        "TABLE[type(cluster.provider)]",
        "match provider:\n    case Kubernetes(): ...",
    ],
)
def test_a_check_of_the_provider_s_kind_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"import os\n{line}")
    assert len(provider_checks(tmp_path)) == 1


@pytest.mark.parametrize("line", ["ending.kind is EndReason.LOST", "isinstance(error, OSError)"])
def test_other_checks_are_none_of_a_provider(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert provider_checks(tmp_path) == []


def test_a_table_of_kinds_may_check_them(tmp_path: Path) -> None:
    table = tmp_path / "providers" / "registry.py"
    table.parent.mkdir()
    table.write_text("TABLE[type(cluster.provider)]")
    assert provider_checks(tmp_path) == []


def test_a_module_at_the_root_that_is_no_entry_point_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "helper.py").write_text("")
    assert root_files(tmp_path) == ["helper.py"]
