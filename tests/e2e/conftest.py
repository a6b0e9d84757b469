"""How the trainers of all launches compile."""

from tests.support.launch_fixtures import without_optimization

__all__ = ["without_optimization"]
