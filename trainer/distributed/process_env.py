"""The launcher's input to a process: a small table of environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.protocol import environment


@dataclass(frozen=True)
class Environment:
    """This process's rank in the attempt. Without the variables it runs alone on this machine."""

    coordinator: str | None = None
    """host:port, JAX_COORDINATOR_ADDRESS; None for a single process."""
    coordinator_bind: str | None = None
    """Address on which process 0 listens, JAX_COORDINATOR_BIND_ADDRESS; None: all addresses."""
    processes: int = 1
    process: int = 0
    processes_per_host: int = 1
    run_dir: Path | None = None
    attempt: int = 1
    events_fd: int | None = None
    host_memory: str | None = None
    """Address of the memory of this host's agent; None without an agent."""

    @property
    def is_supervised(self) -> bool:
        """Whether a launcher follows this process, and notices if it hangs."""
        return self.events_fd is not None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Environment":
        """Reads the variables. Raises ValueError when they conflict or are not numbers."""
        processes = int(variables.get(environment.NUM_PROCESSES, 1))
        if processes > 1 and environment.PROCESS_ID not in variables:
            raise ValueError(
                f"{environment.NUM_PROCESSES} is {processes}, but {environment.PROCESS_ID} is not "
                "set"
            )
        run_dir = variables.get(environment.RUN_DIR)
        events_fd = variables.get(environment.EVENTS_FD)
        return cls(
            coordinator=variables.get(environment.JAX_COORDINATOR_ADDRESS),
            coordinator_bind=variables.get(environment.JAX_COORDINATOR_BIND_ADDRESS),
            processes=processes,
            process=int(variables.get(environment.PROCESS_ID, 0)),
            processes_per_host=int(variables.get(environment.PROCESSES_PER_HOST, 1)),
            run_dir=Path(run_dir) if run_dir else None,
            attempt=int(variables.get(environment.ATTEMPT, 1)),
            events_fd=int(events_fd) if events_fd else None,
            host_memory=variables.get(environment.HOST_MEMORY),
        )
