"""Compares the job of an existing run with the one that a group plans for it."""

from collections.abc import Iterator

from launcher.chains.link import source_of
from launcher.planning.spec import LaunchSpec
from launcher.runs.registry import is_run
from trainer.contract.config.command import load_job
from trainer.contract.config.job import BaseJob
from trainer.contract.config.yaml import dump_inline


def changes(spec: LaunchSpec) -> list[str]:
    """Returns the keys of the run that differ from the plan; [] when there is no run yet.

    Left out is what a run changes itself: where it stops, what it waits for, and a reference that
    has become a folder.
    """
    if not is_run(spec.run_dir):
        return []
    existing = load_job(spec.run_dir / "job.yaml").value
    is_open = any(source_of(job) for job in (existing, spec.job))
    return list(_differences(_comparable(existing, is_open), _comparable(spec.job, is_open)))


def _comparable(job: BaseJob, is_open: bool) -> dict[str, object]:
    exclude: dict[str, object] = {"stop_after_step": True, "after": True}
    if is_open:
        exclude["checkpoint"] = {"init_from"}
    return job.model_dump(mode="json", exclude=exclude)  # type: ignore[arg-type]


def _differences(before: object, now: object, key: str = "") -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            inner = f"{key}.{name}".removeprefix(".")
            yield from _differences(before.get(name), now.get(name), inner)
    else:
        yield f"{key}: {dump_inline(before)} -> {dump_inline(now)}"
