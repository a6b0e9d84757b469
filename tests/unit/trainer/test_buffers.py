"""The memory of a step from the reports that XLA writes before it generates code."""

import threading
from pathlib import Path

import pytest

from trainer.analysis.buffers import assigned_bytes, watching

REPORT = """\
Memory Space: default (color=0)
Total bytes: 8323718464 (7.75GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
    4.00GiB( 29%);    4.00GiB;   1058357248;                5; 5xbf16[32,2,8192,4096]

Memory Space: vmem (color=1)
Total bytes: 100155392 (95.52MiB)
"""
BYTES = 8323718464
STEM = "module_0000.jit_step.cl_933746096.after_optimizations"
APPEARS_S = 30.0


def write_reports(folder: Path, report: str = REPORT) -> None:
    (folder / f"{STEM}-memory-usage-report.txt").write_text(report)
    (folder / f"{STEM}_after_buffer_assignment.txt").write_text("HloModule jit_step")


def test_hbm_is_counted_and_not_the_memory_of_the_core(tmp_path: Path) -> None:
    write_reports(tmp_path)
    assert assigned_bytes(tmp_path) == BYTES


@pytest.mark.parametrize("report", ["", "Memory Space: vmem (color=1)\nTotal bytes: 5\n"])
def test_a_report_in_another_form_has_no_size(tmp_path: Path, report: str) -> None:
    write_reports(tmp_path, report)
    assert assigned_bytes(tmp_path) is None


def test_buffers_are_reported_while_code_is_generated() -> None:
    found, is_known = list[int](), threading.Event()

    def on_assigned(size: int) -> None:
        found.append(size)
        is_known.set()

    with watching(on_assigned) as options:
        write_reports(Path(options["xla_dump_to"]))
        assert is_known.wait(APPEARS_S)
    assert found == [BYTES]


def test_a_compiler_that_fails_before_reports_nothing() -> None:
    found: list[int] = []
    with pytest.raises(MemoryError), watching(found.append) as options:
        raise MemoryError
    assert not found
    assert not Path(options["xla_dump_to"]).exists()
