"""`python -m launcher.providers.kubernetes.clean RUN_FOLDER`: gives back what a run has left.

A reaper calls it once the launch is gone, in whatever way it went. The API server may be away for a
while, so it tries again for hours; the run's folder has the log.
"""

import sys
import time
from pathlib import Path

from launcher.providers.kubernetes.made import give_back

LOG = "kubernetes.log"
"""In the logs of the run's folder."""
LONGEST_S, FIRST_WAIT_S, LONGEST_WAIT_S = 12 * 3600.0, 1.0, 60.0


def main(folder: Path) -> int:
    give_up_at, wait_s = time.monotonic() + LONGEST_S, FIRST_WAIT_S
    while True:
        try:
            if give_back(folder):
                _log(folder, "deleted what the run had left")
            return 0
        except Exception as error:  # whatever it is, the objects are still to be deleted
            if time.monotonic() > give_up_at:
                _log(folder, f"gave up: {type(error).__name__}: {error}")
                return 1
            _log(folder, f"tries again in {wait_s:.0f} s: {type(error).__name__}: {error}")
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _log(folder: Path, text: str) -> None:
    try:
        with (folder / "logs" / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{time.ctime()}: {text}\n")
    except OSError:
        pass  # a full disk does not keep the objects alive


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
