"""Notices that Google Cloud sends a machine before it terminates it. Standard library only.

Its metadata server sends them, see cloud.google.com/compute/docs,
metadata/getting-live-migration-notice and instances/spot. On machines of other providers, no
server is queried.
"""

import os
import queue
import threading
import time
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

SERVER, SERVER_VARIABLE = "metadata.google.internal", "GCE_METADATA_HOST"
PRODUCT, GOOGLES = Path("/sys/class/dmi/id/product_name"), "Google Compute Engine"
TERMINATIONS = {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE", "preempted": "TRUE"}
"""Metadata keys of the machine, and the value of each that announces its termination."""
WAIT_S, ANSWER_TIMEOUT_S, RETRY_S = 60, 90.0, 10.0


class Notices:
    """Reports each notice once, when it arrives, but not one from before construction."""

    def __init__(self) -> None:
        self._come: queue.SimpleQueue[str] = queue.SimpleQueue()
        if server := _server():
            for key in TERMINATIONS:
                listen = threading.Thread(target=self._listen, args=[server, key], daemon=True)
                listen.start()

    def take(self) -> list[str]:
        """Returns the notices since the last call, as Google's "key: value"."""
        return [self._come.get() for _ in range(self._come.qsize())]

    def _listen(self, server: str, key: str) -> None:
        before, etag = None, None
        while True:
            try:
                value, etag = _value(server, key, etag)
            except (OSError, HTTPException):
                time.sleep(RETRY_S)
                continue
            if before not in (None, value) and value == TERMINATIONS[key]:
                self._come.put(f"{key}: {value}")
            before = value


def _server() -> str:
    """Returns the address of the metadata server, or "" when there is none."""
    if named := os.environ.get(SERVER_VARIABLE):
        return named
    is_googles = PRODUCT.is_file() and PRODUCT.read_text().strip().startswith(GOOGLES)
    return SERVER if is_googles else ""


def _value(server: str, key: str, etag: str | None) -> tuple[str, str]:
    """Returns a key's value and tag once the tag differs from `etag`, or after WAIT_S."""
    wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={etag}" if etag else ""
    url = f"http://{server}/computeMetadata/v1/instance/{key}{wait}"
    opener = build_opener(ProxyHandler({}))
    request = Request(url, headers={"Metadata-Flavor": "Google"})
    with opener.open(request, timeout=ANSWER_TIMEOUT_S) as answer:
        return answer.read().decode().strip(), answer.headers["ETag"]
