"""The Jobs API as this machine speaks to it: to its address alone, and with answers that are lost.

Runs on a real cluster: tests/e2e/ray_jobs.
"""

import gc
import http.server
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.schema import Attach, Cluster, ClusterRef, find_cluster
from launcher.core.errors import HostError, UnconfirmedError
from launcher.core.exit_codes import NO_CLUSTER
from launcher.executors import ray_jobs
from launcher.executors.options import LaunchOptions
from launcher.executors.registry import executor_for
from launcher.executors.remote_run import locate
from launcher.planning.command import CommandLaunch
from launcher.providers.ray.code_bundle import Code
from launcher.providers.ray.host_protocol import RunOrder
from launcher.providers.ray_jobs import run_handle as jobs
from launcher.providers.ray_jobs.client import JobsApi
from launcher.providers.ray_jobs.entrypoint import BEGINS
from launcher.providers.ray_jobs.order import MAX_BYTES, JobOrder, unpack
from launcher.providers.ray_jobs.run_handle import RayJob
from launcher.runs import registry
from launcher.runs.folder import RunFolderError
from tests.support.exits import exit_code
from tests.support.launch_plans import command_launch
from trainer.contract.config.loader import ConfigError, load

TOKEN = "s3cret-cluster-token"
Answer = Callable[["Server"], tuple[int, object] | None]


class Server(http.server.BaseHTTPRequestHandler):
    """Notes each request, and answers it as `Head.answer` says."""

    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        head: Head = self.server.head  # type: ignore[attr-defined]
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        head.seen.append((self.command, self.path, self.headers.get("Authorization")))
        answer = head.answer(self)
        if answer is None:
            self.close_connection = True
            return
        code, value = answer
        content = json.dumps(value).encode()
        self.send_response(code)
        for name, text in head.headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_CONNECT = _serve  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


