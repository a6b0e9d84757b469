"""Analysis of a training step before it runs; started by `python -m` only."""
