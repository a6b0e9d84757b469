"""A webhook server on this machine that answers, fails or hangs, as a test says."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request of which the whole body has arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None
    """Status of the answer; None when the server hung instead."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Webhooks:
    """The server, with everything that it has received."""

    url: str
    received: list[Received] = field(default_factory=list)
    status: int = 200
    """Status of the next answers."""
    hangs: bool = False
    """Whether requests get no answer while this holds."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def delivered(self) -> list[Received]:
        """Requests that were answered with success."""
        return [one for one in self.received if one.status == 200]

    def events(self) -> list[str]:
        """Events that were delivered as JSON, in order."""
        return [one.json["event"] for one in self.delivered]


@contextmanager
def webhook_server() -> Iterator[Webhooks]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = None if hooks.hangs else hooks.status
            hooks.received.append(Received(self.path, dict(self.headers), body, status))
            if status is None:
                hooks.ended.wait()
                return
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hooks = Webhooks(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hooks
    finally:
        hooks.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
