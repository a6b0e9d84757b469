"""A host that is told that it is about to be taken away."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launcher.host.preemption_notice import SERVER_VARIABLE
from tests.support import fault_matrix
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher

pytestmark = pytest.mark.faults
KEY = "/computeMetadata/v1/instance/maintenance-event"


class Metadata(ThreadingHTTPServer):
    """As Google's metadata server answers, waiting for changes too."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.said, self.has_changed, self.heard = "NONE", threading.Event(), threading.Event()

    def say(self, text: str) -> None:
        self.said = text
        self.has_changed.set()


class Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        path, _, waits = self.path.partition("?")
        if path != KEY or self.headers["Metadata-Flavor"] != "Google":
            self.send_error(404)
            return
        if "wait_for_change=true" in waits and f"last_etag={self.server.said}" in waits:
            self.server.heard.set()
            self.server.has_changed.wait(30.0)
        self.send_response(200)
        self.send_header("ETag", self.server.said)
        self.end_headers()
        self.wfile.write(self.server.said.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    with Metadata() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(SERVER_VARIABLE, f"127.0.0.1:{server.server_port}")
        yield server
        server.has_changed.set()
        server.shutdown()


def test_all_save_at_once_and_go_on_from_there(
    launch: Launcher, metadata: Metadata, traces: Traces
) -> None:
    (launch.folder / "job.yaml").write_text(fault_matrix.JOB)
    words = ["steps=400", "checkpoint.every_steps=100000"]
    run = launch.on(launch.cluster_file("cluster"), "warned", words)
    run.wait_for_event("step", step=2)
    assert metadata.heard.wait(60.0)
    metadata.say("TERMINATE_ON_HOST_MAINTENANCE")
    assert run.wait() == 0, run.output
    assert "is about to be taken away: maintenance-event: TERMINATE_ON_HOST" in run.output
    (ended,) = fault_matrix.ends(run)
    assert ended["end_reason"] == "preempted"
    restored = {event["step"] for event in run.events() if event["event"] == "restored"}
    assert restored == {ended["step"]}
    assert [line[0] for line in fault_matrix.curve_of(run)] == list(range(1, 401))
    traces.assert_nothing_left()
