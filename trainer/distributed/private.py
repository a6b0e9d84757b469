"""The private symbols of JAX that the trainer uses; tested with jax 0.10.2 and 0.12.0.

tests/architecture/test_private.py fails when one of them disappears.
`trainer/any_program/jax_plugins` has imports of its own: it must work alone on a PYTHONPATH.
"""

from jax._src import distributed, xla_bridge

__all__ = ["distributed", "xla_bridge"]
