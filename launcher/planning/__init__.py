"""Builds a launch from a job file and a cluster file. Runs the trainer in a child process."""
