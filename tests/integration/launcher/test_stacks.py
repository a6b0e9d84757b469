"""What a stuck program does, read out of the stacks that it or py-spy printed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.health.stacks import innermost
from tests.support.processes import wait_until

STUCK = """\
import faulthandler, queue, signal, threading
faulthandler.register(signal.SIGUSR1, all_threads=True)
threading.Thread(target=threading.Event().wait, name="heartbeat", daemon=True).start()

def next_batch(batches):
    return batches.get()

def main():
    print("ready", flush=True)
    next_batch(queue.Queue())

main()
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Of a program that waits for ever in a library and was asked where."""
    script, path = tmp_path / "reader.py", tmp_path / "host-0000.log"
    script.write_text(STUCK)
    with path.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, str(script)], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "ready" in path.read_text())
        program.send_signal(signal.SIGUSR1)
        wait_until(lambda: "in <module>\n" in path.read_text())
        yield path
    finally:
        program.kill()
        program.wait()


def test_innermost_frames_of_own_code_are_shown(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = innermost(log.read_text())
    # The wait itself may not have begun when the signal came.
    own = [frame for frame in frames if frame.startswith("reader.py:")]
    assert frames == own
    assert frames[-1] == "reader.py:12 in <module>"
    assert innermost(log.read_text(), count=1) == frames[:1]


def test_files_from_elsewhere_have_their_whole_path(log: Path, tmp_path: Path) -> None:
    assert innermost(log.read_text())[-1] == f"{tmp_path}/reader.py:12 in <module>"


LIBRARY = "/usr/lib/python3.11/site-packages"
TRAINER = f"""\
step 3/100  loss 5.1
Thread 0x00007f132a35d6c0 [heartbeat] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f132afbeb80 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "{LIBRARY}/grain/_src/python/dataset/transformations/prefetch.py", line 300 in __next__
  File "{LIBRARY}/trainer/data/loader.py", line 41 in training
W1121 of another thread, in between
  File "{LIBRARY}/trainer/loop.py", line 78 in _next
  File "{LIBRARY}/trainer/loop.py", line 49 in run
  File "{LIBRARY}/trainer/__main__.py", line 97 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
PY_SPY = f"""\
Process 16814: /usr/bin/python3 -m trainer job.yaml
Python v3.11.7 (/usr/bin/python3.11)

Thread 16856 (active+gil): "heartbeat"
    Event.wait (/usr/lib/python3.11/threading.py:629)
Thread 16814 (idle): "MainThread"
    Queue.get (/usr/lib/python3.11/queue.py:171)
    PrefetchIterator.__next__ ({LIBRARY}/grain/_src/prefetch.py:300)
    BatchLoader.training ({LIBRARY}/trainer/data/loader.py:41)
    Loop._next ({LIBRARY}/trainer/loop.py:78)
Process 16900: /usr/bin/python3 worker.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 16900 (idle): "MainThread"
    serve (/home/me/worker.py:3)
"""


def test_the_trainer_is_no_library_wherever_it_is_installed() -> None:
    assert innermost(TRAINER) == [
        "trainer/data/loader.py:41 in training",
        "trainer/loop.py:78 in _next",
        "trainer/loop.py:49 in run",
    ]


def test_of_several_processes_in_a_dump_the_first_one_counts() -> None:
    assert innermost(PY_SPY, count=2) == [
        "trainer/data/loader.py:41 in BatchLoader.training",
        "trainer/loop.py:78 in Loop._next",
    ]


def test_a_program_that_is_all_libraries_has_frames_too() -> None:
    text = f"""\
Thread 0x00007f132afbeb80 (most recent call first):
  File "{LIBRARY}/tool/wait.py", line 5 in wait
  File "{LIBRARY}/tool/__main__.py", line 9 in <module>
"""
    assert innermost(text) == ["tool/wait.py:5 in wait", "tool/__main__.py:9 in <module>"]


@pytest.mark.parametrize(
    "text", ["", "hello\n", "Thread 1 (idle)", "Thread 0x00 (most recent call first):"]
)
def test_log_without_stacks_gives_nothing(text: str) -> None:
    assert innermost(text) == []
