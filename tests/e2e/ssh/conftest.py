"""A project that is launched from, and traces of what it leaves."""

from tests.support.project_fixtures import project, traces

__all__ = ["project", "traces"]
