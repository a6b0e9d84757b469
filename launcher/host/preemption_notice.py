"""What Google Cloud tells a machine before it takes it away. Standard library only.

By its metadata server, see cloud.google.com/compute/docs, metadata/getting-live-migration-notice
and instances/spot. On machines of others nothing is asked of anybody.
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
SAYS = {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE", "preempted": "TRUE"}
"""Keys of the machine, and the value from which on it is about to go."""
WAIT_S, ANSWER_TIMEOUT_S, AGAIN_S = 60, 90.0, 10.0


class Notices:
    """Each once, when it comes: one that stood there before is not told of."""

    def __init__(self) -> None:
        self._come: queue.SimpleQueue[str] = queue.SimpleQueue()
        if server := _server():
            for key in SAYS:
                listen = threading.Thread(target=self._listen, args=[server, key], daemon=True)
                listen.start()

    def take(self) -> list[str]:
        """Those that have come since, in Google's words."""
        return [self._come.get() for _ in range(self._come.qsize())]

    def _listen(self, server: str, key: str) -> None:
        before, etag = None, None
        while True:
            try:
                value, etag = _value(server, key, etag)
            except (OSError, HTTPException):
                time.sleep(AGAIN_S)
                continue
            if before not in (None, value) and value == SAYS[key]:
                self._come.put(f"{key}: {value}")
            before = value


def _server() -> str:
    """ "": there is none."""
    if named := os.environ.get(SERVER_VARIABLE):
        return named
    is_googles = PRODUCT.is_file() and PRODUCT.read_text().strip().startswith(GOOGLES)
    return SERVER if is_googles else ""


def _value(server: str, key: str, etag: str | None) -> tuple[str, str]:
    """A key's value and its tag, once that is another one; after a while it may be the same."""
    wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={etag}" if etag else ""
    url = f"http://{server}/computeMetadata/v1/instance/{key}{wait}"
    opener = build_opener(ProxyHandler({}))
    request = Request(url, headers={"Metadata-Flavor": "Google"})
    with opener.open(request, timeout=ANSWER_TIMEOUT_S) as answer:
        return answer.read().decode().strip(), answer.headers["ETag"]
