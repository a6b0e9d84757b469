"""Names of environment variables that pass context from one `launch` to another."""

INSIDE = "SLIPWAY_SLURM_JOB"
"""Name of the Slurm job, set for a `launch` that the job itself started."""