class Head:
    """Accepts every job under its submission id, once, as Ray does."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        self.headers: dict[str, str] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.lost_answers = 0
        """So many submissions are accepted without an answer."""
        self.unheard = 0
        """So many requests come to nothing, and get no answer."""
        self.address = ""

    def answer(self, request: Server) -> tuple[int, object] | None:
        if self.unheard:
            self.unheard -= 1
            return None
        if request.command == "POST" and request.path == "/api/jobs/":
            return self._submit(json.loads(request.body))
        name = request.path.rpartition("/")[2]
        if request.path.startswith("/api/jobs/"):
            known = name in self.jobs
            return (200, {"status": "RUNNING"}) if known else (404, f"Job {name} does not exist")
        return 200, {"ray_version": "2.60.0"}

    def _submit(self, job: dict[str, Any]) -> tuple[int, object] | None:
        name = job["submission_id"]
        if name in self.jobs:
            return 400, f"ValueError: Job with submission_id {name} already exists. Please use"
        self.jobs[name] = job
        if self.lost_answers:
            self.lost_answers -= 1
            return None
        return 200, {"submission_id": name}


@contextmanager
def serving() -> Iterator[Head]:
    head = Head()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.head = head  # type: ignore[attr-defined]
    head.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield head
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Head]:
    for name in ("RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(jobs, "POLL_INTERVAL_S", 0.01)
    with serving() as head:
        yield head


def api(head: Head) -> JobsApi:
    return JobsApi(Attach(kind="attach", address=head.address))


def ray_job(head: Head, folder: Path) -> RayJob:
    """A run that is about to be submitted, and its folder."""
    folder.mkdir()
    (folder / "job.yaml").write_text("name: small\n")
    settings = Attach(kind="attach", address=head.address)
    code = Code(root=folder, below=Path(), archive=b"")
    return RayJob.of(folder, settings, code, ClusterRef(name="local"))


def work(job: str = "name: small\n") -> RunOrder:
    return RunOrder(
        find_cluster("local").value, "cluster", job=job, runs="runs", name="small", run_id="1"
    )


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"])
def test_a_proxy_of_the_environment_never_sees_the_token(
    name: str, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as proxy:
        monkeypatch.setenv(name, proxy.address)
        assert api(head).version() == "2.60.0"
    assert proxy.seen == []
    assert head.seen == [("GET", "/api/version", f"Bearer {TOKEN}")]


def test_a_redirect_is_refused_and_its_target_never_sees_the_token(head: Head) -> None:
    with serving() as other:
        head.answer = lambda request: (302, "elsewhere")
        head.headers["Location"] = f"{other.address}/api/version"
        with pytest.raises(HostError, match="answers /api/version with 302"):
            api(head).version()
    assert other.seen == []


@pytest.mark.filterwarnings("ignore:.*socket:pytest.PytestUnraisableExceptionWarning")
def test_a_proxy_of_the_cluster_file_gets_a_tunnel_and_no_token(head: Head) -> None:
    settings = Attach(kind="attach", address="https://ray.example:8265", proxy=head.address)
    head.answer = lambda request: (403, "no")
    with pytest.raises(HostError):
        JobsApi(settings).version()
    assert head.seen == [("CONNECT", "ray.example:8265", None)]
    gc.collect()  # Python 3.11.2 leaves the refused connection to its collector, which warns.


@pytest.mark.parametrize(
    "address", ["http://ray.example:8265", "https://localhost:8265", "https://127.0.0.2:8265"]
)
def test_a_proxy_for_an_address_that_it_could_read_is_refused(address: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    provider = f'{{kind: attach, address: "{address}", proxy: "http://proxy:3128"}}'
    path.write_text(f"accelerator: cpu\nhosts: 1\ndevices_per_host: 1\nprovider: {provider}\n")
    with pytest.raises(ConfigError, match=r"provider\.proxy: a proxy is only allowed"):
        load(path, Cluster)


def test_a_job_whose_answer_is_lost_is_accepted_once_and_followed(
    head: Head, tmp_path: Path
) -> None:
    run = ray_job(head, tmp_path / "small")
    head.lost_answers = 1
    run.begin(work(), tmp_path / "small")
    assert list(head.jobs) == [run.submission_id]
    noted = RayJob.read(tmp_path / "small")
    assert noted is not None
    assert noted.is_accepted


def test_a_submission_that_got_lost_is_repeated_under_the_same_id(
    head: Head, tmp_path: Path
) -> None:
    run = ray_job(head, tmp_path / "small")
    head.unheard = 3
    run.begin(work(), tmp_path / "small")
    assert list(head.jobs) == [run.submission_id]


def test_the_record_is_written_before_the_cluster_is_asked(head: Head, tmp_path: Path) -> None:
    run, seen = ray_job(head, tmp_path / "small"), []

    def answer(request: Server) -> tuple[int, object]:
        seen.append(RayJob.read(tmp_path / "small"))
        return 200, {}

    head.answer = answer
    run.begin(work(), tmp_path / "small")
    assert [noted.submission_id for noted in seen if noted] == [run.submission_id]


def test_a_job_without_any_answer_stays_recorded_and_is_found_later(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "small"
    run = ray_job(head, folder)
    monkeypatch.setattr(jobs, "LOST_S", 0.1)
    head.lost_answers, accepts = 1, head.answer

    def answer(request: Server) -> tuple[int, object] | None:
        return accepts(request) if request.command == "POST" and not head.jobs else None

    head.answer = answer
    with pytest.raises(UnconfirmedError, match=f"may have accepted the job {run.submission_id}"):
        run.begin(work(), folder)
    head.answer = accepts
    there = locate(folder)
    assert isinstance(there, RayJob)
    assert there.submission_id == run.submission_id


@pytest.fixture
def launch(head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLaunch:
    """A launch on the head, whose code is an empty file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_jobs, "pack", lambda folder: Code(folder, Path(), b""))
    provider = f'{{kind: attach, address: "{head.address}"}}'
    text = f"accelerator: cpu\nhosts: 1\ndevices_per_host: 1\nprovider: {provider}\n"
    (tmp_path / "cluster.yaml").write_text(text)
    return command_launch(tmp_path, cluster=str(tmp_path / "cluster.yaml"))


