"""Coordinated checkpoints: saved by all processes as one, restored on any other mesh."""
