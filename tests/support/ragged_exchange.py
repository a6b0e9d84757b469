"""A stand-in for `jax.lax.ragged_all_to_all`, which XLA does not have for CPU devices."""

import jax
import jax.numpy as jnp


def ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: str,
) -> jax.Array:
    """Exchanges slices as JAX documents it: every device gets all rows, and writes its own."""
    del recv_sizes  # those of the senders
    rows, offsets, sizes, targets = (
        jax.lax.all_gather(x, axis_name)
        for x in (operand, input_offsets, send_sizes, output_offsets)
    )
    each = len(send_sizes) // len(rows)
    first = jax.lax.axis_index(axis_name) * each
    numbers = jnp.arange(len(operand))
    for sender in range(len(rows)):
        for number in range(each):
            offset, size, target = (x[sender, first + number] for x in (offsets, sizes, targets))
            is_sent = (numbers >= offset) & (numbers < offset + size)
            places = jnp.where(is_sent, numbers - offset + target, len(output))
            output = output.at[places].set(rows[sender], mode="drop")
    return output
