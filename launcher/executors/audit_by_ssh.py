"""`launch audit` on remote hosts: the command runs on the first of them, and drives the replays."""

from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.cluster.schema import Cluster, ClusterRef, Ssh
from launcher.planning import job_secrets
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray.host_protocol import AuditOrder, LaunchEnded
from launcher.providers.ssh.connection import hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv
from trainer.contract.config.job import Job

TIMEOUT_S = 7 * 24 * 3600.0
"""Seconds for all replays. Each one has the deadlines of a run."""


def audit_by_ssh(
    folder: Path,
    job: Job,
    cluster: tuple[Cluster, Ssh, ClusterRef],
    args: Sequence[str],
    on_status: Callable[[str], None],
) -> LaunchEnded:
    """Audits the run in a folder on the hosts of a cluster; returns the end of the command there.

    `cluster`: with its provider and its reference. `args`: options and overrides of the command.

    Sends the folder to the first host, which reads the checkpoints itself. Leaves only files on the
    hosts, also after Ctrl-C. Raises HostError.
    """
    whole, settings, cluster_ref = cluster
    hosts, world = hosts_of(settings), whole.world(simulated=False)
    code, storage = pack(Path.cwd()), job.storage or whole.storage
    provisioned = provision(hosts, code, find_uv(), world.platform, on_status, storage)
    run = RemoteRun.of(folder, settings, provisioned, cluster_ref)
    run.send(folder)
    name, secrets = Path(cluster_ref.name).stem, job_secrets.values(job)
    order = AuditOrder(whole, name, run.runs, folder.name, list(args), secrets)
    with Sessions(hosts, provisioned) as sessions:
        sessions.start(world, on_status)
        on_status(f"auditing on {run.head.name}")
        return sessions.command(order, TIMEOUT_S)
