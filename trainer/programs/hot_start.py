"""Programs that a run has brought to this process, if they are what the process would compile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.storage import kept_programs
from trainer.distributed.mesh import Device
from trainer.programs import keys
from trainer.programs.bundle import Bundle, BundleError, differences


@dataclass(frozen=True)
class HotStart:
    """The programs that came with a run."""

    programs: Mapping[str, bytes] = field(default_factory=dict)
    """Empty if none came, or none that this process may use."""
    rejection: str = ""
    """Why those that came are not used."""


def find(run_dir: Path, job: Job, plan: Plan, process: int, device: Device) -> HotStart:
    """Returns the programs that a run's folder has for a process; `device` is one of the mesh."""
    folder = run_dir / kept_programs.IN_RUN
    if not folder.is_dir():
        return HotStart()
    path = folder / kept_programs.file_name(plan.world.processes, process)
    try:
        found = Bundle.read(path)
    except FileNotFoundError:
        return HotStart(rejection=f"{path.name} is missing: no programs are kept for this process")
    except (BundleError, OSError) as error:
        return HotStart(rejection=f"{path.name}: {error}")
    different = differences(found.made_from, keys.made_from(job, plan, device))
    if different:
        return HotStart(rejection=f"{path.name} was made from {'; '.join(different)}")
    return HotStart(found.programs)
