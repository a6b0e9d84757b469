"""Tells JAX which process this is: then `jax.distributed.initialize()` needs no arguments.

JAX reads the coordinator's address from JAX_COORDINATOR_ADDRESS, but count and rank only through a
cluster that it detects. This one is detected where the variables of Slipway's contract stand,
before all others: `launch` may have been started under Slurm or MPI, whose variables say something
else. On a TPU pod it says what JAX would find by itself, and what Slipway's trainer is told.

The launcher puts the folder above into PYTHONPATH of a job's `command`, and JAX imports
`jax_plugins`, the place of its plug-ins, while it is imported itself. No program has to be changed,
and nothing but JAX notices. The other ways, and what speaks against them:

- The variables of Slurm or Open MPI: other libraries believe them too. A program with MPI looks for
  its daemon and aborts, those based on torch join a cluster that is not there, some requeue their
  job; and with SLURM_LOCALID JAX takes only one GPU of each host.
- JAX_FORCE_TPU_INIT with the variables of GKE: it changes how JAX makes its clients on GPUs too.
- A `sitecustomize` of ours, or a program of ours that runs the script: the one hides that of the
  host, the other does not start what was written; both act where there is no JAX.
"""

import os
from pkgutil import extend_path

from jax._src.clusters import ClusterEnv
from jax._src.config import config

__path__ = extend_path(list(__path__), __name__)  # the plug-ins that are installed stay visible

COUNT, RANK = "SLIPWAY_NUM_PROCESSES", "SLIPWAY_PROCESS_ID"
COORDINATOR = "JAX_COORDINATOR_ADDRESS"


class SlipwayCluster(ClusterEnv):
    """One process a host, with all of the host's devices."""

    name = "slipway"

    @classmethod
    def is_env_present(cls) -> bool:
        return {COUNT, RANK, COORDINATOR} <= os.environ.keys()

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: int | None, override_coordinator_port: str | None
    ) -> str:
        return os.environ[COORDINATOR]

    @classmethod
    def get_process_count(cls) -> int:
        return int(os.environ[COUNT])

    @classmethod
    def get_process_id(cls) -> int:
        return int(os.environ[RANK])


# JAX warns of every variable with `_proxy` in its name. The launcher lists the hosts in those that
# name exceptions, so that no proxy comes between the processes.
config.update("jax_check_proxy_envs", False)
ClusterEnv._cluster_types.remove(SlipwayCluster)
ClusterEnv._cluster_types.insert(0, SlipwayCluster)
