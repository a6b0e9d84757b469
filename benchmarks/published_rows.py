"""Reads `docs/published/measurements.yaml`: public measurements, and the closest job to each."""

import hashlib
from dataclasses import dataclass
from datetime import date
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchmarks.published_remat import Product
from launcher.planning.planner import TrainingLaunch
from trainer.contract.config.base import Positive, Section
from trainer.contract.config.yaml import parse
from trainer.contract.planning import accelerators

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "docs" / "published" / "measurements.yaml"
BASE_JOB = """\
name: published
steps: 1000
data: {source: text, path: "corpus/*"}
eval: null
sample: null
checkpoint: null
"""
"""The keys of every row's job that have no influence on a step, before the row's overrides."""
LARGE_ERROR = 0.25
"""Error above which a row needs an explanation."""
BEST = "+best"
"""What the name of a row's fastest job ends in."""
Text = Annotated[str, Field(min_length=3)]
Url = Annotated[str, Field(pattern=r"^https://\S+$")]
Figure = Annotated[float, Field(gt=0)]


class Source(Section):
    """The page with a figure."""

    url: Url
    date: date
    """Day on which the figure was published there."""
    settings: Url | None = None
    """Page with the settings; None: the same."""


class Figures(Section):
    """What the source gives, at least one of the first three."""

    step_time_s: Figure | None = None
    tokens_per_s_per_chip: Figure | None = None
    tflops_per_s_per_chip: Figure | None = None
    mfu: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _is_comparable(self) -> "Figures":
        if not (self.step_time_s or self.tokens_per_s_per_chip or self.tflops_per_s_per_chip):
            raise ValueError("needs a step time, tokens/s or TFLOP/s")
        return self


class Row(Section):
    """A measurement, and the closest Slipway job and cluster."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    half: Literal["calibrate", "test"]
    """Whether it may set constants of the forecast, or only tests it."""
    source: Source
    system: Text
    chip: Literal["v5e", "v5p", "v6e", "v7x"]
    accelerator: Text
    """Slipway's name of a slice."""
    chips: Positive
    """Chips of all slices."""
    slices: Positive
    model: Text
    batch_per_device: Figure
    """Sequences per JAX device and step."""
    seq_len: Positive
    precision: Text
    remat: Text
    recomputes: tuple[Product, ...] | None
    """What the policy of `remat` recomputes in a layer; None when the source does not say."""
    fused_attention: bool = False
    """Whether one kernel computes all gradients of attention, and the scores once for them."""
    mesh: Text
    published: Figures
    attention_flops: Literal["causal", "whole"] | None = None
    """How TFLOP/s count attention, where they are the only figure."""
    job: tuple[Text, ...]
    """Overrides of BASE_JOB."""
    best: tuple[Text, ...] = ()
    """Further overrides, of a job that does the same work faster; none if `job` is the fastest."""
    differs: Text
    """What is not the same in Slipway's job."""
    missing: Text | None = None
    """What Slipway lacks to be ahead, or to have a forecast; needed if it is not ahead."""
    explains: Text | None = None
    """Why the forecast or the estimate is wrong; needed if an error is above LARGE_ERROR."""

    @property
    def devices_per_chip(self) -> int:
        """Number of JAX devices of a chip."""
        made = accelerators.parse(self.accelerator)
        return made.devices // made.chips

    @property
    def tokens_per_device(self) -> float:
        """Tokens of a JAX device in a step of the source."""
        return self.batch_per_device * self.seq_len

    @property
    def cluster(self) -> str:
        """The text of the cluster file."""
        slices = f"slices: {self.slices}, provider: {{kind: gcp}}"
        return f"{{accelerator: {self.accelerator}, {slices}}}\n"

    @property
    def faster(self) -> "Row | None":
        """The row with the fastest job instead of the closest one; None if they are the same."""
        if not self.best:
            return None
        job = (*self.job, *self.best)
        return self.model_copy(update={"id": f"{self.id}{BEST}", "job": job, "best": ()})

    @property
    def job_hash(self) -> str:
        """A hash of the row's job and cluster."""
        return digest([BASE_JOB, *self.job, self.cluster])


