"""Versions and code hashes that must be equal on all hosts. Imports none of the packages."""

import functools
import hashlib
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from trainer.contract.protocol import sources

PACKAGES = ("jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy", "tokenizers")
PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""Packages of device plugins, installed only on hosts with those devices."""


@functools.cache
def versions() -> dict[str, str]:
    """Returns the installed versions of Python and the packages."""
    packages = {package: metadata.version(package) for package in PACKAGES}
    for plugin in PLUGINS:
        with suppress(metadata.PackageNotFoundError):
            packages[plugin] = metadata.version(plugin)
    return {"python": platform.python_version(), **packages}


def code_sha256(module: str = "") -> str:
    """Returns a hash over the names and contents of this package's sources.

    With a model's `module`, the hash includes the module's sources and those that it imports, and
    the versions of the packages that it imports: see `sources.of_module`. Packages that `versions`
    has are left out, so that another version of JAX is no other code.
    """
    files = sources.under(Path(__file__).parents[2])
    total = hashlib.sha256()
    if module:
        of_module, packages = sources.of_module(module)
        files |= of_module
        others = {name: one for name, one in packages.items() if name not in (*PACKAGES, *PLUGINS)}
        total.update(str(sorted(others.items())).encode())
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
