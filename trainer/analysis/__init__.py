"""A training step taken apart before it runs; started by `python -m` only."""
