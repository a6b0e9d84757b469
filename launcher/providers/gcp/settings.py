"""What the cluster file leaves open: from gcloud's own configuration and the accelerator's name."""

import configparser
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from launcher.cluster import Cluster, Gcp
from launcher.providers.errors import ProviderError

RUNTIME_VERSIONS = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""For JAX, by generation: cloud.google.com/tpu/docs/runtimes, looked up in November 2026."""
USER = "slipway"
"""Made on the hosts by their guest agent, for the key that is sent along with the request."""


class Where(BaseModel):
    """The project and zone of slices, and the server that is asked about them."""

    project: str
    zone: str
    endpoint: str | None = None

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    def __str__(self) -> str:
        return f"{self.zone}, project {self.project}"


@dataclass(frozen=True)
class Wanted:
    """What is asked for, and where; nothing is left open."""

    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    slices: int
    hosts_per_slice: int
    user: str
    settings: Gcp

    @property
    def where(self) -> Where:
        return Where(project=self.project, zone=self.zone, endpoint=self.settings.endpoint)

    @property
    def tier(self) -> str:
        """How it is paid for, in words."""
        if self.settings.spot:
            return "spot"
        return "reserved" if self.settings.reservation else "on demand"

    def __str__(self) -> str:
        slices = f"{self.slices} slices of " * (self.slices > 1)
        return f"{slices}{self.accelerator_type} ({self.tier}) in {self.where}"


def wanted(cluster: Cluster) -> Wanted:
    """Raises ProviderError with all that nobody has said."""
    settings = cluster.provider
    assert isinstance(settings, Gcp)
    gcloud = _Gcloud()
    project = settings.project or gcloud.value("core", "project")
    zone = settings.zone or gcloud.value("compute", "zone")
    kind = settings.accelerator_type or cluster.slice.ray_pod_type or ""
    generation = kind.partition("-")[0]
    runtime_version = settings.runtime_version or RUNTIME_VERSIONS.get(generation)
    problems = [
        why for value, why in (
            (project, "project: say provider.project, or `gcloud config set project PROJECT`"),
            (zone, "zone: say provider.zone, or `gcloud config set compute/zone ZONE`"),
            (runtime_version, f"runtime_version: none is known for {kind}: say "
             "provider.runtime_version, as of `gcloud compute tpus versions list`"),
        ) if not value
    ]  # fmt: skip
    if problems:
        raise ProviderError("\n  ".join(["Cloud TPU: this is said nowhere:", *problems]))
    return Wanted(
        project=project or "",
        zone=zone or "",
        accelerator_type=kind,
        runtime_version=runtime_version or "",
        slices=cluster.slices.max,
        hosts_per_slice=cluster.slice.hosts,
        user=settings.user or USER,
        settings=settings,
    )


class _Gcloud:
    """Its configuration: CLOUDSDK_* variables, then the file of the active configuration."""

    def __init__(self) -> None:
        given = os.environ.get("CLOUDSDK_CONFIG")
        folder = Path(given) if given else Path.home() / ".config" / "gcloud"
        name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _text(folder / "active_config")
        self._file = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._file.read_string(_text(folder / "configurations" / f"config_{name or 'default'}"))
        except configparser.Error:
            pass  # what is in it is said to be missing

    def value(self, section: str, name: str) -> str | None:
        variable = os.environ.get(f"CLOUDSDK_{section}_{name}".upper())
        return variable or self._file.get(section, name, fallback=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
