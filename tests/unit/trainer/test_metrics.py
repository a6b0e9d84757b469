"""metrics.jsonl survives what ends the process that writes it."""

from trainer.contract.records.metrics_file import curve
from trainer.telemetry.metrics import LinesFile


def test_a_line_after_a_torn_one_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    LinesFile(path, 0).write({"step": 1, "attempt": 1})
    path.write_text(path.read_text() + '{"step": 2, "att')
    LinesFile(path, 0).write({"step": 2, "attempt": 2})
    lines = path.read_text().splitlines()
    assert curve(lines) == [{"step": 1, "attempt": 1}, {"step": 2, "attempt": 2}]
