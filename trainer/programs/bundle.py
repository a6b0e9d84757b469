"""Compiled programs of one process in one file, with all that they depend on.

A SHA-256 of the rest, the length of the header (8 bytes, little-endian), the header as JSON, and
the programs one after the other.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.storage import durable_files

FORMAT = 1
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 8
AS_JSON = ("job", "plan")
"""What a bundle is made from that is a JSON object."""
LONG = 60
"""Values of more characters are described, not shown."""


class BundleError(ValueError):
    """A file is no bundle of this version, or is damaged; the message gives the reason."""


@dataclass(frozen=True)
class Bundle:
    """Programs by the names under which a ProgramStore has them."""

    made_from: Mapping[str, str]
    """What they depend on: see `keys.made_from`."""
    programs: Mapping[str, bytes]

    def write(self, path: Path) -> int:
        """Replaces a file; returns its bytes. Raises OSError."""
        sizes = {name: len(data) for name, data in self.programs.items()}
        header = json.dumps(
            {"format": FORMAT, "made_from": dict(self.made_from), "sizes": sizes}
        ).encode()
        rest = b"".join(
            (len(header).to_bytes(LENGTH_BYTES, "little"), header, *self.programs.values())
        )
        content = hashlib.sha256(rest).digest() + rest
        durable_files.replace(path, content, str(os.getpid()))
        return len(content)

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        """Reads a file, and checks it. Raises BundleError, and OSError for one that is missing."""
        content = path.read_bytes()
        digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(rest).digest() != digest:
            raise BundleError("it is damaged: its SHA-256 is another one")
        start = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "little")
        header = json.loads(rest[LENGTH_BYTES:start])
        if header["format"] != FORMAT:
            raise BundleError(f"it has format {header['format']}, but this version has {FORMAT}")
        programs = {}
        for name, size in header["sizes"].items():
            programs[name] = rest[start : start + size]
            start += size
        return cls(header["made_from"], programs)


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns what is different, such as `jaxlib 0.10.1, here 0.10.2`."""
    return [
        _difference(name, then.get(name, "none"), now.get(name, "none"))
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]


def _difference(name: str, then: str, now: str) -> str:
    if max(len(then), len(now)) <= LONG:
        return f"{name} {then}, here {now}"
    if name in AS_JSON:
        keys = sorted(_differing(json.loads(then), json.loads(now)))
        return f"{name}: other {', '.join(keys)}"
    words = sorted({*then.split()} ^ {*now.split()})
    shown = " ".join(words)
    return f"{name}: on one side only {shown}" if len(shown) <= LONG else f"another {name}"


def _differing(then: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yields the keys of either object whose values differ."""
    return (key for key in {**then, **now} if then.get(key) != now.get(key))
