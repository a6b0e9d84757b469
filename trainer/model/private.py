"""The private symbols of JAX that attention uses; tested with jax 0.10.2, 0.11.2 and 0.12.0.

tests/architecture/test_private.py fails when one of them disappears. Attention then uses JAX's
Triton kernel instead.
"""

from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

__all__ = ["MaskType", "dot_product_attention"]
