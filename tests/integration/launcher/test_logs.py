"""What a program prints: all of it in rotated logs, and a bounded part handed over as lines."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.host.log_reader import CHUNK_BYTES, Lines, LogFile
from launcher.host.log_writer import KEPT, ROTATE_BYTES, names_of
from launcher.host.output_tail import LEFT_OUT, LONGEST_LINE, MOST_LINES, OutputLines
from launcher.host.process import HostProcess
from launcher.host.process_tree import REAPER
from launcher.host.reaper import descendants
from tests.support.assert_no_leftovers import Traces
from tests.support.host_programs import collect, start, wait_for_event
from tests.support.processes import wait_until
from trainer.contract.protocol.events import Event, WarningEvent

RELAY = REAPER.with_name("log_writer.py")


class Relay:
    """A relay as a process, into whose pipe the test writes."""

    def __init__(self, log: Path, rotate_bytes: int) -> None:
        command = [sys.executable, "-I", "-S", str(RELAY), str(log), str(rotate_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._log = log
        self.wrote = b""

    def write(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)
        self._process.stdin.flush()
        self.wrote += data

    def write_and_wait(self, data: bytes) -> None:
        """Until it is in the log: so that several writes are several chunks."""
        self.write(data)
        wait_until(lambda: whole(self._log).endswith(data), 30.0)

    def close(self) -> bytes:
        """Returns what it answered."""
        output, _ = self._process.communicate(timeout=30.0)
        return output


def whole(log: Path) -> bytes:
    """A log with what was rotated, in order; short of a file that is renamed just now."""
    text = b""
    for name in reversed(names_of(str(log))):
        with suppress(FileNotFoundError):
            text += Path(name).read_bytes()
    return text


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, last))


def read_all(log: LogFile) -> bytes:
    return b"".join(iter(log.read, b""))


def test_a_log_is_rotated_at_a_line_and_nothing_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    relay = Relay(log, rotate_bytes=100_000)
    for first in range(0, 30_000, 10_000):
        relay.write_and_wait(numbered(first, first + 10_000))
    relay.close()
    assert whole(log) == relay.wrote
    assert (tmp_path / "log.1").exists()
    assert all(path.read_bytes().endswith(b"\n") for path in tmp_path.iterdir())


def test_the_number_of_rotated_logs_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    relay = Relay(log, rotate_bytes=1000)
    for number in range(KEPT * 3):
        relay.write_and_wait(b"%03d\n" % number * 300)
    relay.close()
    assert {path.name for path in tmp_path.iterdir()} == {Path(n).name for n in names_of(str(log))}
    assert relay.wrote.endswith(whole(log))


def test_a_log_without_lines_is_rotated_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log"
    relay = Relay(log, rotate_bytes=1000)
    for number in range(3):
        relay.write_and_wait(b"%d" % number * 2000)
    relay.close()
    assert whole(log) == relay.wrote
    assert log.stat().st_size < len(relay.wrote)


def test_another_attempt_appends_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for attempt in (b"one\n", b"two\n"):
        relay = Relay(log, ROTATE_BYTES)
        relay.write(attempt)
        relay.close()
    assert log.read_bytes() == b"one\ntwo\n"


def test_a_reader_follows_a_log_over_its_rotations(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"of an earlier attempt\n")
    relay, seen = Relay(log, rotate_bytes=5000), b""
    with closing(LogFile(log, tail=0)) as reader:
        for first in range(0, 10_000, 400):
            relay.write_and_wait(numbered(first, first + 400))
            if first % 1200 == 0:  # now and then it is some rotations late
                seen += read_all(reader)
        relay.close()
        assert seen + read_all(reader) == relay.wrote


def test_a_reader_that_was_overtaken_goes_on_with_the_oldest_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    relay = Relay(log, rotate_bytes=1000)
    with closing(LogFile(log, tail=0)) as reader:
        for number in range(KEPT * 2):
            relay.write_and_wait(b"%03d\n" % number * 300)
        relay.close()
        assert read_all(reader).endswith(whole(log))


@given(st.lists(st.binary(max_size=100) | st.just(b"\n"), max_size=9))
def test_lines_are_what_was_written_whatever_its_pieces(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("ab") as log:
        lines, seen = OutputLines(Path(folder) / "log"), []
        for chunk in chunks:
            log.write(chunk)
            log.flush()
            seen += lines.read(last=False)[0]
        seen += lines.read(last=True)[0]
        lines.close()
    *expected, rest = b"".join(chunks).split(b"\n")
    lines_of_it = [line.decode(errors="replace").rstrip("\r") for line in expected]
    assert seen == lines_of_it + ([rest.decode(errors="replace")] if rest else [])


def test_lines_that_are_left_out_are_counted_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of megabytes of newlines must not hold up the end of a program."""
    decoded: list[int] = []
    add = Lines.add

    def note(lines: Lines, chunk: bytes) -> list[str]:
        decoded.append(len(chunk))
        return add(lines, chunk)

    monkeypatch.setattr(Lines, "add", note)
    log, total = tmp_path / "log", 4 * CHUNK_BYTES
    log.touch()
    with closing(OutputLines(log)) as lines:
        log.write_bytes(b"\n" * (total - 5) + b"last\n")
        seen, _ = lines.read(last=True)
    assert seen == [LEFT_OUT.format(total - 4 - MOST_LINES), *[""] * (MOST_LINES - 1), "last"]
    assert sum(decoded) <= 4 * (MOST_LINES + 4)


