"""A stand-in for Google Cloud Storage: its JSON API over HTTP, with the objects in memory.

As much of it as tensorstore and gcsfs ask for: media and resumable uploads, ranged downloads,
listing by prefix, delimiter and offsets in pages, moves, batches of deletions; and the part that
makes two writers safe: every write gives an object a new generation, and `ifGenerationMatch` holds
a write to the generation that its writer has seen. It asks nobody who they are.
"""

import itertools
import json
import math
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NAME = "bucket"
PAGE = 5
"""Objects a page, far fewer than the thousand of the real one: paging is to be seen."""
OBJECT = re.compile(r"(?:/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(?:/(.*))?)?)?")
MOVE = re.compile(r"moveTo/o/([^/]+)")


class RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Bucket:
    """The objects of the one bucket that there is, as a test sees and spoils them."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Name -> content, generation."""
    status: int = 200
    """What every request is answered with instead, where it is not 200."""
    writes_left: float = math.inf
    """So many changes are allowed, and then no more."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    """Under way: what has come of each."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1_000_000))

    def names(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix))

    def put(self, name: str, content: bytes) -> dict[str, str]:
        with self.lock:
            self.objects[name] = (content, next(self.generations))
            return self.resource(name)

    def resource(self, name: str) -> dict[str, str]:
        content, generation = self.objects[name]
        return {
            "kind": "storage#object", "bucket": NAME, "name": name, "size": str(len(content)),
            "generation": str(generation), "metageneration": "1",
            "md5Hash": b64encode(md5(content).digest()).decode(),
            "timeCreated": "2030-01-01T00:00:00.000Z", "updated": "2030-01-01T00:00:00.000Z",
        }  # fmt: skip

    def check(self, name: str, query: dict[str, str]) -> None:
        """Raises RefusedError where the object has not the generation that the request is for."""
        generation = str(self.objects[name][1]) if name in self.objects else "0"
        if query.get("ifGenerationMatch", generation) != generation:
            raise RefusedError(412)
        if query.get("ifGenerationNotMatch") == generation:
            raise RefusedError(304)

    def list(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        start = max(query.get("startOffset", ""), query.get("pageToken", ""))
        end = query.get("endOffset")
        limit = min(int(query.get("maxResults", PAGE)), PAGE)
        items, prefixes, answer = [], [], {"kind": "storage#objects"}
        for name in self.names(prefix):
            if name < start or (end and name >= end):
                continue
            head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut and prefixes[-1:] == [prefix + head + cut]:
                continue
            if len(items) + len(prefixes) == limit:
                answer["nextPageToken"] = name
                break
            prefixes.append(prefix + head + cut) if cut else items.append(self.resource(name))
        return {**answer, "items": items, "prefixes": prefixes}


class Handler(BaseHTTPRequestHandler):
    """One connection; the bucket is the server's."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """One packet an answer."""
    bucket: Bucket

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # a client that has seen enough
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer_to(b"")

    def do_DELETE(self) -> None:
        self._answer_to(b"")

    def do_POST(self) -> None:
        self._answer_to(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer_to(self, body: bytes) -> None:
        headers, status = {"Content-Type": "application/json"}, 200
        try:
            with self.bucket.lock:
                if self.path.startswith("/batch/storage/v1"):
                    content, headers = self._batch(body.decode())
                else:
                    found = self._serve(self.command, self.path, body)
                    content = found[0] if isinstance(found, tuple) else json.dumps(found).encode()
                    if isinstance(found, tuple):
                        content, status, headers = found
        except RefusedError as refused:
            status = refused.status
            content = json.dumps({"error": {"code": status, "message": "refused"}}).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if status != 304:
            self.wfile.write(content)
        self.wfile.flush()

    def _serve(self, method: str, target: str, body: bytes) -> Any:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match = OBJECT.fullmatch(url.path)
        if self.bucket.status != 200 or match is None:
            raise RefusedError(self.bucket.status if match else 501)
        bucket, quoted, action = match.groups()
        if bucket != NAME:
            raise RefusedError(404)
        if method != "GET":
            if self.bucket.writes_left < 1:
                raise RefusedError(403)
            self.bucket.writes_left -= 1
        if method == "POST" and quoted is None:
            return self._upload(query, body)
        if quoted is None:
            return self.bucket.list(query) if url.path.endswith("/o") else {"name": NAME}
        return self._object(method, unquote(quoted), action, query)

    def _object(self, method: str, name: str, action: str | None, query: dict[str, str]) -> Any:
        if name not in self.bucket.objects:
            raise RefusedError(404)
        self.bucket.check(name, query)
        if method == "DELETE":
            del self.bucket.objects[name]
            return b"", 204, {}
        if method == "POST":
            return self._move(name, action or "")
        if query.get("alt") != "media":
            return self.bucket.resource(name)
        return self._download(name)

    def _upload(self, query: dict[str, str], body: bytes) -> Any:
        if query["uploadType"] == "resumable":
            return self._resumable(query, body)
        if query["uploadType"] != "media":
            raise RefusedError(501)
        self.bucket.check(query["name"], query)
        return self.bucket.put(query["name"], body)

    def _resumable(self, query: dict[str, str], body: bytes) -> Any:
        """The first request gets an address; each one after that brings a piece."""
        if "upload_id" not in query:
            number = str(next(self.bucket.generations))
            self.bucket.uploads[number] = b""
            address = f"http://{self.headers['Host']}{self.path}&upload_id={number}"
            return b"", 200, {"Location": address}
        content = self.bucket.uploads[query["upload_id"]] + body
        if self.headers["Content-Range"].endswith("/*"):
            self.bucket.uploads[query["upload_id"]] = content
            return b"", 308, {"Range": f"bytes=0-{len(content) - 1}"}
        del self.bucket.uploads[query["upload_id"]]
        self.bucket.check(query["name"], query)
        return self.bucket.put(query["name"], content)

    def _download(self, name: str) -> Any:
        content, generation = self.bucket.objects[name]
        headers = {"Content-Type": "text/plain", "X-Goog-Generation": str(generation)}
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not span:
            return content, 200, headers
        size, (first, last) = len(content), span.groups()
        start = int(first) if first else size - int(last)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= size:
            raise RefusedError(416)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return content[start:stop], 206, headers

    def _move(self, name: str, action: str) -> Any:
        match = MOVE.fullmatch(action)
        if not match:
            raise RefusedError(501)
        return self.bucket.put(unquote(match[1]), self.bucket.objects.pop(name)[0])

    def _batch(self, body: str) -> tuple[bytes, dict[str, str]]:
        """Deletions; each has a part of the answer."""
        parts = []
        for target in re.findall(r"^DELETE (\S+) HTTP", body, re.MULTILINE):
            try:
                self._serve("DELETE", target, b"")
                status = 204
            except RefusedError as refused:
                status = refused.status
            parts.append(f"--cut\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {status} -\r\n")
        content = "".join([*parts, "--cut--"]).encode()
        return content, {"Content-Type": "multipart/mixed; boundary=cut"}


def serve() -> tuple[Bucket, ThreadingHTTPServer]:
    """A bucket, and the server that answers for it, on a port of its own, until it is shut down."""
    bucket = Bucket()
    handler = type("BucketHandler", (Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="bucket", daemon=True).start()
    return bucket, server


def environment(server: ThreadingHTTPServer) -> dict[str, str]:
    """What makes tensorstore and gcsfs go there; to be set before they are first used."""
    address = f"http://127.0.0.1:{server.server_port}"
    return {
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody",
        "STORAGE_EMULATOR_HOST": address,
        "FSSPEC_GCS_TOKEN": "anon",
        # Zonal buckets speak gRPC.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
