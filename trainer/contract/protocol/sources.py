"""Source files of a user's module and of what it imports, found without importing any of them."""

import ast
import functools
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages that a package manager has installed: their version identifies them."""


def under(package: Path) -> dict[str, Path]:
    """Returns the sources of a package by names that do not depend on its location."""
    return {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*.py")}


def of_module(module: str) -> tuple[dict[str, Path], dict[str, str]]:
    """Returns the source files of a module by name, and the versions of packages that it imports.

    The files are its own or those of its whole top-level package, and the same for every module
    that these import with a statement, wherever they do, unless a package manager has installed it.
    Both are empty for a module that is not found.
    """
    files: dict[str, Path] = {}
    versions: dict[str, str] = {}
    waiting, seen = [module], {module}
    while waiting:
        name = waiting.pop()
        spec = _spec(name.partition(".")[0])
        if spec is None:
            continue
        if _is_installed(spec):
            versions |= _versions(spec.name)
            continue
        new = {key: path for key, path in _files(name, spec).items() if key not in files}
        files |= new
        for key, path in new.items():
            found = set(_imports(path, _package(name, key, path))) - seen
            seen |= found
            waiting += sorted(found)
    return files, versions


def _spec(top: str) -> ModuleSpec | None:
    """Returns where a top-level module is; None for one of Python's own or one that is missing."""
    if not top or top in sys.stdlib_module_names:
        return None
    with suppress(ImportError, ValueError):
        return find_spec(top)
    return None


def _is_installed(spec: ModuleSpec) -> bool:
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(part in INSTALLED for place in places for part in Path(place).parts)


def _files(module: str, spec: ModuleSpec) -> dict[str, Path]:
    _, *rest = module.split(".")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if spec.has_location and folders:
        return under(folders[0])
    if spec.has_location:
        return {spec.name: Path(str(spec.origin))} if str(spec.origin).endswith(".py") else {}
    # A folder without __init__.py can hold anything: take only the module's file.
    files = [folder.joinpath(*rest).with_suffix(".py") for folder in folders]
    return {f"{module}.py": path for path in files if path.is_file()}


def _package(module: str, key: str, path: Path) -> str:
    """Returns the name of the package that relative imports of a source file begin at."""
    if "/" in key:
        return ".".join(Path(key).parent.parts)
    return module.rpartition(".")[0]


def _imports(path: Path, package: str) -> Iterator[str]:
    """Yields the names of modules that a file may import, and of what it takes from them."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(filter(None, [*(above if node.level else ()), node.module]))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.cache
def _versions(top: str) -> dict[str, str]:
    """Returns the versions of the distributions that have a top-level module."""
    with suppress(metadata.PackageNotFoundError):
        return {top: metadata.version(top)}
    names = metadata.packages_distributions().get(top, [])
    return {name: metadata.version(name) for name in names}
