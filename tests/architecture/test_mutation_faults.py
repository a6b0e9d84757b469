"""The deliberate faults of tests/mutation/faults.toml fit the code of today."""

import tomllib
from pathlib import Path

import pytest

from tests.mutation.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
ALL = [Fault(**entry) for entry in tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]]


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_text_of_a_fault_occurs_once_and_its_tests_exist(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.before) == 1
    files = [ROOT / argument for argument in fault.tests if argument.startswith("tests/")]
    assert files and all(file.is_file() for file in files)
