"""Requests to a Kubernetes API server through its Python client, which is imported lazily."""

import json
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from launcher.cluster.kubernetes import Kubernetes
from launcher.core.errors import MissingClientError, UnreachableError
from launcher.providers.kubernetes.errors import (
    CONNECTION_REMEDY,
    NoKubeconfigError,
    is_unknown_kind,
    refusal,
)
from launcher.providers.kubernetes.manifest import GROUP, PLURAL, VERSION

TIMEOUT_S = 30.0
AS_IT_CAME: dict[str, Any] = {"_request_timeout": TIMEOUT_S, "_preload_content": False}
"""Request options; responses stay raw: the client's models reject other server versions."""
Object = dict[str, Any]


class Api:
    """Client of one namespace. Methods raise HostError with request, server and answer."""

    def __init__(self, namespace: str, context: str | None) -> None:
        """Uses the user's kubeconfig or, inside a pod, its service account."""
        try:
            client = import_module("kubernetes.client")
        except ImportError:
            raise MissingClientError(
                "the Python client of Kubernetes is not installed. Run "
                "`uv run --extra kubernetes launch ...`"
            ) from None
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # hides its retry warnings
        self.namespace = namespace
        own = _client(context)
        self.where = f"{own.configuration.host}, namespace {namespace}"
        self._custom = client.CustomObjectsApi(own)
        self._core = client.CoreV1Api(own)

    def create_secret(self, secret: Object) -> None:
        self._request(
            f"create Secret {_name(secret)}",
            lambda: self._core.create_namespaced_secret(self.namespace, secret, **AS_IT_CAME),
        )

    def create_ray_cluster(self, cluster: Object) -> Object:
        """Creates a RayCluster and returns it as the server has stored it."""
        return (
            self._request(
                f"create RayCluster {_name(cluster)}",
                lambda: self._custom.create_namespaced_custom_object(
                    *self._ray_clusters, cluster, field_validation="Strict", **AS_IT_CAME
                ),
            )
            or {}
        )

    def ray_cluster(self, name: str) -> Object | None:
        """Returns the RayCluster of a name. Returns None when there is none."""
        return self._request(
            f"read RayCluster {name}",
            lambda: self._custom.get_namespaced_custom_object(
                *self._ray_clusters, name, **AS_IT_CAME
            ),
            may_be_gone=True,
        )

    def pods(self, name: str) -> list[Object]:
        """Returns the pods of the RayCluster of that name."""
        found = self._request(
            f"list the pods of RayCluster {name}",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=f"ray.io/cluster={name}", **AS_IT_CAME
            ),
            may_be_gone=True,  # when the namespace is gone
        )
        return (found or {}).get("items", [])

    def delete(self, name: str) -> None:
        """Deletes the RayCluster, its pods first, and the Secret of a name, if they exist."""
        self._request(
            f"delete RayCluster {name}",
            lambda: self._custom.delete_namespaced_custom_object(
                *self._ray_clusters, name, propagation_policy="Foreground", **AS_IT_CAME
            ),
            may_be_gone=True,
        )
        self._request(
            f"delete Secret {name}",
            lambda: self._core.delete_namespaced_secret(name, self.namespace, **AS_IT_CAME),
            may_be_gone=True,
        )

    @property
    def _ray_clusters(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.namespace, PLURAL

    def _request(
        self, what: str, call: Callable[[], Any], *, may_be_gone: bool = False
    ) -> Object | None:
        """Returns the answer. Returns None when the object is missing and `may_be_gone`."""
        refused = import_module("kubernetes.client").ApiException
        no_answer = import_module("urllib3.exceptions").HTTPError
        try:
            return json.loads(call().data)
        except refused as error:
            status, body = int(error.status or 0), str(error.body)
            if may_be_gone and status == 404 and not is_unknown_kind(body):
                return None
            raise refusal(status, body, what, self.where) from None
        except no_answer as error:
            raise UnreachableError(
                f"{self.where}: {what}: no answer ({_last(error)}); {CONNECTION_REMEDY}"
            ) from None


def api_of(settings: Kubernetes) -> Api:
    """Returns a client. Raises HostError when its library or a known cluster is missing."""
    return Api(settings.namespace, settings.context)


def _client(context: str | None) -> Any:
    client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
    try:
        return config.new_client_from_config(context=context)
    except (config.ConfigException, OSError) as error:
        outside = error
    try:
        if context is not None:
            raise config.ConfigException("a context was named")
        own = client.Configuration()
        config.load_incluster_config(client_configuration=own)
        return client.ApiClient(own)
    except config.ConfigException:
        named = f"context {context}" if context else "the current context"
        raise NoKubeconfigError(
            f"no Kubernetes cluster is configured ({named} of the kubeconfig: {outside}). Set "
            "KUBECONFIG to its file, create it (on GKE: gcloud container clusters "
            "get-credentials), or set provider.context"
        ) from None


def _name(given: Object) -> str:
    return given["metadata"]["name"]


def _last(error: Exception) -> str:
    """Returns the cause, without the Python object that urllib3 puts before it."""
    return str(getattr(error, "reason", None) or error).rpartition("): ")[2]
