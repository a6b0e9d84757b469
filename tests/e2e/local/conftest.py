"""Launches in a folder of the test, and what they must not leave behind."""

from tests.support.launch_fixtures import (
    launch,
    start,
    traces,
    unbroken,
    unhurried,
    without_optimization,
)

__all__ = ["launch", "start", "traces", "unbroken", "unhurried", "without_optimization"]
