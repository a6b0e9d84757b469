"""Runs `python -m trainer.ahead` beside the training, one process after the other."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from trainer.ahead.shrinking import smaller_plans, work_of
from trainer.contract.planning.plan import Plan
from trainer.programs.store import limit_bytes


class AheadOfTime:
    """Compiles on this host what the run needs on fewer hosts, in processes of idle priority.

    A context manager: at its end, a process that still compiles is ended.
    """

    def __init__(self, run_dir: Path, plan: Plan, process: int) -> None:
        """`process` is the number of this process."""
        self._run_dir, self._plan, self._process = run_dir, plan, process
        self._thread: threading.Thread | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> None:
        """Starts to compile, at the first call and if the run may shrink."""
        if self._thread is not None or not self._plan.world.on_cpu or not limit_bytes():
            return
        world = self._plan.world
        work = work_of(self._process, world, smaller_plans(self._run_dir, world))
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            if self._running:
                self._running.kill()
        if self._thread:
            self._thread.join()

    def _run(self, work: Sequence[tuple[Path, int]]) -> None:
        for plan, process in work:
            started = self._started(plan, process)
            if started is None:
                return
            with started:
                assert started.stdout
                output = started.stdout.read()
            if not self._is_over:
                about = output.decode(errors="replace").strip().splitlines()[-1:]
                what = "cannot compile ahead" if started.returncode else "compiled ahead"
                print(": ".join([f"{what} for process {process} of {plan.stem}", *about]))
                sys.stdout.flush()

    def _started(self, plan: Path, process: int) -> subprocess.Popen[bytes] | None:
        """Starts one process, which ends with this one; returns None when the training is over."""
        job = self._run_dir / "job.yaml"
        command = [sys.executable, "-m", "trainer.ahead", str(job), str(plan), str(process)]
        with self._lock:
            if not self._is_over:
                self._running = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
                return self._running
        return None
