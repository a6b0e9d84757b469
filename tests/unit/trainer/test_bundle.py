"""Compiled programs in a file: what is read back, what is refused, and how differences read."""

import json
from pathlib import Path

import pytest

from trainer.programs.bundle import Bundle, BundleError, differences

BUNDLE = Bundle({"jaxlib": "0.10.1", "process": "0"}, {"a/step": b"\x00one", "a/empty": b""})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "0001-0000.bundle"
    assert BUNDLE.write(path) == path.stat().st_size
    return path


def test_a_bundle_is_read_as_it_was_written(path: Path) -> None:
    assert Bundle.read(path) == BUNDLE
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kept", [0, 10, 40, -1])
def test_a_bundle_that_was_cut_off_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BundleError, match="it is damaged"):
        Bundle.read(path)


def test_every_changed_byte_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytes([content[position] ^ 1])
        path.write_bytes(content[:position] + changed + content[position + 1 :])
        with pytest.raises(BundleError, match="it is damaged"):
            Bundle.read(path)


def test_another_format_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.programs.bundle.FORMAT", 2)
    with pytest.raises(BundleError, match="it has format 1, but this version has 2"):
        Bundle.read(path)


@pytest.mark.parametrize(
    ("name", "then", "now", "expected"),
    [
        ("x", "0.10.1", "0.10.2", "x 0.10.1, here 0.10.2"),
        ("x", None, "--flag", "x none, here --flag"),
        ("x", "flags: fpu avx avx2" + " a" * 40, "flags: fpu avx" + " a" * 40,
         "x: on one side only avx2"),
        ("x", "a " * 40, " ".join(map(str, range(40))), "another x"),
        ("x", None, '{"a": 1}' + " " * 60, 'x: on one side only 1} none {"a":'),
        ("plan", json.dumps({"steps": 1, "seed": 1, "name": "n" * 60}),
         json.dumps({"steps": 2, "name": "n" * 60, "mesh": 1}), "plan: other mesh, seed, steps"),
    ],
)  # fmt: skip
def test_differences_are_short_and_name_what_differs(
    name: str, then: str | None, now: str, expected: str
) -> None:
    before = {"same": "1"} | ({} if then is None else {name: then})
    assert differences(before, {"same": "1", name: now}) == [expected]
