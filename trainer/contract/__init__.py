"""What the launcher and the trainer agree on. Imports neither JAX nor Ray."""
