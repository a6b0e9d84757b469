"""Deletes what a run has made in Kubernetes.

`python -m launcher.providers.kubernetes.cleanup RUN_FOLDER` is what a reaper calls once the launch
is gone, in whatever way it went. The API server may be away for a while, so it tries again for
hours; the run's folder has the log.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.core.errors import ProviderError
from launcher.providers.kubernetes.client import Api
from launcher.providers.kubernetes.errors import RefusedError, UnreachableError
from launcher.runs.records import KubernetesRecord

ENDING_TIMEOUT_S, UNREACHABLE_TIMEOUT_S = 120.0, 30.0
"""A pod that is told to end has 30 s for it, by default."""
LOOK_S = 0.5


def release(folder: Path, on_status: Callable[[str], None] = lambda text: None) -> bool:
    """Delete what a run has in Kubernetes and wait until it is gone; False: it had nothing.

    Raises ProviderError where that cannot be; the run's folder then still knows of it.
    """
    made = KubernetesRecord.read(folder)
    if made is None:
        return False
    on_status(f"deleting RayCluster {made.name}")
    api = Api(made.namespace, made.context)
    began = time.monotonic()
    while not _is_gone(api, made.name, began + UNREACHABLE_TIMEOUT_S):
        if time.monotonic() > began + ENDING_TIMEOUT_S:
            raise RefusedError(
                f"{api.where}: RayCluster {made.name} is still there {ENDING_TIMEOUT_S:.0f} s "
                f"after it was deleted. See `kubectl -n {made.namespace} describe raycluster "
                f"{made.name}`; `launch stop {folder}` tries again"
            )
        time.sleep(LOOK_S)
    (folder / KubernetesRecord.FILE).unlink(missing_ok=True)
    return True


def _is_gone(api: Api, name: str, give_up_at: float) -> bool:
    """Deletes it; a server that is out of reach is asked again, for a while."""
    try:
        api.delete(name)
        return api.ray_cluster(name) is None and not api.pods(name)
    except UnreachableError as error:
        if time.monotonic() > give_up_at:
            raise ProviderError(
                f"{error}. RayCluster and Secret {name} may still be there"
            ) from None
        return False


LOG = "kubernetes.log"
"""In the logs of the run's folder."""
LONGEST_S, FIRST_WAIT_S, LONGEST_WAIT_S = 12 * 3600.0, 1.0, 60.0


def main(folder: Path) -> int:
    give_up_at, wait_s = time.monotonic() + LONGEST_S, FIRST_WAIT_S
    while True:
        try:
            if release(folder):
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
