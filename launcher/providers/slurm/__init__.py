"""Hosts allocated by Slurm: a run is a Slurm job, which resumes the run after a requeue."""
