"""What a run writes, read without JAX."""
