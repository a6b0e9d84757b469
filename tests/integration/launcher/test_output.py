"""Output that never raises and never blocks, whatever is behind it."""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core import output
from launcher.core.output import Output
from tests.support.cli import ROOT
from tests.support.processes import wait_until

TIMEOUT_S = 60.0


class Pipe:
    """A standard output whose other end is `reader`."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.reader, writer = os.pipe()
        self.stream = os.fdopen(writer, "w", encoding=encoding)
        self.output = Output(self.stream)
        self.failures: list[str] = []
        self.output.report_to(self.failures.append)

    def stop_reading(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def close(self) -> None:
        """The thread must end before its descriptor becomes that of another file."""
        if self.reader >= 0:
            self.stop_reading()
        self.output.settle()
        wait_until(lambda: not any("_write_pending" in t.name for t in threading.enumerate()))
        self.stream.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_text_arrives_in_order(pipe: Pipe) -> None:
    for number in range(100):
        print(number, file=pipe.output)
    pipe.output.settle()
    assert os.read(pipe.reader, 4096).split() == [str(n).encode() for n in range(100)]


def test_a_reader_that_is_gone_is_reported_once_and_nothing_is_raised(pipe: Pipe) -> None:
    pipe.stop_reading()
    print("first", file=pipe.output)
    wait_until(lambda: pipe.failures)
    print("second", file=pipe.output)
    pipe.output.settle()
    assert pipe.failures == ["[Errno 32] Broken pipe"]


def test_a_failure_before_the_report_is_asked_for_is_reported(pipe: Pipe) -> None:
    pipe.stop_reading()
    print("first", file=pipe.output)
    pipe.output.settle()
    late: list[str] = []
    pipe.output.report_to(late.append)
    assert late == ["[Errno 32] Broken pipe"]


def test_stuck_reader_delays_nothing_and_gets_newest_text(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PENDING_LIMIT", 1000)
    for _ in range(100):
        print("x" * 10_000, file=pipe.output)
    print("the newest", file=pipe.output)
    seen = b""
    while b"the newest" not in seen:
        seen += os.read(pipe.reader, 1 << 16)
    assert len(seen) < 100 * 10_000
    assert b"characters were dropped: nothing read them]" in seen


def test_exit_waits_for_stuck_reader_up_to_limit(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "STALLED_S", 0.01)
    pipe.output.write("x" * (1 << 20))
    pipe.output.settle()
    assert pipe.output.failure == "nothing was read for 0 s"


def test_a_full_disk_is_the_outputs_own_failure() -> None:
    with Path("/dev/full").open("w") as full:
        failing = Output(full)
        print("text", file=failing)
        failing.settle()
    assert failing.failure == "[Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("encoding", "written"), [("ascii", rb"caf\xe9 \u2192"), ("latin-1", b"caf\xe9 \\u2192")]
)
def test_a_character_that_the_encoding_lacks_is_written_as_an_escape(
    encoding: str, written: bytes
) -> None:
    pipe = Pipe(encoding)
    pipe.output.write("café →")
    pipe.output.settle()
    assert os.read(pipe.reader, 100) == written
    pipe.close()


def test_a_stream_without_a_descriptor_is_written_to() -> None:
    stream = io.StringIO()
    plain = Output(stream)
    plain.write("text")
    plain.settle()
    assert stream.getvalue() == "text"


PRINTING = """\
import sys
from launcher.core.output import unfailing_output
with unfailing_output():
    sys.stdin.readline()
    print("to nobody" * 10_000)
    print("warning", file=sys.stderr)
sys.exit(7)
"""


def test_the_interpreter_ends_with_its_own_code_after_its_reader_is_gone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdin and process.stderr
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b"warning\n"
    assert process.wait(TIMEOUT_S) == 7
    process.stderr.close()


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&-"])
def test_a_command_whose_standard_streams_are_closed_runs(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m launcher list {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr


def test_a_command_prints_to_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    (tmp_path / "café").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "run", "café/job.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert done.returncode == 2
    assert rb"caf\xe9/job.yaml" in done.stderr


@pytest.mark.parametrize("options", [[], ["-o", "json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_one_line(
    tmp_path: Path, options: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "launcher", "init", "job.yaml", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "standard output cannot be written: No space left on device" in line
    assert line.startswith("{") == bool(options)
