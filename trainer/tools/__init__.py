"""Command-line programs for checkpoints, started by `python -m` only."""
