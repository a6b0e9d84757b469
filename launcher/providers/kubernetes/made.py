"""What a run has made in Kubernetes, as its folder remembers it, and how it is given back."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from launcher.providers.errors import ProviderError
from launcher.providers.kubernetes.api import Api
from launcher.providers.kubernetes.errors import RefusedError, UnreachableError
from launcher.providers.note import Note

ENDING_TIMEOUT_S, UNREACHABLE_TIMEOUT_S = 120.0, 30.0
"""A pod that is told to end has 30 s for it, by default."""
LOOK_S = 0.5


class Made(Note):
    """A RayCluster and a Secret of one name; noted before they are made."""

    FILE: ClassVar = "kubernetes.json"
    REMEDY: ClassVar = (
        "A RayCluster and a Secret of the run may still be there: find them with `kubectl get "
        "rayclusters --all-namespaces -l app.kubernetes.io/managed-by=slipway`, delete both, then "
        "remove the file"
    )

    name: str
    namespace: str
    context: str | None


def give_back(folder: Path, on_status: Callable[[str], None] = lambda text: None) -> bool:
    """Delete what a run has in Kubernetes and wait until it is gone; False: it had nothing.

    Raises ProviderError where that cannot be; the run's folder then still knows of it.
    """
    made = Made.read(folder)
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
    (folder / Made.FILE).unlink(missing_ok=True)
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
