"""`launch debug`: writes an archive for a bug report, without secrets."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib import metadata
from io import StringIO
from pathlib import Path

from rich.console import Console

from launcher.cluster.schema import find_cluster
from launcher.commands import stacks, status, why
from launcher.core.errors import SlipwayError
from launcher.core.formatting import format_bytes
from launcher.core.json_output import json_text
from launcher.diagnosis.archive import NAME, check_target, texts_of, write_archive
from launcher.diagnosis.redact import Redactor
from launcher.host.process_tree import start_time
from launcher.runs import registry
from launcher.runs.folder import is_alive, launched_in
from launcher.runs.state_file import RecordedState
from trainer.contract.config.command import load_job
from trainer.contract.protocol.versions import versions

SHOWN_VARIABLES = (
    "CUDA_", "JAX_", "LIBTPU_", "MEGASCALE_", "NCCL_", "PYTHON", "RAY_", "SLIPWAY_", "SLURM_",
    "TPU_", "XDG_", "XLA_",
)  # fmt: skip
"""Beginnings of the names of variables that are in the archive."""
README = """\
An archive for a bug report, written by `launch debug`. Values of secrets, and what looks like a
secret, are replaced by [redacted]. Logs and the job may contain other private text: read them
before you send the archive.
"""


@dataclass(frozen=True, kw_only=True)
class DebugResult:
    """An archive that was written."""

    archive: str
    """The ZIP file."""
    bytes: int
    """Size of the archive."""
    files: Sequence[str]
    """Names of the files in it."""


def write(folder: Path, to: Path | None) -> DebugResult:
    """Writes the archive of a run.

    Raises UsageError for a file that cannot be written or must not be replaced.
    """
    path = to or folder / NAME
    check_target(path)
    redact = _redactor(folder)
    texts = {name: redact(text) for name, text in [*_texts(folder), *texts_of(folder)]}
    write_archive(path, f"debug-{folder.name}", texts)
    return DebugResult(archive=str(path), bytes=path.stat().st_size, files=list(texts))


def show(found: DebugResult) -> None:
    """Prints where the archive is and what is in it."""
    size = format_bytes(found.bytes)
    print(f"{found.archive}\n{size}, {len(found.files)} files; secrets are replaced by [redacted]")
    print("Logs and the job may contain private text: read them before you send the archive")


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of what commands find out about a run."""
    yield "README.txt", README
    yield "why.txt", _or_error(lambda: _why(folder))
    yield "status.json", _or_error(lambda: json_text(status.read(folder).result()))
    if is_alive(folder):
        yield "stacks.json", _or_error(lambda: json_text(stacks.collect(folder).result()))
    yield "cluster.json", _or_error(lambda: _cluster(folder))
    yield "versions.json", json.dumps(_versions(), indent=2)
    shown = {n: v for n, v in sorted(os.environ.items()) if n.startswith(SHOWN_VARIABLES)}
    yield "environment.json", json.dumps(shown, indent=2)


def _or_error(text: Callable[[], str]) -> str:
    """Returns a text, or the error that it is missing for: a broken run has an archive, too."""
    try:
        return text()
    except (SlipwayError, OSError, ValueError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def _why(folder: Path) -> str:
    output = StringIO()
    why.show(why.read(folder), Console(file=output, width=120))
    return output.getvalue()


def _cluster(folder: Path) -> str:
    reference = RecordedState.read(folder).cluster
    if reference is None:
        return "{}"
    with chdir(launched_in(folder)):
        cluster = find_cluster(reference.name).value
    content = {"reference": vars(reference), "cluster": cluster.model_dump(mode="json")}
    return json.dumps(content, indent=2)


def _versions() -> dict[str, str]:
    return {
        "slipway": metadata.version("slipway"),
        **versions(),
        "ray": metadata.version("ray"),
        "system": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": str(os.cpu_count()),
    }


def _redactor(folder: Path) -> Redactor:
    """Returns what removes the secrets that this process, or the run's driver, has."""
    environment = {**_environment_of_driver(folder), **os.environ}
    names = {*registry.secrets_of(folder), *_secrets_of_job(folder)}
    declared = [environment[name] for name in names if name in environment]
    return Redactor(declared, environment)


def _secrets_of_job(folder: Path) -> tuple[str, ...]:
    try:
        return load_job(folder / "job.yaml").value.secrets
    except SlipwayError:
        return ()


def _environment_of_driver(folder: Path) -> Mapping[str, str]:
    """Returns the variables of the process that drives a live run of this machine."""
    recorded = RecordedState.read_valid(folder)
    if recorded.pid is None or start_time(recorded.pid) != recorded.start_time:
        return {}
    try:
        entries = Path(f"/proc/{recorded.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}
