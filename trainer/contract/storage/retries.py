"""Recognizes transient storage errors, and retries a call for about a minute.

Pure Python: the launcher uses it too. The logger `slipway.storage` logs each retry.
"""

import errno
import logging
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
log = logging.getLogger("slipway.storage")

ERRNOS = frozenset(
    {
        errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET,
        errno.ECONNREFUSED, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETUNREACH,
        errno.EHOSTDOWN, errno.ENETDOWN, errno.ENETRESET, errno.EREMOTEIO, errno.ECOMM,
        errno.EPIPE, errno.ESHUTDOWN, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EMFILE,
        errno.ENFILE, errno.ENOLCK, errno.ENOBUFS, socket.EAI_AGAIN,
    }
)  # fmt: skip
STATUSES = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP statuses, which gcsfs and google-api-core store in `code`, and aiohttp in `status`.

A client may repeat a request after 408 (RFC 9110), 425 (RFC 8470) and 429 (RFC 6585); from 500 on,
the server has failed.
"""
NAMES = frozenset(
    {
        # requests
        "ConnectionError", "Timeout", "ChunkedEncodingError", "ContentDecodingError",
        # aiohttp
        "ClientConnectionError", "ClientPayloadError",
        # google.auth
        "TransportError",
        # gcsfs
        "ChecksumError",
    }
)  # fmt: skip
"""Class names of network exceptions without an error number."""
STORES = frozenset({"requests", "aiohttp", "google", "gcsfs", "urllib3"})
"""Packages that define those classes."""
TEXTS = re.compile(
    r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|RESOURCE_EXHAUSTED)\b|"
    + "|".join(re.escape(os.strerror(number)) for number in sorted(ERRNOS) if number > 0),
)
"""Texts of tensorstore's errors, which have no number."""
MEMORY = re.compile(r"out of memory|failed to allocate|bad_alloc|allocat\w+ \d+ bytes", re.I)


class StorageError(Exception):
    """Raised when storage does not recover within the retries; the next attempt may succeed."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception and its chain of causes, the innermost last."""
    seen = set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def is_memory(error: BaseException) -> bool:
    """Returns whether a host or a device has run out of memory."""
    return any(isinstance(one, MemoryError) or MEMORY.search(str(one)) for one in chain(error))


def is_transient(error: BaseException) -> bool:
    """Returns whether the same call can succeed later without any change."""
    if is_memory(error) or any(isinstance(one, StorageError) for one in chain(error)):
        return False
    return any(map(_can_pass, chain(error)))


def reason(error: BaseException) -> str:
    """Returns the innermost transient exception, or else the innermost one, as one line."""
    *_, last = chain(error)
    shown = next((one for one in reversed([*chain(error)]) if _can_pass(one)), last)
    return " ".join(str(shown).split()) or type(shown).__name__


class Patience:
    """Waits between the retries of one operation, up to PATIENCE_S after its first failure."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tries, self._began = 0, 0.0

    def renew(self) -> None:
        """Resets the count of tries, because the operation makes progress again."""
        self._tries = 0

    def wait(self, error: Exception) -> None:
        """Logs a warning and waits before the next try.

        Raises `error` when it is not transient, and StorageError when it lasts too long.
        """
        if not is_transient(error):
            raise error
        if not self._tries:
            self._began = time.monotonic()
        self._tries += 1
        pause_s = pause(self._tries)
        waited_s = time.monotonic() - self._began
        if waited_s + pause_s > PATIENCE_S:
            raise StorageError(
                f"{self._what}: {reason(error)}. The storage did not recover in {waited_s:.0f} s "
                f"({self._tries} tries)"
            ) from error
        log_retry(self._what, error, pause_s)
        time.sleep(pause_s)


def retried(what: str, call: Callable[[], T]) -> T:
    """Returns the result of `call`. Retries transient errors with exponential backoff and jitter.

    Raises StorageError when they last longer than PATIENCE_S, and all other errors immediately.
    """
    patience = Patience(what)
    while True:
        try:
            return call()
        except Exception as error:
            patience.wait(error)


def pause(tries: int) -> float:
    """Returns the seconds to wait after `tries` failed tries."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (tries - 1)) * random.uniform(0.75, 1.25)


def log_retry(what: str, error: BaseException, pause_s: float) -> None:
    """Logs one warning for each retry."""
    log.warning("%s: %s; retrying in %.1f s", what, reason(error), pause_s)


def _can_pass(error: BaseException) -> bool:
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in ERRNOS
    if _status(error) in STATUSES or getattr(error, "retryable", False) is True:
        return True
    if any(
        one.__name__ in NAMES and one.__module__.partition(".")[0] in STORES
        for one in type(error).__mro__
    ):
        return True
    return isinstance(error, (ValueError, RuntimeError)) and TEXTS.search(str(error)) is not None


def _status(error: BaseException) -> int | None:
    """Returns the status code of an HTTP error, or None without one."""
    response = getattr(error, "response", None)
    for found in (getattr(error, "code", None), getattr(error, "status", None), response):
        number = getattr(found, "status_code", found)
        if isinstance(number, (int, str)) and str(number).isdecimal():
            return int(number)
    return None
