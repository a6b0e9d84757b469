"""The private symbol of Orbax that the trainer uses; tested with orbax-checkpoint 0.12.

tests/architecture/test_private.py fails when it disappears.
"""

from orbax.checkpoint._src.path import atomicity_defaults

__all__ = ["atomicity_defaults"]
