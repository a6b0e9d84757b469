"""Gives JAX the process count and rank, so that `jax.distributed.initialize()` needs no arguments.

JAX reads the coordinator's address from JAX_COORDINATOR_ADDRESS, but reads count and rank only from
a cluster that it detects. This cluster is detected when the variables of Slipway's contract are
set. It precedes all other clusters: `launch` may run under Slurm or MPI, whose variables describe
other processes. On TPU slices it reports what JAX would detect itself and what Slipway's trainer
uses.

The launcher adds the folder above to PYTHONPATH of a job's `command`. JAX imports `jax_plugins`,
its package for plug-ins, while JAX itself is imported. No program has to be changed, and only JAX
is affected. Rejected alternatives:

- The variables of Slurm or Open MPI: other libraries trust them too. A program with MPI looks for
  its daemon and aborts. Programs based on torch join a cluster that does not exist, and some
  requeue their job. With SLURM_LOCALID, JAX takes only one GPU of each host.
- JAX_FORCE_TPU_INIT with the variables of GKE: it also changes how JAX creates its clients on GPUs.
- A `sitecustomize` or a wrapper program from Slipway: the first hides the host's own
  `sitecustomize`, the second does not start the command as written. Both act even without JAX.
"""

import os
from pkgutil import extend_path

from jax._src.clusters import ClusterEnv
from jax._src.config import config

__path__ = extend_path(list(__path__), __name__)  # installed plug-ins stay visible

COUNT, RANK = "SLIPWAY_NUM_PROCESSES", "SLIPWAY_PROCESS_ID"
COORDINATOR = "JAX_COORDINATOR_ADDRESS"


class SlipwayCluster(ClusterEnv):
    """A cluster whose processes use all devices of a host, or those of JAX_LOCAL_DEVICE_IDS."""

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


# JAX warns about every variable with `_proxy` in its name. The launcher lists the hosts in the
# `no_proxy` variables, so that traffic between the processes bypasses any proxy.
config.update("jax_check_proxy_envs", False)
ClusterEnv._cluster_types.remove(SlipwayCluster)
ClusterEnv._cluster_types.insert(0, SlipwayCluster)
