"""Names of environment variables by which one `launch` tells another what it is part of."""

INSIDE = "SLIPWAY_SLURM_JOB"
"""In the environment of a `launch` that the job itself has started: the job's name."""
