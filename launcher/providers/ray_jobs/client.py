"""Ray's Jobs API over HTTP: docs.ray.io, "Ray Jobs REST API". Needs no Ray on this machine."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from launcher.cluster.attach import Attach
from launcher.core.errors import HostError, UnreachableError
from launcher.core.messages import from_wire, to_wire
from launcher.providers.ray.existing_cluster import ray_variables

TIMEOUT_S, UPLOAD_TIMEOUT_S = 30.0, 600.0
NOT_THERE = 404
BEFORE_IT = (502, 503, 504)
"""Statuses from a gateway or proxy that got no answer from the cluster in time."""
ANSWER_CHARACTERS = 400
KNOWN_ALREADY = "already exists"
"""Text in Ray's answer to a submission whose id it has accepted before."""
REFUSED = {
    401: "requires a token. Set provider.token_path to its file, or set RAY_AUTH_TOKEN_PATH or "
    "RAY_AUTH_TOKEN",
    403: "rejected the token. Use the token that its head was started with",
}


T = TypeVar("T")


@dataclass(frozen=True)
class RuntimeEnv:
    """The environment of a job's command."""

    working_dir: str
    env_vars: Mapping[str, str]


@dataclass(frozen=True)
class JobSubmission:
    """A job, as it is submitted."""

    submission_id: str
    """Its id, chosen by the submitter."""
    entrypoint: str
    """Its shell command."""
    runtime_env: RuntimeEnv


@dataclass(frozen=True)
class JobInfo:
    """The state of a job, as far as it is used."""

    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str | None = None
    """Ray's explanation of the status."""
    driver_exit_code: int | None = None
    """Exit code of the command, once it has ended by itself."""


@dataclass(frozen=True)
class _Log:
    logs: str


@dataclass(frozen=True)
class _Version:
    ray_version: str = ""


class JobsApi:
    """Client of one cluster. All methods raise HostError with the cluster's answer."""

    def __init__(self, settings: Attach) -> None:
        """Raises HostError when the token cannot be read."""
        self.address = settings.address.rstrip("/")
        variables = ray_variables(settings)
        path = variables.get("RAY_AUTH_TOKEN_PATH")
        token = Path(path).read_text().strip() if path else variables.get("RAY_AUTH_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Only this address may get the token: ignore proxies of the environment and redirects.
        proxies = ProxyHandler({"https": settings.proxy} if settings.proxy else {})
        self._opener = build_opener(proxies, _NoRedirects)

    def version(self) -> str:
        """Returns the version of the cluster's Ray; also checks that the cluster grants access."""
        return self._get(_Version, "/api/version").ray_version

    def has_package(self, name: str) -> bool:
        return self._ask("GET", f"/api/packages/gcs/{name}", may_lack=True) is not None

    def send_package(self, name: str, content: bytes) -> None:
        self._ask("PUT", f"/api/packages/gcs/{name}", content, UPLOAD_TIMEOUT_S)

    def submit(self, job: JobSubmission) -> None:
        """Submits a job under its own `submission_id`; a second submission has no effect."""
        try:
            self._ask("POST", "/api/jobs/", json.dumps(to_wire(job)).encode())
        except UnreachableError:
            raise
        except HostError as error:
            if KNOWN_ALREADY not in str(error):
                raise

    def job(self, name: str) -> JobInfo | None:
        """Returns the state of a job. Returns None when Ray no longer knows it."""
        path = f"/api/jobs/{name}"
        answer = self._ask("GET", path, may_lack=True)
        return None if answer is None else self._parse(JobInfo, path, answer)

    def log(self, name: str) -> str:
        """Returns everything that a job has printed."""
        return self._get(_Log, f"/api/jobs/{name}/logs").logs

    def stop(self, name: str) -> None:
        self._ask("POST", f"/api/jobs/{name}/stop")

    def _get(self, answer_type: type[T], path: str) -> T:
        return self._parse(answer_type, path, self._ask("GET", path))

    def _parse(self, answer_type: type[T], path: str, answer: Any) -> T:
        name = f"the answer of {self.address}{path}"
        remedy = "Check that its version of Ray is the one of the project's uv.lock"
        return from_wire(answer_type, answer, name, HostError, remedy)

    def _ask(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        may_lack: bool = False,
    ) -> Any:
        request = Request(self.address + path, content, self._headers, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                content = answer.read()
            return json.loads(content) if content else {}
        except HTTPError as error:
            if may_lack and error.code == NOT_THERE:
                return None
            kind = UnreachableError if error.code in BEFORE_IT else HostError
            raise kind(self._refused(error)) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise UnreachableError(
                f"no response from {self.address} ({why}). Check that it is the address of the "
                "cluster's dashboard (http://HEAD:8265), and that this machine can reach it"
            ) from None
        except ValueError:
            raise HostError(f"{self.address}{path} is not the Jobs API of Ray") from None

    def _refused(self, error: HTTPError) -> str:
        head = f"the Ray cluster at {self.address} "
        if error.code in REFUSED:
            return head + REFUSED[error.code]
        text = error.read().decode(errors="replace").strip()[-ANSWER_CHARACTERS:]
        return f"{head}answers {urlsplit(error.url).path} with {error.code} {error.reason}: {text}"


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None
