"""Deletes what a run has created in Kubernetes.

A reaper calls `python -m launcher.providers.kubernetes.cleanup RUN_FOLDER` after the launcher has
ended for any reason. The API server may be unreachable for a while, so it retries for hours. The
log is in the run's folder.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.core.errors import HostError, RefusedError, UnreachableError
from launcher.core.wait import wait_until
from launcher.providers.kubernetes.client import Api
from launcher.runs.records import KubernetesRecord

ENDING_TIMEOUT_S, UNREACHABLE_TIMEOUT_S = 120.0, 30.0
"""Seconds to wait for the deletion, and for the server. By default a pod has 30 s to end."""
POLL_INTERVAL_S = 0.5


def release(folder: Path, on_status: Callable[[str], None] = lambda text: None) -> bool:
    """Deletes a run's Kubernetes objects and waits until they are gone.

    Returns False when it had none. Raises HostError when that fails; the record in the run's
    folder is then kept.
    """
    made = KubernetesRecord.read(folder)
    if made is None:
        return False
    on_status(f"deleting RayCluster {made.name}")
    api = Api(made.namespace, made.context)
    give_up_at = time.monotonic() + UNREACHABLE_TIMEOUT_S
    if not wait_until(
        lambda: _is_gone(api, made.name, give_up_at),
        ENDING_TIMEOUT_S,
        poll_interval_s=POLL_INTERVAL_S,
    ):
        raise RefusedError(
            f"{api.where}: RayCluster {made.name} still exists {ENDING_TIMEOUT_S:.0f} s "
            f"after its deletion. See `kubectl -n {made.namespace} describe raycluster "
            f"{made.name}`; `launch stop {folder}` retries"
        )
    (folder / KubernetesRecord.FILE).unlink(missing_ok=True)
    return True


def _is_gone(api: Api, name: str, give_up_at: float) -> bool:
    """Deletes a RayCluster and its Secret; returns whether they are gone.

    Returns False while the server is unreachable. Raises HostError for that after `give_up_at`.
    """
    try:
        api.delete(name)
        return api.ray_cluster(name) is None and not api.pods(name)
    except UnreachableError as error:
        if time.monotonic() > give_up_at:
            raise HostError(f"{error}. RayCluster and Secret {name} may still exist") from None
        return False


LOG = "kubernetes.log"
"""File name in the logs of the run's folder."""
LONGEST_S, FIRST_WAIT_S, LONGEST_WAIT_S = 12 * 3600.0, 1.0, 60.0


def main(folder: Path) -> int:
    give_up_at, wait_s = time.monotonic() + LONGEST_S, FIRST_WAIT_S
    while True:
        try:
            if release(folder):
                _log(folder, "deleted what the run had left")
            return 0
        except Exception as error:  # after any error the objects must still be deleted
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
        pass  # a full disk must not prevent the deletion


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
