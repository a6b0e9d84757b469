"""A stand-in for the Cloud TPU API, and what a launch against it remembers."""

from tests.support.project_fixtures import project, traces
from tests.support.tpu_api_fixtures import cloud

__all__ = ["cloud", "project", "traces"]
