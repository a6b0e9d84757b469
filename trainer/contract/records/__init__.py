"""The files that a run writes, read without JAX."""
