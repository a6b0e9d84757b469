"""Every source and every tokenizer, from the command to the last step, on two hosts."""

import gzip
import itertools
import json
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage_lines
from tests.support.launches import JOB, Launch, Launcher
from tests.support.processes import run_launcher
from tests.support.tokenizer_files import make as make_tokenizer
from trainer.contract.config.data import Data
from trainer.contract.records.metrics_file import curve
from trainer.data import mixture, pipeline
from trainer.data.documents import zstd
from trainer.step.bookkeeping import digest

SIZE = 300
STEPS = 4
WEIGHTS = {
    "stdlib": 4, "text": 1, "gz": 2, "zst": 3, "jsonl": 2, "array_record": 1, "npy": 2, "bin": 1,
}  # fmt: skip
BATCH = sum(WEIGHTS.values())
TEXTS = [" ".join(f"word{n * n % 97} of text {number}," for n in range(60)) for number in range(40)]


def write(folder: Path, kind: str) -> dict[str, Any]:
    """The texts as a source of a kind."""
    match kind:
        case "stdlib":
            return {"source": "stdlib"}
        case "text" | "gz" | "zst":
            pack = {"text": bytes, "gz": gzip.compress, "zst": zstd.compress}[kind]
            for number, text in enumerate(TEXTS):
                (folder / f"{number}.{kind}").write_bytes(pack(text.encode()))
            return {"source": "text", "path": f"{folder}/*.{kind}"}
        case "jsonl":
            lines = [json.dumps({"body": text}) for text in TEXTS]
            (folder / "all.jsonl").write_text("\n".join(lines))
            return {"source": "jsonl", "path": f"{folder}/*.jsonl", "text_field": "body"}
        case "array_record":
            writer = ArrayRecordWriter(f"{folder}/all.array_record", "group_size:4")
            for text in TEXTS:
                writer.write(text.encode())
            writer.close()
            return {"source": "array_record", "path": f"{folder}/*.array_record"}
        case "parquet":
            table = import_module("pyarrow").table({"body": TEXTS})
            import_module("pyarrow.parquet").write_table(table, folder / "all.parquet")
            return {"source": "parquet", "path": f"{folder}/*.parquet", "text_field": "body"}
        case "npy":
            np.save(folder / "all.npy", tokens(np.uint16))
            return {"source": "tokens", "path": f"{folder}/*.npy"}
        case _:
            tokens(np.uint32).tofile(folder / "all.bin")
            return {"source": "tokens", "path": f"{folder}/*.bin", "dtype": "uint32"}


def tokens(dtype: type) -> np.ndarray:
    """Of bytes: each text behind its separator."""
    each = [[256, *text.encode()] for text in TEXTS]
    return np.array(list(itertools.chain(*each)), dtype)


def job_of(launcher: Launcher, data: dict[str, Any], more: str = "") -> None:
    text = JOB.replace("steps: 100000", f"steps: {STEPS}").replace("eval: null\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("data:")]
    sizes = {"seq_len": 16, "validation_fraction": 0.1}
    settings = [f"data: {json.dumps({**sizes, **data})}", "eval: {every_steps: 4, batches: 1}"]
    (launcher.folder / "job.yaml").write_text("\n".join([*lines, *settings, more]))


def metrics(run: Launch) -> list[dict[str, Any]]:
    return curve((run.run_dir / "metrics.jsonl").read_text().splitlines())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launch, Data]]:
    """A run of all sources together, and its data."""
    folder = tmp_path_factory.mktemp("mixed")
    sources = []
    for kind, weight in WEIGHTS.items():
        (folder / kind).mkdir()
        sources.append({**write(folder / kind, kind), "name": kind, "weight": weight})
    with pytest.MonkeyPatch.context() as patch, Traces() as traces:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        launcher = Launcher(folder, traces)
        job_of(launcher, data := {"mixture": sources, "global_batch": BATCH})
        run = launcher("mixed")
        assert run.wait() == 0, run.output
        yield run, Data.model_validate({**data, "seq_len": 16, "validation_fraction": 0.1})
        traces.assert_nothing_left(timeout_s=5.0)


