"""What a run's files tell of it."""
