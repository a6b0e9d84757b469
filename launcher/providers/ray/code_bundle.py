"""The code of the folder that `launch` is run in, as identical bytes for every host."""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.formatting import format_bytes
from trainer.contract.config.loader import ConfigError

MOST_BYTES = 64 << 20
LARGEST_NAMED = 5
NEEDED = ("pyproject.toml", "uv.lock")
GIT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Code:
    """A project: the archive for the hosts, and the folder that the command was run in."""

    root: Path
    below: Path
    """Folder that the command was run in, relative to the root."""
    archive: bytes
    """Compressed tar file; the same files always give the same bytes."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


def pack(folder: Path) -> Code:
    """Packs the project that a folder belongs to, without the files that `.gitignore` excludes.

    Raises ConfigError when the project has no lock file, excludes a needed file or is too large.
    """
    root = _root(folder)
    names = _names(root)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise ConfigError([f"{root / name}: left out by .gitignore, needed" for name in missing])
    _refuse_if_too_large(root, names)
    return Code(root, folder.relative_to(root), _archive(root, names))


def _root(folder: Path) -> Path:
    """Returns the nearest folder with a lock file, at or above `folder`. Raises ConfigError."""
    for root in (folder, *folder.parents):
        if all((root / name).is_file() for name in NEEDED):
            return root
    raise ConfigError(
        [
            f"{folder}: no pyproject.toml with a uv.lock here or above: the hosts get the packages "
            "that it names. Type `uv init`, `uv add` what the job needs, and `uv lock`"
        ]
    )


def _names(root: Path) -> list[str]:
    """Returns the files below the root that git tracks or that `.gitignore` does not exclude.

    Nested repositories are included.
    """
    listing = ["ls-files", "--others", "--exclude-standard", "-z"]
    if _is_in_repository(root):
        listed = _git(["git", *listing, "--cached", "--deduplicate"], root)
    else:
        with tempfile.TemporaryDirectory(prefix="slipway-git-") as empty:
            _git(["git", "init", "--quiet", "--bare", empty], root)
            listed = _git(["git", f"--git-dir={empty}", f"--work-tree={root}", *listing], root)
    found = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_dir() and not path.is_symlink():
            found += [str(Path(name) / inner) for inner in _names(path)]
        elif path.is_symlink() or path.is_file():
            found.append(name)
    return sorted(set(found))


def _is_in_repository(root: Path) -> bool:
    """Returns whether git finds a repository from this folder."""
    try:
        _git(["git", "rev-parse", "--is-inside-work-tree"], root)
    except ConfigError:
        return False
    return True


def _git(command: Sequence[str], root: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, timeout=GIT_TIMEOUT_S
        )
    except FileNotFoundError:
        raise ConfigError(["git: not found; it reads .gitignore: install it"]) from None
    except subprocess.TimeoutExpired:
        message = f"{root}: listing its files took more than {GIT_TIMEOUT_S:.0f} s"
        raise ConfigError([message]) from None
    if done.returncode:
        raise ConfigError([f"{root}: {done.stderr.decode(errors='replace').strip()}"])
    return os.fsdecode(done.stdout)


def _refuse_if_too_large(root: Path, names: Sequence[str]) -> None:
    sizes = {name: (root / name).lstat().st_size for name in names}
    total = sum(sizes.values())
    if total <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_NAMED]
    why = (
        f"{root}: {format_bytes(total)} of files, more than the {format_bytes(MOST_BYTES)} that "
        "are sent to every host. Put what is no code into .gitignore; the largest:"
    )
    raise ConfigError([why, *(f"  {format_bytes(sizes[name]):>9}  {name}" for name in largest)])


def _archive(root: Path, names: Sequence[str]) -> bytes:
    """Returns the tar file, which depends only on names, contents and executable bits."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            path, entry = root / name, tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                archive.addfile(entry)
                continue
            about = path.stat()
            entry.size, entry.mode = about.st_size, 0o755 if about.st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return packed.getvalue()
