"""What is retried, and for how long."""

import errno
import logging
from types import SimpleNamespace

import pytest

from trainer.contract.storage import retries
from trainer.contract.storage.retries import StorageError, is_memory, is_transient, reason, retried

STALE = OSError(errno.ESTALE, "Stale file handle", "corpus/a.txt")


class AnswerError(Exception):
    """An answer as gcsfs and google-api-core (`code`), aiohttp (`status`) or requests have it."""

    def __init__(self, **attributes):
        super().__init__("the server answered")
        vars(self).update(attributes)


class NetworkError(OSError):
    """An error as requests has it: a subclass of OSError without a number."""


ConnectionLost = type("ConnectionError", (NetworkError,), {"__module__": "requests.exceptions"})


def caused_by(cause: Exception, outer: Exception) -> Exception:
    try:
        raise outer from cause
    except Exception as error:
        return error


class Clock:
    """Only sleeping advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    return clock


@pytest.mark.parametrize(
    "error",
    [
        STALE,
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOLCK, "No locks available"),
        TimeoutError("late"),
        ConnectionResetError(),
        AnswerError(code=503),
        AnswerError(code="429"),
        AnswerError(status=500),
        AnswerError(response=SimpleNamespace(status_code=408)),
        AnswerError(retryable=True),
        ConnectionLost("aborted"),
        ValueError("ABORTED: Error reading: Stale file handle [os_error_code='116']"),
        ValueError("UNKNOWN: Failed to open: Input/output error [os_error_code='5']"),
        caused_by(STALE, ValueError("data.path: corpus/a.txt cannot be read")),
    ],
    ids=repr,
)
def test_trouble_that_passes_is_transient(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Forbidden: bucket/object"),
        AnswerError(code=403),
        AnswerError(code=404),
        AnswerError(status=None),
        ValueError("DATA_LOSS: CRC-32C checksum verification failed"),
        ValueError("NOT_FOUND: Error reading"),
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes"),
        caused_by(STALE, StorageError("given up")),
    ],
    ids=repr,
)
def test_what_stays_as_it_is_is_not_transient(error):
    assert not is_transient(error)


def test_the_memory_of_a_device_is_memory():
    assert is_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes"))
    assert not is_memory(ValueError("RESOURCE_EXHAUSTED: Too many open files"))


def test_the_reason_is_that_of_the_storage():
    error = caused_by(STALE, ValueError("outer"))
    assert reason(error) == "[Errno 116] Stale file handle: 'corpus/a.txt'"


def test_a_call_is_retried_until_it_succeeds_and_each_retry_is_logged(caplog):
    outcomes = [STALE, ConnectionResetError("reset"), 7]

    def call():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with caplog.at_level(logging.WARNING, "slipway.storage"):
        assert retried("corpus/a.txt", call) == 7
    first, second = caplog.messages
    assert first.startswith("corpus/a.txt: [Errno 116] Stale file handle: 'corpus/a.txt'; retrying")
    assert "reset; retrying in" in second


def test_trouble_that_outlives_the_patience_is_a_storage_error(clock):
    tries = []

    def call():
        tries.append(clock.now)
        raise STALE

    with pytest.raises(StorageError, match=r"Stale file handle.*did not recover in") as raised:
        retried("corpus/a.txt", call)
    assert 5 < len(tries) < 30
    assert retries.PATIENCE_S / 2 < tries[-1] <= retries.PATIENCE_S
    assert raised.value.__cause__ is STALE


def test_an_error_that_does_not_pass_is_raised_at_once():
    tries = []

    def call():
        tries.append(1)
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        retried("corpus", call)
    assert len(tries) == 1
