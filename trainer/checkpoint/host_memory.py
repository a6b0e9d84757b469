"""What the C library keeps of memory that was freed."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's malloc.h."""
SMALL_BYTES, LARGE_BYTES = 2**20, 32 * 2**20


@contextmanager
def given_back() -> Iterator[None]:
    """Inside, blocks of 1 MiB and more go back to the system as soon as they are freed.

    glibc keeps those of up to 32 MiB for the next ones, which after many reads by many threads is
    as much as what was read. That is what it does outside, too: steps need the same blocks again.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(MMAP_THRESHOLD, SMALL_BYTES)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)
