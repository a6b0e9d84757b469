"""Why Kubernetes does not give what it was asked for, with what to do about it."""

import json
from typing import Any

from launcher.core.errors import ProviderError

CONNECTION_REMEDY = "is the cluster up, and is it the one of this context (kubectl cluster-info)?"


class MissingClientError(ProviderError):
    """The library that speaks to Kubernetes is not installed."""


class NoKubeconfigError(ProviderError):
    """Nothing says where a Kubernetes cluster is, or who asks."""


class UnreachableError(ProviderError):
    """Its API server does not answer."""


class ForbiddenError(ProviderError):
    """It does not know who asks, or that one may not."""


class QuotaError(ProviderError):
    """There is no room for it."""


class NoKubeRayError(ProviderError):
    """It does not know RayClusters."""


class RefusedError(ProviderError):
    """It does not take the request."""


class PodsError(ProviderError):
    """The pods of a RayCluster did not come up."""


def refusal(status: int, body: str, asked: str, where: str) -> ProviderError:
    """Of an answer that is an error: its HTTP status, and what it says."""
    said = _message(body) or f"HTTP {status}"
    told = f"{where}: {asked}: {said}"
    if status == 401:
        return ForbiddenError(
            f"{told} (401). Log in to the cluster again, and try `kubectl auth whoami`"
        )
    if status == 403 and "exceeded quota" in said:
        return QuotaError(f"{told}. Free some of it, ask for more, or name another namespace")
    if status == 403:
        return ForbiddenError(
            f"{told}. Slipway creates, reads and deletes rayclusters.ray.io and secrets, and lists "
            "pods, in that namespace: ask who administers the cluster for a role with that"
        )
    if status == 404 and is_unknown_kind(body):
        return NoKubeRayError(
            f"{told}. This cluster has no RayCluster resource (ray.io/v1): install the KubeRay "
            "operator, 1.1 or later"
        )
    return RefusedError(f"{told} ({status})")


def is_unknown_kind(body: str) -> bool:
    """Whether a 404 is not about an object, but about a kind of objects: it then names none."""
    return not (_status(body).get("details") or {}).get("name")


def _message(body: str) -> str:
    return str(_status(body).get("message") or body).strip()


def _status(body: str) -> dict[str, Any]:
    """A Status object, where the body is one."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
