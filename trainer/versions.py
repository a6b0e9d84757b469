"""What must be equal on all hosts before they compute together. Imports none of it."""

import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy", "tokenizers")


@functools.cache
def versions() -> dict[str, str]:
    """Python's and the packages' versions, as installed."""
    return {
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
    }


def code_sha256() -> str:
    """Hash over the names and texts of this package's sources."""
    root = Path(__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
