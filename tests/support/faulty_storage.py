"""Storage that fails or is slow, on command: a library that a host's programs preload."""

import errno
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class FaultyStorage:
    """Affects the files whose paths contain `below`. It begins healthy."""

    def __init__(self, folder: Path, below: str) -> None:
        """Compiles the library into `folder`. Raises RuntimeError where there is no compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("faulty storage needs a C compiler: install gcc")
        self._library, self._switch = folder / "faulty_storage.so", folder / "faulty_storage"
        command = [compiler, "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"]
        subprocess.run(command, check=True)
        self.environment = {
            "LD_PRELOAD": str(self._library),
            "FAULTY_STORAGE_BELOW": below,
            "FAULTY_STORAGE_SWITCH": str(self._switch),
        }

    def fail(self, number: int = errno.ESTALE) -> None:
        """From now on opening a file for reading fails with this error."""
        self._set(f"error {number}")

    def slow_down(self, seconds: float) -> None:
        """From now on opening a file for writing takes so much longer."""
        self._set(f"slow {seconds}")

    def recover(self) -> None:
        """From now on storage is healthy and fast."""
        self._switch.unlink(missing_ok=True)

    def _set(self, line: str) -> None:
        temporary = self._switch.with_suffix(".new")
        temporary.write_text(line)
        temporary.replace(self._switch)
