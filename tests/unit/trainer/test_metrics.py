"""metrics.jsonl has what is reported, and survives what ends the process that writes it."""

import json

from tests.support.jobs import job_of
from trainer.contract.records.metrics_file import curve
from trainer.distributed.process_env import Environment
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EvalResult, LinesFile, Report, TaskResults


def test_a_line_after_a_torn_one_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    LinesFile(path, 0).write({"step": 1, "attempt": 1})
    path.write_text(path.read_text() + '{"step": 2, "att')
    LinesFile(path, 0).write({"step": 2, "attempt": 2})
    lines = path.read_text().splitlines()
    assert curve(lines) == [{"step": 1, "attempt": 1}, {"step": 2, "attempt": 2}]


def test_line_of_an_evaluation_has_the_metrics_of_tasks(tmp_path, capsys):
    environment = Environment()
    report = Report(job_of(), environment, tmp_path, Events(environment))
    metrics = {"arc/acc": 0.25, "qa/perplexity": 1e9}
    report.evaluation(3, EvalResult(None, TaskResults(None, metrics), 0.5))
    report.close()
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert line == {"step": 3, "tasks": metrics, "evaluation_s": 0.5, "attempt": 1}
    assert capsys.readouterr().out == "step 3/3  arc/acc 0.25  qa/perplexity 1e+09\n"
