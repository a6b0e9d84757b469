"""Clones of the last commit, in which code may be changed and tested."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("fork_server.py")
PYTEST = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line"]
# The server has imported modules that pytest would rewrite.
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


@dataclass(frozen=True)
class Clone:
    folder: Path
    server: "subprocess.Popen[str]"

    def read(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="utf-8")

    def run_tests(
        self, file: str, code: str, tests: Sequence[str], timeout_s: float
    ) -> tuple[int, str]:
        """Returns the exit code and the output of tests of a file that has other code meanwhile."""
        path, original = self.folder / file, self.read(file)
        output = self.folder.with_name("output.txt")
        output.write_bytes(b"")
        request = {"arguments": [*PYTEST, *tests], "timeout_s": timeout_s, "output": str(output)}
        assert self.server.stdin and self.server.stdout
        try:
            path.write_text(code, encoding="utf-8")
            print(json.dumps(request), file=self.server.stdin, flush=True)
            return int(self.server.stdout.readline()), output.read_text(errors="replace")
        finally:
            path.write_text(original, encoding="utf-8")


@contextmanager
def cloned(modules: Sequence[str] = ()) -> Iterator[Clone]:
    """Yields a clone, which is removed afterwards; its tests need not import `modules` again."""
    with TemporaryDirectory(prefix="mutation-") as temporary:
        folder = Path(temporary, "clone")
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
        with subprocess.Popen(
            [sys.executable, str(SERVER), *modules],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            yield Clone(folder, server)
