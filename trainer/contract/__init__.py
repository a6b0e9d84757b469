"""Contract between the launcher and the trainer. Imports neither JAX nor Ray."""
