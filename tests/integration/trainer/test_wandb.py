"""What W&B is shown of a run, read back from the files that it keeps.

uv run --group wandb pytest -m wandb
"""

import json
import struct
from importlib import import_module

import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of
from trainer.distributed.process_env import Environment
from trainer.telemetry import wandb_writer
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report

pytestmark = pytest.mark.wandb
OFFLINE = {"project": "mine", "mode": "offline"}
HEADER_BYTES, BLOCK_BYTES, CHECK = 7, 1 << 15, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def _records(path):
    """The messages of a file: LevelDB's log format, after a header of its own."""
    message = import_module("wandb.proto.wandb_internal_pb2").Record
    data, place, parts = path.read_bytes(), HEADER_BYTES, b""
    while place + CHECK.size <= len(data):
        if BLOCK_BYTES - place % BLOCK_BYTES < CHECK.size:
            place += BLOCK_BYTES - place % BLOCK_BYTES
            continue
        _, length, kind = CHECK.unpack_from(data, place)
        place += CHECK.size + length
        parts += data[place - length : place]
        if kind in (FULL, LAST):
            yield message.FromString(parts)
            parts = b""


def _runs(folder):
    """Of each attempt: what begins it, and its lines."""
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        records = list(_records(path))
        (run,) = [record.run for record in records if record.HasField("run")]
        yield run, [_items(r.history.item) for r in records if r.HasField("history")]


def _items(items):
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_it_has_the_numbers_the_samples_and_the_job(tmp_path):
    job = job_of(wandb=OFFLINE, sample={"prompt": "<", "tokens": 4})
    ended = gang.run(job, world_of(), tmp_path)
    assert ended.codes == [0]
    [(run, lines)] = _runs(tmp_path)
    assert (run.project, run.display_name) == ("mine", "tiny")
    assert _items(run.config.update)["model"]["d_model"] == 32
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert losses == list(zip((1, 2, 3), ended.losses(), strict=True))
    (picture,) = [line["sample.path"] for line in lines if "sample.path" in line]
    (written,) = (tmp_path / "wandb").glob(f"offline-run-*/files/{picture}")
    assert written.read_text().startswith("<pre>&lt;")


def test_without_a_network_it_is_written_here_and_the_next_attempt_goes_on(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(wandb_writer, "INIT_TIMEOUT_S", 1.0)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    for attempt, process, mode in ((1, 0, "online"), (1, 1, "online"), (2, 0, "offline")):
        environment = Environment(attempt=attempt, process=process)
        job = job_of(wandb={**OFFLINE, "mode": mode})
        report = Report(job, environment, tmp_path, Events(environment))
        report.step(attempt, {"loss": 1.0, "learning_rate": 0.5, "tokens_per_s": 1.0})
        report.close()
    assert "warning: cannot reach W&B, logging offline" in capsys.readouterr().out
    runs = list(_runs(tmp_path))
    assert len({run.run_id for run, _ in runs}) == 1
    assert [[line["step"] for line in lines] for _, lines in runs] == [[1], [2]]
