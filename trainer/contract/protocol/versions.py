"""Versions and code hashes that must be equal on all hosts. Imports none of the packages."""

import functools
import hashlib
import platform
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

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

    The hash includes the sources of a model's `module`: its file, or its whole top-level package.
    """
    files = _under(Path(__file__).parents[2])
    if module:
        files |= _sources(module)
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _under(package: Path) -> dict[str, Path]:
    """Returns the sources of a package by names that do not depend on its location."""
    return {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*.py")}


def _sources(module: str) -> dict[str, Path]:
    """Returns the source files of a module without importing it; empty when it is not found."""
    first, *rest = module.split(".")
    found = find_spec(first)
    if not found:
        return {}
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    if found.has_location and folders:
        return _under(folders[0])
    if found.has_location:
        return {module: Path(str(found.origin))}
    # A folder without __init__.py can hold anything: hash only the module's file.
    files = [folder.joinpath(*rest).with_suffix(".py") for folder in folders]
    return {path.name: path for path in files if path.is_file()}
