"""A small launch, planned as the command line plans it."""

from pathlib import Path

from launcher.cluster import ClusterWords, find_cluster
from launcher.plan import Launch, make_launch
from trainer.spec.config import load
from trainer.spec.job import Job

JOB = """\
name: small
steps: 2
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: stdlib, seq_len: 16, global_batch: 4}
"""


def small_launch(folder: Path, cluster: str = "local") -> Launch:
    path = folder / "small.yaml"
    path.write_text(JOB)
    return make_launch(
        load(path, Job), find_cluster(cluster), folder / "runs", ClusterWords(name=cluster)
    )
