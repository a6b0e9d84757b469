"""What the compiler reports of a step before its code is compiled."""

from pathlib import Path

import pytest

from launcher.planning.compiler import preliminary
from launcher.planning.trainer_process import TrainerProcess
from tests.support.llama_jobs import job_of
from trainer.contract.protocol.reports import CompileReport

# Other tests of the process may have used JAX, which warns of every fork.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


def test_a_preliminary_report_is_there_before_the_last(tmp_path: Path) -> None:
    end = tmp_path / "end"
    module = "tests.support.reports_in_two_parts"
    with TrainerProcess(module, job_of(64), None, 60.0, arguments=["early", str(end)]) as call:
        early = preliminary(call)
        assert early and early.is_preliminary and not call.is_over
        end.touch()
        last = call.answer(CompileReport)
    assert not last.is_preliminary and last.memory["program"]


def test_a_step_that_does_not_fit_has_no_preliminary_report(tmp_path: Path) -> None:
    end = tmp_path / "end"
    end.touch()
    module = "tests.support.reports_in_two_parts"
    with TrainerProcess(module, job_of(64), None, 60.0, arguments=["misfit", str(end)]) as call:
        assert preliminary(call) is None
        assert not call.answer(CompileReport).fits
