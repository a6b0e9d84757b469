"""The deliberate faults and the accepted survivors of tests/mutation fit the code of today."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
ALL = [Fault(**entry) for entry in tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]]
TARGETS = tomllib.loads(FAULTS.with_name("targets.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_text_of_a_fault_occurs_once_and_its_tests_exist(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.before) == 1
    files = [ROOT / argument for argument in fault.tests if argument.startswith("tests/")]
    assert files and all(file.is_file() for file in files)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_accepted_survivors_of_a_target_are_lines_of_its_file(target: dict[str, Any]) -> None:
    code = (ROOT / target["file"]).read_text(encoding="utf-8")
    accepted = [entry["before"] for entry in target.get("accepted", [])]
    assert [before for before in accepted if before not in code] == []
    for file, _, name in (test.partition("::") for test in target["tests"]):
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")
