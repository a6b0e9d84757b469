"""What the documentation says about keys, files, tests and anchors agrees with the code."""

import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

import launcher
import trainer
from docs.generate.pages import PAGES as GENERATED
from docs.generate.pages import REFERENCE
from launcher.cluster.schema import Cluster
from launcher.commands.schema import cluster_schema, job_schema
from launcher.core.errors import docs_link
from launcher.core.states import RunState
from launcher.flow.schema import Flow
from launcher.runs.goodput import Part
from tests.docs.pages import DOCS, ROOT, WITH_README, blocks, page_id, prose
from trainer.contract.config.command import CommandJob
from trainer.contract.config.job import Deadlines, Job
from trainer.contract.config.presets import PRESETS
from trainer.contract.config.task_file import TaskFile
from trainer.contract.planning.sharding_rules import MESH_AXES, RULES
from trainer.contract.protocol import environment

JOB = YAML(typ="safe").load(ROOT / "jobs" / "quickstart.yaml")
CLUSTER = {"accelerator": "cpu", "hosts": 2, "devices_per_host": 1, "provider": {"kind": "local"}}
SNIPPETS = [(path, text) for path in WITH_README for text in blocks(path, "yaml")]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_page_is_fresh(name: str) -> None:
    page: Callable[[], str] = GENERATED[name]
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == page(), "run: uv run python -m docs.generate"


@pytest.mark.parametrize(
    ("path", "text"), SNIPPETS, ids=[f"{page_id(p)}-{i}" for i, (p, _) in enumerate(SNIPPETS)]
)
def test_yaml_example_is_valid(path: Path, text: str) -> None:
    given = YAML(typ="safe").load(text)
    schema, whole = _completed(given)
    schema.model_validate(whole)


def _completed(given: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    """Returns the schema of an example, and the example with the keys that it leaves out."""
    if "command" in given:
        return CommandJob, {"name": "example", **given}
    if "dataset_path" in given:
        return TaskFile, given
    if isinstance(given.get("steps"), list):
        return Flow, {"name": "example", **given}
    if given.keys() <= Cluster.model_fields.keys() and "steps" not in given:
        return Cluster, given if "accelerator" in given else {**CLUSTER, **given}
    return Job, {**JOB, **given}


def test_keys_named_in_prose_exist() -> None:
    known = set(_paths(job_schema()["else"], job_schema())) | {
        *_paths(job_schema()["then"], job_schema()),
        *_paths(cluster_schema(), cluster_schema()),
    }
    sections = {path.partition(".")[0] for path in known if "." in path}
    key = re.compile(rf"`((?:{'|'.join(sorted(sections))})(?:\.[a-z]\w*)+)(?:[:=][^`]*)?`")
    unknown = [
        f"{page_id(path)}: {name}"
        for path in WITH_README
        for name in key.findall(prose(path))
        if name not in known and not name.endswith((".txt", ".json"))
    ]
    assert unknown == []


def _paths(value: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yields the paths of all keys of a JSON Schema."""
    if "$ref" in value:
        value = root["$defs"][value["$ref"].rpartition("/")[2]]
    for name, child in value.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from _paths(child, root, below)
    for child in (*value.get("anyOf", ()), *value.get("oneOf", ()), value.get("items", {})):
        if child:
            yield from _paths(child, root, path)


def test_files_named_in_prose_exist() -> None:
    name = re.compile(r"`((?:launcher|trainer|tests|jobs|clusters|benchmarks|docs)/[\w./-]+)`")
    missing = [
        f"{page_id(path)}: {file}"
        for path in WITH_README
        for file in name.findall(prose(path))
        if "NAME" not in file and not (ROOT / file).exists()
    ]
    assert missing == []


def test_tests_named_in_prose_exist() -> None:
    written = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py"))
    missing = [
        f"{page_id(path)}: {name}"
        for path in WITH_README
        for name in re.findall(r"`(test_\w+)`", prose(path))
        if f"def {name}(" not in written
    ]
    assert missing == []


def test_example_model_is_the_shipped_one() -> None:
    page = (DOCS / "tutorials" / "bring-your-own-model.md").read_text(encoding="utf-8")
    assert (ROOT / "jobs" / "own_model.py").read_text(encoding="utf-8") in page


def _names_of(enum: type[Enum]) -> list[str]:
    return [str(member.value) for member in enum]


def _variables() -> list[str]:
    """Returns the names of the environment variables that a program may read."""
    launch_only = (environment.RUN_ID, environment.SLURM_JOB)
    names = [v for k, v in vars(environment).items() if k.isupper() and isinstance(v, str)]
    return [name for name in names if name not in launch_only]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("explanation/mesh-and-sharding.md", [*MESH_AXES, *RULES]),
        ("explanation/supervision.md", [*Deadlines.model_fields, *_names_of(Part)]),
        ("how-to/models-and-optimizers.md", PRESETS),
        ("how-to/monitor.md", _names_of(RunState)),
        ("reference/process-contract.md", _variables()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_page_names_all_that_the_code_has(page: str, names: list[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("package", [launcher, trainer], ids=lambda package: package.__name__)
def test_python_api_page_has_every_public_name(package: ModuleType) -> None:
    page = (REFERENCE / "python-api.md").read_text(encoding="utf-8")
    documented = re.findall(rf"^\.\. auto\w+:: {package.__name__}\.(\w+)", page, re.MULTILINE)
    assert sorted(documented) == sorted(package.__all__)


def test_sections_that_errors_refer_to_exist() -> None:
    page = (DOCS / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "launcher").rglob("*.py")]
    anchors = {a for text in files for a in re.findall(r"docs_link\([\"']([\w-]+)[\"']\)", text)}
    assert len(anchors) > 4
    assert [anchor for anchor in sorted(anchors) if f"({anchor})=\n" not in page] == []
    assert docs_link("hangs") == "See docs/how-to/troubleshoot.md#hangs"


def test_tests_that_the_fault_matrix_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REFERENCE / "fault-matrix.md").read_text("utf-8")))
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 60
    assert named - defined == set()