def digest(texts: list[str]) -> str:
    """Returns a hash of a list of texts, in 12 hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def load(path: Path = MEASUREMENTS) -> list[Row]:
    """Returns all rows in the order of the file. Raises ValueError for a wrong file or row."""
    tree = parse(path.read_text(encoding="utf-8"))
    if tree.problems:
        raise ValueError(f"{path.name}: {tree.problems}")
    rows = [Row.model_validate(value, strict=False) for value in tree.value]
    ids = [row.id for row in rows]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise ValueError(f"{path.name}: ids that occur twice: {', '.join(sorted(twice))}")
    return rows


def with_faster(rows: list[Row]) -> list[Row]:
    """Returns the rows, each followed by the one with its fastest job."""
    return [one for row in rows for one in (row, row.faster) if one]


def chosen(rows: list[Row], ids: list[str]) -> list[Row]:
    """Returns the rows with these ids, or all if there are none. Raises ValueError.

    An id with BEST at its end stands for the row's fastest job.
    """
    rows = with_faster(rows)
    known = {row.id: row for row in rows}
    if unknown := [name for name in ids if name not in known]:
        raise ValueError(f"no row is named {', '.join(unknown)}. There are: {', '.join(known)}")
    return [known[name] for name in ids] if ids else rows


def write_files(row: Row, folder: Path) -> tuple[Path, Path]:
    """Writes the job file and the cluster file of a row; returns their paths."""
    job, cluster = folder / "job.yaml", folder / "cluster.yaml"
    job.write_text(BASE_JOB)
    cluster.write_text(row.cluster)
    return job, cluster


def plan(row: Row, folder: Path) -> TrainingLaunch:
    """Plans the row's job on its cluster. Raises ConfigError when either is not legal."""
    from launcher.api import plan as plan_job

    job, cluster = write_files(row, folder)
    launch = plan_job(job, cluster=str(cluster), overrides=row.job, runs=folder / "runs")
    assert isinstance(launch, TrainingLaunch)
    return launch


def flops_per_token(row: Row, launch: TrainingLaunch) -> float:
    """Returns the FLOPs of a token in training as MaxText counts them: 6 N, and attention.

    N counts all parameters, the embedding included. Attention of L layers with H heads of width h
    over S positions is 12 L H h S, or half of that for causal attention. Source:
    `calculate_training_tflops` in MaxText/max_utils.py of 2023-11-01 (whole) and in
    MaxText/train.py of 2023-12-15 (causal).
    """
    model = launch.job.decoder
    parameters = sum(prod(array.shape) for array in launch.plan.parameters)
    attention = 12 * model.layers * model.heads * model.head_dim * row.seq_len
    return 6 * parameters + (attention / 2 if row.attention_flops == "causal" else attention)


@dataclass(frozen=True)
class Speed:
    """Tokens per second and chip of a source."""

    tokens_per_s_per_chip: float
    is_derived: bool
    """Whether it follows from TFLOP/s by the source's own formula."""


def published_speed(row: Row, launch: TrainingLaunch) -> Speed:
    """Returns the speed of a row: as published, from its step time, or from its TFLOP/s."""
    given = row.published
    if given.tokens_per_s_per_chip:
        return Speed(given.tokens_per_s_per_chip, is_derived=False)
    if given.step_time_s:
        tokens = row.tokens_per_device * row.devices_per_chip
        return Speed(tokens / given.step_time_s, is_derived=False)
    assert given.tflops_per_s_per_chip, "else Figures is not valid"
    flops = given.tflops_per_s_per_chip * 1e12
    return Speed(flops / flops_per_token(row, launch), is_derived=True)
