"""What must be equal on all hosts before they compute together. Imports none of it."""

import functools
import hashlib
import platform
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy", "tokenizers")
PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""Of hosts with such devices."""


@functools.cache
def versions() -> dict[str, str]:
    """Python's and the packages' versions, as installed."""
    packages = {package: metadata.version(package) for package in PACKAGES}
    for plugin in PLUGINS:
        with suppress(metadata.PackageNotFoundError):
            packages[plugin] = metadata.version(plugin)
    return {"python": platform.python_version(), **packages}


def code_sha256(module: str = "") -> str:
    """Hash over the names and texts of this package's sources, and of those of a model's `module`:
    its file, or all of the package that it is in.
    """
    files = _under(Path(__file__).parents[1])
    if module:
        files |= _sources(module)
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _under(package: Path) -> dict[str, Path]:
    """Its sources, by names that are the same wherever it lies."""
    return {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*.py")}


def _sources(module: str) -> dict[str, Path]:
    """What it would be imported from, which is nothing where it is not; imports nothing."""
    first, *rest = module.split(".")
    found = find_spec(first)
    if not found:
        return {}
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    if found.has_location and folders:
        return _under(folders[0])
    if found.has_location:
        return {module: Path(str(found.origin))}
    # A folder without __init__.py can hold anything.
    files = [folder.joinpath(*rest).with_suffix(".py") for folder in folders]
    return {path.name: path for path in files if path.is_file()}
