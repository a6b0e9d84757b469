"""A stand-in for a Kubernetes API server: its REST API over HTTP, with the objects in memory.

As much of it as a launch asks for: Secrets and RayClusters created, read and deleted, pods listed
by label; Status objects for what is refused (401, 403, 404, 409, 422). kuberay.py plays the rest.
"""

import json
import re
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes.crd import problems

Object = dict[str, Any]
PATH = re.compile(r"/(?:api/v1|apis/ray\.io/v1)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?")
KINDS = {"secrets": "Secret", "rayclusters": "RayCluster", "pods": "Pod"}
VERBS = {"POST": "create", "GET": "get", "DELETE": "delete"}


class RefusedError(Exception):
    """An answer that is a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, name: str = "") -> None:
        super().__init__(message)
        details = {"name": name} if name else {}
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message, "details": details, "metadata": {},
        }  # fmt: skip


class Cluster:
    """The objects of the one namespace that there is, and what the server refuses."""

    def __init__(self, namespace: str = "jobs") -> None:
        self.namespace = namespace
        self.token = secrets.token_hex(16)
        """Of the one user that it knows."""
        self.objects: dict[tuple[str, str], Object] = {}
        """(plural, name) -> object."""
        self.secrets_seen: list[str] = []
        """What Secrets have ever held."""
        self.forbidden: set[tuple[str, str]] = set()
        """(verb, plural)."""
        self.quota = ""
        """Why nothing more may be created; "": it may."""
        self.has_kuberay = True
        self.on_created: Callable[[Object], None] = lambda cluster: None
        self.on_deleted: Callable[[str], None] = lambda name: None
        """Of RayClusters; the second one ends with the object."""
        self.lock = threading.RLock()

    def names(self) -> list[str]:
        """Of all that is there."""
        with self.lock:
            return sorted(f"{plural}/{name}" for plural, name in self.objects)

    def of(self, plural: str) -> list[Object]:
        with self.lock:
            return [found for (kind, _), found in self.objects.items() if kind == plural]

    def create(self, plural: str, given: Object) -> Object:
        name = given.get("metadata", {}).get("name", "")
        if self.quota:
            raise RefusedError(403, "Forbidden", f'{plural} "{name}" is forbidden: {self.quota}')
        if plural == "rayclusters" and (wrong := problems(given)):
            raise RefusedError(422, "Invalid", f"{name} is invalid: {'; '.join(wrong)}", name)
        with self.lock:
            if (plural, name) in self.objects:
                message = f'{plural} "{name}" already exists'
                raise RefusedError(409, "AlreadyExists", message, name)
            given["metadata"] |= {"namespace": self.namespace, "uid": secrets.token_hex(8)}
            self.objects[plural, name] = given
        if plural == "secrets":
            self.secrets_seen += given["stringData"].values()
        if plural == "rayclusters":
            self.on_created(given)
        return given

    def get(self, plural: str, name: str) -> Object:
        with self.lock:
            if (plural, name) not in self.objects:
                raise RefusedError(404, "NotFound", f'{plural} "{name}" not found', name)
            return self.objects[plural, name]

    def delete(self, plural: str, name: str) -> Object:
        found = self.get(plural, name)
        if plural != "rayclusters":
            self.forget(plural, name)
        elif "deletionTimestamp" not in found["metadata"]:
            found["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
            threading.Thread(target=self._end, args=[name]).start()
        return found

    def forget(self, plural: str, name: str) -> None:
        """Also what it owns, as the garbage collector does."""
        with self.lock:
            gone = self.objects.pop((plural, name), None)
            for kind, other in list(self.objects):
                owners = self.objects[kind, other]["metadata"].get("ownerReferences", [])
                if gone and gone["metadata"]["uid"] in [owner["uid"] for owner in owners]:
                    del self.objects[kind, other]

    def _end(self, name: str) -> None:
        """Its dependents first: what is asked for with the policy "Foreground"."""
        self.on_deleted(name)
        self.forget("rayclusters", name)


class Handler(BaseHTTPRequestHandler):
    """One connection; the cluster is the server's."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """One packet an answer."""
    cluster: Cluster

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # a client that was ended
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            code, answer = 200, json.dumps(self._do(body))
        except RefusedError as error:
            code, answer = error.code, json.dumps(error.status)
        except LookupError:
            code, answer = 404, "404 page not found\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def _do(self, body: bytes) -> Object:
        """Raises RefusedError, LookupError: there is no such resource."""
        cluster, url = self.cluster, urlsplit(self.path)
        if self.headers.get("Authorization") != f"Bearer {cluster.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        found = PATH.fullmatch(url.path)
        if found is None or (found[2] == "rayclusters" and not cluster.has_kuberay):
            raise LookupError(url.path)
        namespace, plural, name = found.groups()
        verb = "list" if self.command == "GET" and not name else VERBS[self.command]
        if (verb, plural) in cluster.forbidden:
            message = f'{plural} is forbidden: User "eve" cannot {verb} resource "{plural}"'
            raise RefusedError(403, "Forbidden", f'{message} in the namespace "{namespace}"')
        if namespace != cluster.namespace:
            message = f'namespaces "{namespace}" not found'
            raise RefusedError(404, "NotFound", message, namespace)
        if verb == "create":
            return cluster.create(plural, json.loads(body))
        if verb == "list":
            return self._list(plural, parse_qs(url.query).get("labelSelector", [""])[0])
        return cluster.get(plural, name) if verb == "get" else cluster.delete(plural, name)

    def _list(self, plural: str, selector: str) -> Object:
        key, _, value = selector.partition("=")
        with self.cluster.lock:
            items = json.loads(json.dumps(self.cluster.of(plural)))
        items = [one for one in items if one["metadata"]["labels"].get(key) == value]
        return {"apiVersion": "v1", "kind": f"{KINDS[plural]}List", "items": items, "metadata": {}}


def serve(cluster: Cluster) -> ThreadingHTTPServer:
    """On a free port, until it is shut down."""
    handler = type("BoundHandler", (Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def kubeconfig(folder: Path, port: int, token: str) -> Path:
    """A file that leads its user there."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "test",
            }
        )
    )
    return path
