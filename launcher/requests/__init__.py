"""Requests of commands to the process that drives a live run, through files in the run's folder."""
