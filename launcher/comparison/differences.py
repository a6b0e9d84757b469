"""The differences of two runs in job, code, libraries and cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launcher.runs.run_record import RunRecord
from trainer.contract.config import yaml
from trainer.contract.planning.plan import BasePlan, Plan
from trainer.contract.records.compatibility import SHOWN_OF_HASH, SILENT

ROUNDING_ONLY = (
    *SILENT, "checkpoint", "data.grad_accum_steps", "eval", "model.offload", "model.remat",
    "model.scan_layers", "optimizer.offload_moments", "secrets", "stop_after_step", "storage",
    "sweep",
)  # fmt: skip
"""Keys of a job, or sections, that change the loss by rounding or not at all."""
INIT = "checkpoint.init_from"


class Group(StrEnum):
    """What a difference is in."""

    JOB = "job"
    CODE = "code"
    LIBRARIES = "libraries"
    CLUSTER = "cluster"
    """Hosts and devices of the last attempt."""
    PLAN = "plan"
    """What the planner has decided for the last attempt."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ."""

    group: Group
    key: str
    """Key of the job such as `optimizer.learning_rate`, package, or fact about cluster or plan."""
    first: Any
    """Value of the first run; null when it has none."""
    second: Any
    """Value of the second run; null when it has none."""

    @property
    def is_of_rounding(self) -> bool:
        """Whether this can change the loss by rounding at most; code and libraries may do more."""
        match self.group:
            case Group.JOB:
                return is_under(self.key, ROUNDING_ONLY) and not self._is_of_weights
            case Group.PLAN:
                return self.key != "compute_dtype"
            case _:
                return self.group is Group.CLUSTER

    @property
    def _is_of_weights(self) -> bool:
        """Whether a run starts from given weights, and the other one not from these."""
        sections = [value for value in (self.first, self.second) if isinstance(value, Mapping)]
        return self.key == INIT or any(section.get("init_from") for section in sections)


@dataclass(frozen=True)
class Known:
    """A group of facts that both runs have recorded, and how they differ."""

    group: Group
    differences: list[Difference]


def differences(first: RunRecord, second: RunRecord) -> list[Known]:
    """Returns the differences of each group that both runs have recorded. Names do not count."""
    facts = [_facts(record) for record in (first, second)]
    return [
        Known(group, [Difference(group, *found) for found in _changes(facts[0][group], of_second)])
        for group, of_second in facts[1].items()
        if of_second and facts[0][group]
    ]


def is_under(key: str, sections: tuple[str, ...]) -> bool:
    """Returns whether a key is one of these keys, or in one of these sections."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _facts(record: RunRecord) -> dict[Group, Mapping[str, Any]]:
    """Returns the facts of a run; those of a group are empty when nothing was recorded."""
    return {
        Group.JOB: _job(record.job_text),
        Group.CODE: {"sha256": record.code[:SHOWN_OF_HASH]} if record.code else {},
        Group.LIBRARIES: record.versions,
        Group.CLUSTER: _cluster(record.last_plan, record.status.cluster),
        Group.PLAN: _plan(record.last_plan),
    }


def _job(text: str) -> Mapping[str, Any]:
    """Returns the resolved job without its name; an empty one when it cannot be read."""
    try:
        job = yaml.parse(text).value
    except yaml.NotYamlError:
        return {}
    return {k: v for k, v in job.items() if k != "name"} if isinstance(job, Mapping) else {}


def _cluster(plan: BasePlan | None, name: str) -> Mapping[str, Any]:
    if plan is None:
        return {}
    world = plan.world
    return {
        "name": name,
        "accelerator": world.accelerator,
        "slices": world.slices,
        "hosts": world.hosts,
        "processes_per_host": world.processes_per_host,
        "devices": world.devices,
    }


def _plan(plan: BasePlan | None) -> Mapping[str, Any]:
    """Returns what the planner has decided; nothing for a program without Slipway's trainer."""
    if not isinstance(plan, Plan):
        return {}
    axes = [f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1]
    return {
        "mesh": " x ".join(axes) or "one device",
        "compute_dtype": plan.compute_dtype,
        "attention": plan.attention,
        "moe": plan.moe,
    }


def _changes(
    first: Mapping[str, Any], second: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, first, second) of each difference. An absent key counts as null."""
    for name in {**first, **second}:
        key, one, other = f"{above}{name}", first.get(name), second.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _changes(one, other, f"{key}.")
        elif one != other:
            yield key, one, other