def test_a_new_run_that_may_have_been_accepted_keeps_its_folder(
    head: Head,
    launch: CommandLaunch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jobs, "LOST_S", 0.1)
    head.answer = lambda request: None if "/api/jobs/" in request.path else (200, {})
    executor, options = executor_for(launch.cluster, simulated=False), LaunchOptions(detach=True)
    assert exit_code(lambda: executor.submit(launch, options)) == NO_CLUSTER
    assert "may have accepted the job slipway-any-" in (said := capsys.readouterr().err)
    assert "The run is not lost: launch status any" in said
    noted = RayJob.read(launch.run_dir)
    assert noted is not None
    assert registry.registered() == [launch.run_dir]


def test_a_new_run_that_the_head_did_not_start_leaves_no_folder(
    head: Head, launch: CommandLaunch, capsys: pytest.CaptureFixture[str]
) -> None:
    accepts = head.answer

    def answer(request: Server) -> tuple[int, object] | None:
        if request.path.endswith("/logs"):
            return 200, {"logs": f"{BEGINS}\nno response from 10.0.0.1:6379\n"}
        if request.command == "GET" and "/api/jobs/" in request.path:
            return 200, {"status": "FAILED", "driver_exit_code": NO_CLUSTER}
        return accepts(request)

    head.answer = answer
    executor = executor_for(launch.cluster, simulated=False)
    assert exit_code(lambda: executor.submit(launch, LaunchOptions())) == NO_CLUSTER
    printed = capsys.readouterr()
    assert "no response from 10.0.0.1:6379" in printed.out
    assert "any was not started: see the reason above" in printed.err
    assert not launch.run_dir.exists()


def test_a_job_that_the_cluster_never_got_is_forgotten_once_it_says_so(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "small"
    run = ray_job(head, folder)
    monkeypatch.setattr(jobs, "LOST_S", 0.1)
    head.unheard = 1 << 30
    with pytest.raises(UnconfirmedError):
        run.begin(work(), folder)
    head.unheard = 0
    with pytest.raises(RunFolderError, match=r"has not accepted the job .* --fresh"):
        locate(folder)
    assert RayJob.read(folder) is None
    assert (folder / "job.yaml").exists()


def test_a_refused_job_leaves_no_record(head: Head, tmp_path: Path) -> None:
    run = ray_job(head, tmp_path / "small")

    def answer(request: Server) -> tuple[int, object]:
        return (500, "no room") if request.command == "POST" else (404, "unknown")

    head.answer = answer
    with pytest.raises(HostError, match=r"500 Internal Server Error: .*no room"):
        run.begin(work(), tmp_path / "small")
    assert RayJob.read(tmp_path / "small") is None


def test_a_gateway_that_gives_up_is_no_refusal(head: Head, tmp_path: Path) -> None:
    run, accepts = ray_job(head, tmp_path / "small"), head.answer

    def answer(request: Server) -> tuple[int, object] | None:
        first = request.command == "POST" and not head.jobs
        accepted = accepts(request)
        return (504, "upstream timed out") if first else accepted

    head.answer = answer
    run.begin(work(), tmp_path / "small")
    assert list(head.jobs) == [run.submission_id]


def test_an_order_above_the_longest_argument_of_linux_is_one_short_word(
    head: Head, tmp_path: Path
) -> None:
    run, job = ray_job(head, tmp_path / "small"), "# a long comment\n" * 20_000
    assert len(job) > 128 << 10
    run.begin(work(job), tmp_path / "small")
    entrypoint = head.jobs[run.submission_id]["entrypoint"]
    assert len(entrypoint) < 128 << 10
    order = unpack(entrypoint.split()[-1])
    assert isinstance(order, JobOrder)
    assert order.run.job == job
    assert order.provider.address == "auto"


def test_a_too_large_order_is_refused_before_the_cluster_is_asked(
    head: Head, tmp_path: Path
) -> None:
    run, job = ray_job(head, tmp_path / "small"), f"# {secrets.token_hex(MAX_BYTES)}\n"
    with pytest.raises(HostError, match=r"too large .* at most 96 KiB. Shorten the job"):
        run.begin(work(job), tmp_path / "small")
    assert not head.jobs


def test_answer_without_a_needed_field_is_reported(head: Head) -> None:
    head.answer = lambda request: (200, {"message": "well"})
    with pytest.raises(HostError, match=r"/api/jobs/one has no field `status`. Check that"):
        api(head).job("one")
