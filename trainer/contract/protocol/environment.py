"""Names of the environment variables that the launcher sets for a program, or for itself.

`trainer.any_program` repeats three of the names: it runs in programs that cannot import this one.
"""

import re
from pathlib import Path

NUM_PROCESSES = "SLIPWAY_NUM_PROCESSES"
"""Number of processes of the attempt; 1 when unset."""
PROCESSES_PER_HOST = "SLIPWAY_PROCESSES_PER_HOST"
"""Number of neighboring processes that each host runs; 1 when unset."""
PROCESS_ID = "SLIPWAY_PROCESS_ID"
"""Number of this process, from 0."""
RUN_DIR = "SLIPWAY_RUN_DIR"
"""Path of the run directory."""
ATTEMPT = "SLIPWAY_ATTEMPT"
"""Number of the attempt, from 1; 1 when unset."""
EVENTS_FD = "SLIPWAY_EVENTS_FD"
"""Descriptor of the pipe for events; unset when no launcher reads them."""
START_FD = "SLIPWAY_START_FD"
"""Descriptor of the pipe on which a standby process receives its start, see start.py."""
HOST_MEMORY = "SLIPWAY_HOST_MEMORY"
"""Address of the memory that this host's agent keeps, see host_memory.py; unset without one."""
HOST_MEMORY_BYTES = "SLIPWAY_HOST_MEMORY_BYTES"
"""Size of that memory in bytes, for the agent; unset when the job has no in-memory checkpoints."""

PROGRAMS_BYTES = "SLIPWAY_PROGRAMS_BYTES"
"""Limit on the bytes of compiled programs that a host keeps; set by users, unlike the others."""

JAX_COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
"""HOST:PORT of the coordinator, which is in process 0."""
JAX_COORDINATOR_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
"""HOST:PORT on which process 0 listens; JAX listens on all addresses when it is unset."""
JAX_LOCAL_DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"
"""Comma-separated numbers of the host's GPUs that `jax.distributed.initialize` gives to a process;
set only for several processes on a host."""
JAX_PLATFORMS = "JAX_PLATFORMS"
"""Comma-separated backends that JAX may use."""
XLA_FLAGS = "XLA_FLAGS"
"""Flags of the compiler, such as the number of simulated devices."""
MEGASCALE_NUM_SLICES = "MEGASCALE_NUM_SLICES"
"""Number of TPU slices; set only for several slices, like the other MEGASCALE variables."""
MEGASCALE_SLICE_ID = "MEGASCALE_SLICE_ID"
"""Number of this process's slice, from 0."""
MEGASCALE_PORT = "MEGASCALE_PORT"
"""Port for the traffic between slices."""
MEGASCALE_COORDINATOR_ADDRESS = "MEGASCALE_COORDINATOR_ADDRESS"
"""Address of the first host of the first slice."""

RUN_ID = "SLIPWAY_RUN_ID"
"""Id of the run, for a `launch` that another machine started."""
SLURM_JOB = "SLIPWAY_SLURM_JOB"
"""Name of the Slurm job, for a `launch` that the job itself started."""

NOTIFY_EVENT = "SLIPWAY_NOTIFY_EVENT"
"""Event, for a command of `notify`, like the following ones."""
NOTIFY_RUN = "SLIPWAY_NOTIFY_RUN"
"""Name of the run."""
NOTIFY_MESSAGE = "SLIPWAY_NOTIFY_MESSAGE"
"""The event in a sentence or two."""
NOTIFY_JSON = "SLIPWAY_NOTIFY_JSON"
"""The event as JSON, as a URL receives it."""

SET_BY_SLIPWAY = re.compile(r"SLIPWAY_\w*|JAX_COORDINATOR_(BIND_)?ADDRESS|JAX_PLATFORMS")
"""Variables that a job file must not set."""

PLUGIN_DIR = Path(__file__).parents[2] / "any_program"
"""Folder for the PYTHONPATH of a job's `command`: JAX finds the variables above through it."""
