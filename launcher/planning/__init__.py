"""Job file and cluster file -> what is launched. Asks the trainer in a child process."""
