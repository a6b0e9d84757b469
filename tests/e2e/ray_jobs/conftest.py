"""Trainers that compile without optimization, and steps that sleep."""

from tests.support.launch_fixtures import unhurried, without_optimization

__all__ = ["unhurried", "without_optimization"]
