"""Programs on a checkpoint, started by `python -m` only."""