def test_binary_garbage_and_a_line_of_megabytes_do_no_harm(tmp_path: Path) -> None:
    code = r"""
garbage = bytes(range(256)) * 40
os.write(1, garbage + b"\n")
for _ in range(300): os.write(1, b"x" * 10_000)
os.write(1, b"\nthe end\n")
"""
    batch = collect(start(tmp_path, code))
    log = (tmp_path / "logs" / "host-0000.log").read_bytes()
    assert log == bytes(range(256)) * 40 + b"\n" + b"x" * 3_000_000 + b"\nthe end\n"
    assert batch.status == 0
    assert batch.lines[-1] == batch.tail[-1] == "the end"
    assert max(map(len, batch.lines)) == LONGEST_LINE


FLOOD = """
import time
began = time.monotonic()
for first in range(0, 200_000, 1000):
    os.write(1, b"".join(b"%07d %s\\n" % (n, b"y" * 91) for n in range(first, first + 1000)))
say(event="flooded", seconds=time.monotonic() - began)
"""
"""20 MB, 100 bytes a line."""


def test_a_flood_is_in_the_log_and_a_bounded_part_is_handed_over(tmp_path: Path) -> None:
    program, most, batches = start(tmp_path, FLOOD), 0, []
    while not batches or not batches[-1].over:
        batches.append(program.poll(1.0))
        most = max(most, len(batches[-1].lines))
    assert most <= MOST_LINES + 1
    lines = [line for batch in batches for line in batch.lines]
    left_out = [int(m[1]) for line in lines if (m := re.match(r"\[(\d+) lines are omitted", line))]
    assert len(lines) - len(left_out) + sum(left_out) == 200_000
    assert lines[-1].startswith("0199999")
    flooded = [event for batch in batches for event in batch.events]
    assert flooded[0].extra["seconds"] < 30.0
    log = whole(tmp_path / "logs" / "host-0000.log")
    assert len(log) == 20_000_000 and log.count(b"\n") == 200_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of the logs, on a disk of 1 MiB."""
    folder = tmp_path / "logs"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounts a small disk: needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounts a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_under_the_logs_is_a_warning(tmp_path: Path, small_disk: Path) -> None:
    """The program goes on, at its own pace; once there is room, so does the log."""
    ballast, log = small_disk / "ballast", small_disk / "host-0000.log"
    ballast.write_bytes(b"b" * 500_000)
    code = r"""
for _ in range(500): print("z" * 9_999, flush=True)
say(event="printed")
while not os.path.exists("room"): pass
print("there is room again")
"""
    program = start(tmp_path, code)
    events: list[Event] = []
    wait_until(lambda: events.extend(program.poll(1.0).events) or len(events) == 2, 60.0)
    warning = next(event for event in events if isinstance(event, WarningEvent))
    assert warning.message and str(log) in warning.message and "No space left" in warning.message
    ballast.unlink()  # its name goes first, then its space
    (tmp_path / "room").touch()
    batch = collect(program)
    assert batch.status == 0
    assert not any(isinstance(event, WarningEvent) for event in batch.events)
    text = log.read_text()
    left_out = re.search(r"\[(\d+) bytes are missing here\]\n", text)
    assert left_out and text.endswith("there is room again\n")
    assert (
        text.count("z") + text[: left_out.start()].count("\n") - 1 + int(left_out[1]) == 5_000_000
    )


def test_a_relay_that_is_killed_is_replaced(tmp_path: Path) -> None:
    code = """
say(event="up")
print("before", flush=True)
while not os.path.exists("killed"): pass
print("after")
"""
    program = start(tmp_path, code)
    wait_for_event(program)
    log = tmp_path / "logs" / "host-0000.log"
    wait_until(lambda: log.read_bytes() == b"before\n", 30.0)
    (relay,) = relays_of(program)
    os.kill(relay, signal.SIGKILL)
    (tmp_path / "killed").touch()
    batch = collect(program)
    assert batch.status == 0
    assert log.read_bytes() == b"before\nafter\n"


def relays_of(program: HostProcess) -> list[int]:
    tree = descendants(program._reaped.pid)
    return [pid for pid in tree if str(RELAY).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


OWNER = """
import os, sys
from pathlib import Path
from launcher.host.process import HostProcess
code = '''
import os
number = 0
while True:
    number += 1
    os.write(1, b"line %d\\\\n" % number)
    if number % 100 == 0:
        open("printed", "w").write(str(number))
'''
folder = Path(sys.argv[1])
program = HostProcess([sys.executable, "-c", code], os.environ, folder / "log", folder, 0.5)
print(program._reaped.pid, flush=True)
while True:
    program.poll(1.0)
"""


@pytest.mark.parametrize("victim", ["owner", "reaper", "program"])
def test_output_is_in_log_after_any_process_is_killed(
    traces: Traces, tmp_path: Path, victim: str
) -> None:
    printed = tmp_path / "printed"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        env=traces.environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert owner.stdout
        reaper = int(owner.stdout.readline())
        wait_until(lambda: printed.exists() and int(printed.read_text() or 0) > 1000, 60.0)
        commands = {pid: traces.processes()[pid] for pid in descendants(reaper)}
        program = next(pid for pid, command in commands.items() if "number" in command)
        os.kill({"owner": owner.pid, "reaper": reaper, "program": program}[victim], signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in commands), 30.0)
    finally:
        owner.kill()
        owner.communicate()
    lines = whole(tmp_path / "log").split(b"\n")
    assert lines == [b"line %d" % number for number in range(1, len(lines))] + [b""]
    assert len(lines) > int(printed.read_text() or 0)
    traces.assert_nothing_left()
