"""A small job and its hosts, for runs that `launch audit` replays."""

JOB = """\
name: small
steps: %d
model: {layers: 2, d_model: 24, heads: 2, d_ff: 48}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 12}
mesh: {data: 1, fsdp: -1}
optimizer: {schedule: constant, learning_rate: 1e-2}
eval: null
sample: null
checkpoint: {every_steps: %d, keep: 1000}
retries: {failures: 0, preemptions: 0, standby_after_s: null}
"""
"""Format arguments: the number of steps, and of steps between checkpoints."""
CLUSTER = """\
accelerator: cpu
hosts: %d
devices_per_host: %d
provider: {kind: local%s}
"""
"""Format arguments: the hosts, the devices of each, and further keys of the provider."""
