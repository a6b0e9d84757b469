"""Errors of requests to Kubernetes, each with a remedy."""

import json
from typing import Any

from launcher.core.errors import HostError, RefusedError

CONNECTION_REMEDY = "check with `kubectl cluster-info` that the cluster is up"


class NoKubeconfigError(HostError):
    """No configuration names a Kubernetes cluster and credentials."""


class ForbiddenError(RefusedError):
    """The API server rejects the credentials, or the user lacks a permission."""


class QuotaError(RefusedError):
    """The request exceeds a quota."""


class NoKubeRayError(RefusedError):
    """The cluster has no RayCluster resource."""


class PodsError(HostError):
    """The pods of a RayCluster did not come up."""


def refusal(status: int, body: str, asked: str, where: str) -> HostError:
    """Returns the exception for an error response with an HTTP status and a body."""
    message = _message(body) or f"HTTP {status}"
    what = f"{where}: {asked}: {message}"
    if status == 401:
        return ForbiddenError(
            f"{what} (401). Log in to the cluster again, and try `kubectl auth whoami`"
        )
    if status == 403 and "exceeded quota" in message:
        return QuotaError(f"{what}. Free part of it, request more, or set another namespace")
    if status == 403:
        return ForbiddenError(
            f"{what}. Slipway creates, reads and deletes rayclusters.ray.io and secrets, and lists "
            "pods, in that namespace. Ask the cluster's administrator for a role that allows this"
        )
    if status == 404 and is_unknown_kind(body):
        return NoKubeRayError(
            f"{what}. This cluster has no RayCluster resource (ray.io/v1). Install the KubeRay "
            "operator, 1.1 or later"
        )
    return RefusedError(f"{what} ({status})")


def is_unknown_kind(body: str) -> bool:
    """Returns whether a 404 is about a kind of objects: it then names no object."""
    return not (_status(body).get("details") or {}).get("name")


def _message(body: str) -> str:
    return str(_status(body).get("message") or body).strip()


def _status(body: str) -> dict[str, Any]:
    """Returns the Status object in the body; empty when it has none."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
