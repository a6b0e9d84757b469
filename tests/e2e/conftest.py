"""What all launches of these tests share."""

from tests.support.launch_fixtures import without_optimization

__all__ = ["without_optimization"]