@pytest.mark.slow
def test_run_trains_on_every_source_and_reports_loss_of_each(
    mixed: tuple[Launch, Data],
) -> None:
    lines = metrics(mixed[0])
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    (evaluation,) = (line for line in lines if "eval_loss" in line)
    assert evaluation["eval_losses"].keys() == WEIGHTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_its_examples_are_those_that_any_number_of_hosts_reads(
    mixed: tuple[Launch, Data], hosts: int
) -> None:
    run, data = mixed
    found = mixture.load(data)
    blocks = [pipeline.training_batches(found, data, 0, (host, hosts), 1) for host in range(hosts)]
    recorded = [line["examples"] for line in metrics(run) if "loss" in line]
    for said in recorded:
        numbers = np.concatenate([next(block).examples for block in blocks])
        assert f"{int(digest(jax.numpy.asarray(numbers))):08x}" == said


@pytest.mark.slow
def test_its_sources_have_their_weights_to_one_percent(mixed: tuple[Launch, Data]) -> None:
    found, steps = mixture.load(mixed[1]), 100
    sizes = [part.sequences(16) for part in found.parts]
    ends = list(itertools.accumulate(sizes))
    order: Any = pipeline.mixed_order(found, 16, 0)
    sources = Counter(bisect(ends, order[item]) for item in range(steps * BATCH))
    for source, weight in enumerate(WEIGHTS.values()):
        assert sources[source] == pytest.approx(steps * weight, rel=0.01)


@pytest.mark.slow
@pytest.mark.full
def test_a_run_with_a_tokenizer_of_a_file(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write(tmp_path, "jsonl")
    tokenizer = make_tokenizer(tmp_path)
    job_of(launch, {**source, "global_batch": 4, "tokenizer": str(tokenizer)})
    run = launch()
    assert run.wait() == 0, run.output
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 4]


@pytest.mark.slow
def test_record_bad_on_one_host_ends_run_before_first_step(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    job_of(launch, {**write(tmp_path, "jsonl"), "global_batch": 4})
    run = launch(provider=sabotage_lines(tmp_path, "b'{broken' if number == 3 else line"))
    assert run.wait() == 1, run.output
    assert (
        f"host-0001: 1 bad record, for example {tmp_path / 'all.jsonl'}:3: the line is not JSON"
        in run.output
    )
    assert not (run.run_dir / "metrics.jsonl").exists()
    launch.traces.assert_nothing_left(timeout_s=5.0)


@pytest.mark.parquet
def test_a_run_on_parquet(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library has an environment of its own: tests/integration/trainer/test_parquet.py."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job_of(launch, {**write(tmp_path, "parquet"), "global_batch": 4})
    run = launch()
    assert run.wait() == 0, run.output
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 4]


@pytest.mark.full
@pytest.mark.slow
def test_hosts_train_same_tokenizer_and_run_resumes_and_exports(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [tmp_path / f"cache-{host}" for host in range(2)]
    monkeypatch.setenv("XDG_CACHE_HOME", str(own[0]))
    for number, path in enumerate(sorted((launch.folder / "corpus").iterdir())):
        path.write_text(" ".join(f"word{n * n % 97} of file {number}," for n in range(99)))
    (launch.folder / "job.yaml").write_text(
        JOB.replace("path:", f"tokenizer: {{train: {SIZE}}}, path:")
        .replace("steps: 100000", "steps: 4")
        .replace("sample: null", "sample: {prompt: word, tokens: 8}")
        + "checkpoint: {every_steps: 4}\n"
    )
    run = launch(provider=f", host_env: {{1: {{XDG_CACHE_HOME: {own[1]}}}}}")
    assert run.wait() == 0, run.output
    (one,), (other,) = (list((cache / "slipway" / "tokenizers").iterdir()) for cache in own)
    assert one.name == other.name and one.read_bytes() == other.read_bytes()
    assert (run.run_dir / "sample.txt").read_text().startswith("word")

    again = launch.resume("small", "steps=8")
    assert again.wait() == 0, again.output
    assert "restored step 4" in again.output
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [line["step"] for line in curve(lines) if "loss" in line] == list(range(1, 9))

    words = ("checkpoints", "export", "small", "--to", "exported")
    exported = run_launcher(launch.folder, launch.traces.environment, *words)
    assert exported.returncode == 0, exported.stderr
    folder = launch.folder / "exported"
    assert json.loads((folder / "tokenizer.json").read_text()) == json.loads(one.read_text())
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == SIZE
    launch.traces.assert_nothing_left(timeout_s=5.0)
