"""What every program of the trainer that computes with a model tells JAX."""

import jax

from trainer.folders import cache_folder


def configure() -> None:
    """Call it before anything is compiled or drawn."""
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Random numbers must not depend on how an array is split.
    jax.config.update("jax_threefry_partitionable", True)
