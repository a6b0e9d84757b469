"""JSON Schemas: `launch schema`, and the copies in docs that editors and other tools use."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from tests.support.cli import launch

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schemas"
FILES = {
    "job": sorted(ROOT.glob("jobs/*.yaml")),
    "cluster": sorted(ROOT.glob("clusters/*.yaml")),
    "flow-file": sorted(ROOT.glob("jobs/flows/*.yaml")),
}


def schema_of(kind: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", [*FILES, "compare"])
def test_the_schema_in_docs_is_what_the_command_prints(kind: str, tmp_path: Path) -> None:
    printed = launch(tmp_path, "schema", kind)
    assert printed.returncode == 0, printed.stderr
    written = (SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert printed.stdout == written, f"launch schema {kind} > docs/schemas/{kind}.schema.json"


@pytest.mark.parametrize(
    ("kind", "path"),
    [(kind, path) for kind, paths in FILES.items() for path in paths],
    ids=lambda given: getattr(given, "name", given),
)
def test_a_shipped_file_is_valid_and_names_its_schema(kind: str, path: Path) -> None:
    Draft202012Validator(schema_of(kind)).validate(read(path))
    first = path.read_text(encoding="utf-8").splitlines()[0]
    folder = os.path.relpath(SCHEMAS, path.parent)
    assert first == f"# yaml-language-server: $schema={folder}/{kind}.schema.json"


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("job", {"name": "a", "steps": "many"}),
        ("job", {"name": "a", "command": ["x"], "model": {}}),
        ("cluster", {"accelerator": "v4-8", "provider": {"kind": "cloud"}}),
        ("flow-file", {"name": "a", "steps": [{"jb": "job.yaml"}]}),
    ],
)
def test_a_wrong_file_is_invalid(kind: str, wrong: dict[str, Any]) -> None:
    assert not Draft202012Validator(schema_of(kind)).is_valid(wrong)


def test_every_cluster_key_is_described_by_a_sentence() -> None:
    schema = schema_of("cluster")
    sections = [schema, *schema["$defs"].values()]
    keys = {
        f"{section['title']}.{key}": about.get("description", "")
        for section in sections
        for key, about in section.get("properties", {}).items()
        if key != "kind"
    }
    assert [key for key, text in keys.items() if not re.fullmatch(r"[A-Z][^.]*.*\.", text)] == []
