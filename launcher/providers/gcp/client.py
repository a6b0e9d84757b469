"""Calls to the Cloud TPU API through Google's own client, with a remedy for each error."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.core.errors import HostError, MissingClientError, RefusedError
from launcher.providers.gcp.request import CREATED_BY, OF_CLUSTER, Where

if TYPE_CHECKING:
    from google.cloud import tpu_v2

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0
DELETION_TIMEOUT_S = 600.0
POLL_INTERVAL_S = 2.0
REMEDIES = {
    "ResourceExhausted": "check the quota for this TPU type in this zone (IAM & Admin > Quotas), "
    "or request another zone, fewer chips, or spot: true",
    "PermissionDenied": "enable the Cloud TPU API in this project (gcloud services enable "
    "tpu.googleapis.com), and give your account the right to create TPUs (roles/tpu.admin)",
    "Unauthenticated": "log in with `gcloud auth application-default login`",
    "InvalidArgument": "check that this zone has this accelerator and runtime version: `gcloud "
    "compute tpus accelerator-types list --zone ZONE`",
    "NotFound": "check the names of the project, zone, network and reservation",
    "ServiceUnavailable": "check that this machine can reach the API",
    "DeadlineExceeded": "check that this machine can reach the API",
}
LOST_NODE = ("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING", "HIDDEN", "HIDING")
OVER = ("FAILED", "SUSPENDED", "SUSPENDING", "DELETING")
"""States of a queued resource that no longer yields slices."""


NOTHING_MADE = ("ResourceExhausted", "PermissionDenied", "Unauthenticated", "Unauthorized",
                "Forbidden", "InvalidArgument", "NotFound", "FailedPrecondition")  # fmt: skip
"""Errors of a create request after which the resource certainly does not exist."""


class Api:
    """The Cloud TPU API in one project and zone."""

    def __init__(self, where: Where) -> None:
        """Raises HostError when the client is not installed or has no credentials."""
        self._where = where
        self._client = _client(where)

    def create(self, resource_id: str, resource: "tpu_v2.QueuedResource", what: str) -> None:
        """Requests the resource without waiting for its slices; `what` names it in errors.

        Raises RefusedError when the API refused it, HostError when the result is unknown.
        """
        request = {
            "parent": self._where.parent,
            "queued_resource_id": resource_id,
            "queued_resource": resource,
        }
        operation = self._call(what, self._client.create_queued_resource, request)
        try:
            operation.result(timeout=CALL_TIMEOUT_S)
        except Exception as error:
            raise HostError(str(self._explained(what, error))) from None

    def labelled(self, cluster_label: str) -> list[str]:
        """Returns the names of the queued resources with Slipway's label and this one.

        Raises HostError when the API cannot be queried.
        """
        what = f"the slices in {self._where}"
        request = {"parent": self._where.parent}
        try:
            found = list(self._called(self._client.list_queued_resources, request))
        except Exception as error:
            raise self._explained(what, error) from None
        return [
            resource.name.rpartition("/")[2]
            for resource in found
            if any(_is_of(spec.node.labels, cluster_label) for spec in resource.tpu.node_spec)
        ]

    def state(self, resource_id: str) -> tuple[str, str]:
        """Returns a queued resource's state and, if it failed, the reason; "GONE" if it is gone.

        Raises HostError when the API cannot be queried.
        """
        what = f"the state of {resource_id}"
        found = self._unless_gone(what, self._client.get_queued_resource, self._name(resource_id))
        if found is None:
            return "GONE", ""
        return found.state.state.name, found.state.failed_data.error.message

    def node(self, node_id: str) -> "tpu_v2.Node | None":
        """Returns a slice, None when it does not exist. Raises HostError on API errors."""
        name = f"{self._where.parent}/nodes/{node_id}"
        return self._unless_gone(f"slice {node_id}", self._client.get_node, name)

    def delete(self, resource_id: str) -> bool:
        """Deletes a queued resource with its slices and waits until it is gone.

        Returns False when it did not exist. Raises HostError when it still exists after ten
        minutes.
        """
        deadline = time.monotonic() + DELETION_TIMEOUT_S
        what, is_seen = f"the deletion of {resource_id}", False
        while (state := self.state(resource_id)[0]) != "GONE":
            is_seen = True
            if time.monotonic() > deadline:
                raise HostError(
                    f"{what}: it still exists ({state}) after {DELETION_TIMEOUT_S:.0f} s"
                )
            if state != "DELETING":
                request = {"name": self._name(resource_id), "force": True}
                self._unless_gone(what, self._client.delete_queued_resource, request)
            time.sleep(POLL_INTERVAL_S)
        return is_seen

    def _name(self, resource_id: str) -> str:
        return f"{self._where.parent}/queuedResources/{resource_id}"

    def _unless_gone(self, what: str, call: Callable[..., T], request: object) -> T | None:
        from google.api_core.exceptions import NotFound

        try:
            return self._called(call, request)
        except NotFound:
            return None
        except Exception as error:
            raise self._explained(what, error) from None

    def _call(self, what: str, call: Callable[..., T], request: object) -> T:
        try:
            return self._called(call, request)
        except Exception as error:
            raise self._explained(what, error) from None

    def _called(self, call: Callable[..., T], request: object) -> T:
        arguments = {"name": request} if isinstance(request, str) else {"request": request}
        return call(**arguments, timeout=CALL_TIMEOUT_S)

    def _explained(self, what: str, error: Exception) -> Exception:
        """Returns an error with the request, the answer and a remedy; other errors unchanged."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError

        if isinstance(error, GoogleAuthError):
            return RefusedError(
                f"Cloud TPU, {what}: no credentials: {error}\n  {REMEDIES['Unauthenticated']}"
            )
        if not isinstance(error, GoogleAPICallError | RetryError):
            return error
        kind = type(error).__name__
        message = getattr(error, "message", "") or str(error)
        remedy = REMEDIES.get(kind, "see the message")
        refused = RefusedError if kind in NOTHING_MADE else HostError
        return refused(f"Cloud TPU, {what}: {kind}: {message}\n  {remedy}")


def _is_of(labels: Mapping[str, str], cluster_label: str) -> bool:
    return labels.get(CREATED_BY) == "slipway" and labels.get(OF_CLUSTER) == cluster_label


def _client(where: Where) -> Any:
    try:
        from google.api_core.client_options import ClientOptions
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import tpu_v2
    except ImportError:
        raise MissingClientError(
            "provider gcp needs Google's client: uv run --extra gcp launch ..., or "
            "pip install google-cloud-tpu"
        ) from None
    if endpoint := where.endpoint:
        import grpc
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        channel = grpc.insecure_channel(endpoint)
        return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    try:
        return tpu_v2.TpuClient(client_options=ClientOptions(quota_project_id=where.project))
    except GoogleAuthError as error:
        raise HostError(
            f"Cloud TPU, {where}: no credentials: {error}\n  {REMEDIES['Unauthenticated']}"
        ) from None
