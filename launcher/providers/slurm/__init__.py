"""Hosts that a Slurm cluster allots: a run is a job of it, and goes on when it is requeued."""
