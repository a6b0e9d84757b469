"""The decoder: embedding, a stack of layers, and logits.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.planning.layer_stacks import Stack, layer_stacks
from trainer.contract.planning.plan import MoEKind
from trainer.model import dropout
from trainer.model.attention import KeyValue, cache_widths
from trainer.model.attention_kernels import attend as attend_by
from trainer.model.attention_kernels import score_scale, softcapped
from trainer.model.decoder_layer import Layer
from trainer.model.embeddings import Embedding, Output, Positions, Vocabulary
from trainer.model.layer_scan import Body, scan_layers
from trainer.model.layers import Norm, logits_product
from trainer.model.moe_routing import Balance
from trainer.model.pipeline import in_rounds, through_stages
from trainer.model.remat import named, rematerialized
from trainer.model.sharding import constrain, gathered, stages, token_shards

Cache = KeyValue
"""Keys and values of all layers, each (L, B, W, K, h), or what latent attention has instead."""
Layers = tuple[nnx.State, jax.Array]
"""Arrays of stacked layers, and the layers' numbers from 0."""
MASKED = -1e30
"""Logit of a padding token: finite, so that its gradient is exactly zero."""


class Decoder(nnx.Module):
    """Decoder-only transformer.

    Maps tokens, int32 (B, S), to normalized features (B, S, D) in the compute dtype; `logits` maps
    features to logits, float32 (B, S, V). `decode` computes one position with a cache.

    References:
        Norms before the parts of a layer: https://arxiv.org/abs/2002.04745
        After them: OLMo 2, section 3.3, https://arxiv.org/abs/2501.00656
        Both: Gemma 2, section 2, https://arxiv.org/abs/2408.00118
        Tied embeddings: https://arxiv.org/abs/1608.05859
        Scaled embeddings: section 3.4 of https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        model: Model,
        vocabulary: Vocabulary,
        dtype: jnp.dtype,
        attention: str = "reference",
        moe: MoEKind = "capacity",
        chunks: int = 1,
        rounds: int = 1,
    ):
        """Builds the decoder; `attention`, `moe`, `chunks` and `rounds` are those of the plan.

        With rounds, it computes with arrays of layers that `in_rounds` of pipeline.py returns.
        """
        self.model, self.vocabulary, self.dtype = model, vocabulary, dtype
        self.attention, self.chunks, self.rounds = attention, chunks, rounds
        self.embedding = Embedding(rngs, vocabulary, model.d_model)
        for stack in layer_stacks(model):
            setattr(self, stack.name, _stacked_layers(rngs, stack, moe, chunks))
        self.final_norm = Norm(model, model.d_model)
        if not model.tied_embeddings:
            self.output = Output(rngs, vocabulary, model.d_model)
        if model.max_positions is not None:
            self.positions = Positions(rngs, model.max_positions, model.d_model)

    def __call__(
        self,
        tokens_BS: jax.Array,
        segments_BS: jax.Array,
        positions_BS: jax.Array,
        dropout_keys_B: jax.Array | None = None,
    ) -> jax.Array:
        """Returns normalized features (B, S, D).

        Attention stays inside the segments; `positions_BS` count from the start of each segment.
        `dropout_keys_B` are one random key per row; None disables dropout.
        """
        return self.features(tokens_BS, segments_BS, positions_BS, dropout_keys_B)[0]

    def features(
        self,
        tokens_BS: jax.Array,
        segments_BS: jax.Array,
        positions_BS: jax.Array,
        dropout_keys_B: jax.Array | None = None,
    ) -> tuple[jax.Array, Balance | None]:
        """Returns the features, and the balance of the experts or None without any.

        Its loss is the mean over all layers, and its load, of all sequences, is (L, E).
        """
        if stages() > 1:
            arrays = (tokens_BS, segments_BS, positions_BS, dropout_keys_B)
            x_MBSD, balance = self.pipelined_features(*jax.tree.map(lambda x: x[None], arrays))
            if balance is not None:
                balance = balance._replace(loss=balance.loss[0])
            return x_MBSD[0], balance
        keys_BS = dropout.token_keys(dropout_keys_B, segments_BS, positions_BS)
        x_BSD = self.embedded(tokens_BS, positions_BS, keys_BS)
        of_rows = (segments_BS, positions_BS, keys_BS)
        balance_LB = None
        for stack in layer_stacks(self.model):
            graph, layers = self._numbered_layers(stack)
            x_BSD, balance_LB = self._apply_layers(graph, x_BSD, layers, of_rows)
        return self._finished(x_BSD, balance_LB)

    def pipelined_features(
        self,
        tokens_MBS: jax.Array,
        segments_MBS: jax.Array,
        positions_MBS: jax.Array,
        dropout_keys_MB: jax.Array | None = None,
    ) -> tuple[jax.Array, Balance | None]:
        """Returns `features` of micro-batches, which pass through the stages of the mesh."""
        keys_MBS = jax.vmap(dropout.token_keys)(dropout_keys_MB, segments_MBS, positions_MBS)
        x_MBSD = jax.vmap(self.embedded)(tokens_MBS, positions_MBS, keys_MBS)
        of_micro_batches = (segments_MBS, positions_MBS, keys_MBS)
        graph, layers = self._numbered_layers(*layer_stacks(self.model))
        x_MBSD, balance_LMB = through_stages(
            partial(self._apply_layers, graph),
            x_MBSD,
            layers,
            of_micro_batches,
            rounds=self.rounds,
            unroll=not self.model.scan_layers,
        )
        return self._finished(x_MBSD, balance_LMB)

    def apply_stage(
        self,
        x_BSD: jax.Array,
        weights: dict[str, jax.Array],
        numbers_L: jax.Array,
        of_rows: tuple[Any, ...],
    ) -> tuple[jax.Array, Balance | None]:
        """Returns the residual stream after some layers, and their part of the model's balance.

        `weights` have the names of the model's parameters, and `numbers_L` are the layers' numbers.
        `of_rows` are the segments, the positions and the dropout keys of the rows' tokens.
        """
        (stack,) = layer_stacks(self.model)
        graph, _ = nnx.split(getattr(self, stack.name))
        paths = [(tuple(name.split(".")[1:]), value) for name, value in weights.items()]
        layers = (nnx.from_flat_state(paths), numbers_L)
        x_BSD, balance_LB = self._apply_layers(graph, x_BSD, layers, of_rows)
        if balance_LB is None:
            return x_BSD, None
        loss_B = jnp.sum(balance_LB.loss, axis=0) / stack.count
        load_LBE = balance_LB.load
        return x_BSD, Balance(loss_B, None if load_LBE is None else jnp.sum(load_LBE, axis=1))

    def _numbered_layers(self, stack: Stack) -> tuple[Any, Layers]:
        """Returns the layers' module without arrays; and its arrays, with the layers' numbers.

        On stages, the layers are in rounds.
        """
        graph, stacked = self._layers(stack)
        numbers = in_rounds(stack.first + jnp.arange(stack.count), self._rounds)
        return graph, (stacked, numbers)

    def _layers(self, stack: Stack) -> tuple[Any, nnx.State]:
        graph, stacked = nnx.split(getattr(self, stack.name))
        if self.rounds > self._rounds:
            stacked = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
        return graph, stacked

    @property
    def _rounds(self) -> int:
        """The rounds in which layers are applied: one without stages, whatever the plan."""
        return self.rounds if stages() > 1 else 1

    def _apply_layers(
        self, graph: Any, x_BSD: jax.Array, layers: Layers, of_rows: tuple[Any, ...]
    ) -> tuple[jax.Array, Balance | None]:
        """Returns the residual stream after layers, and the balance of each layer's experts.

        `of_rows` are the segments, the positions and the dropout keys of the rows' tokens.
        """
        segments_BS, positions_BS, dropout_keys_BS = of_rows
        softcap, scale = self.model.attn_logit_softcap, score_scale(self.model)

        def body(window: int | None) -> Body:
            attend = attend_by(
                self.attention, segments_BS, positions_BS, window, softcap, scale, self.chunks
            )

            def one_layer(x_BSD: jax.Array, layer: tuple[nnx.State, jax.Array]):
                weights, number = layer
                module = nnx.merge(graph, weights)
                x_BSD = named(x_BSD, "layer_input")
                return module(x_BSD, positions_BS, attend, window, number, dropout_keys_BS)

            return rematerialized(self.model, one_layer)

        return scan_layers(self.model, body, x_BSD, layers)

    def _finished(
        self, x_xBSD: jax.Array, balance_LxB: Balance | None
    ) -> tuple[jax.Array, Balance | None]:
        """Returns the features after all layers, and the balance of the experts in all of them."""
        with jax.named_scope("norm"):
            features_xBSD = self.final_norm(x_xBSD)
        if balance_LxB is None:
            return features_xBSD, None
        loss_LxB, load_LxBE = balance_LxB
        if load_LxBE is None:
            return features_xBSD, Balance(jnp.mean(loss_LxB, axis=0), None)
        load_LE = jnp.sum(load_LxBE, axis=tuple(range(1, load_LxBE.ndim - 1)))
        return features_xBSD, Balance(jnp.mean(loss_LxB, axis=0), load_LE)

    def embedded(
        self,
        tokens_BS: jax.Array,
        positions_BS: jax.Array,
        dropout_keys_BS: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the residual stream (B, S, D) before the first layer."""
        x_BSD = self.embedding(tokens_BS, self.dtype)
        if self.model.scale_embeddings:
            x_BSD = x_BSD * jnp.asarray(self.model.d_model**0.5, self.dtype)
        if self.model.max_positions is not None:
            x_BSD = x_BSD + self.positions(positions_BS, self.dtype)
        rate = self.model.dropout
        return dropout.dropout(x_BSD, dropout_keys_BS, 0, dropout.EMBEDDING, rate)

    def output_kernels(self, kernel_DV: jax.Array) -> jax.Array:
        """Returns a copy of `output_kernel` per token shard, (R, D, V), in the compute dtype.

        Inside a loop, each device then uses its own whole kernel and sums its gradient locally. The
        kernel is gathered once before the loop, and its gradient is scattered once after it.
        """
        kernel_DV = self._gathered(kernel_DV)
        copies_RDV = jnp.broadcast_to(kernel_DV, (token_shards(), *kernel_DV.shape))
        return constrain(copies_RDV, "tokens", None, "vocab")

    def logits(self, x_BSD: jax.Array, kernel: jax.Array | None = None) -> jax.Array:
        """Returns logits (B, S, V) in float32, soft-capped if the model has a cap.

        Logits of padding tokens are MASKED.
        `kernel` is a result of `output_kernels`: B is then R. It defaults to `output_kernel`.
        """
        split = ("batch", "sequence") if kernel is None else ("tokens", None)
        kernel = self._gathered(self.output_kernel) if kernel is None else kernel
        logits_BSV = logits_product(x_BSD, kernel)
        logits_BSV = constrain(logits_BSV, *split, "vocab")
        logits_BSV = softcapped(logits_BSV, self.model.final_logit_softcap)
        return jnp.where(jnp.arange(kernel.shape[-1]) < self.vocabulary.size, logits_BSV, MASKED)

    @property
    def output_kernel(self) -> jax.Array:
        """Output weights (D, V), in their stored layout."""
        if self.model.tied_embeddings:
            return self.embedding.table[...].T
        return self.output.kernel[...]

    def _gathered(self, kernel_DV: jax.Array) -> jax.Array:
        return gathered(kernel_DV.astype(self.dtype), ("embed", "vocab"))

    def empty_cache(self, rows: int, positions: int) -> Cache:
        """Returns an empty cache for `rows` sequences of up to `positions` tokens."""
        first, second = (
            jnp.zeros((self.model.layers, rows, positions, *widths), self.dtype)
            for widths in cache_widths(self.model)
        )
        return first, second

    def decode(
        self, tokens_B1: jax.Array, position: jax.Array, cache: Cache, window: int
    ) -> tuple[jax.Array, Cache]:
        """Returns the logits (B, 1, V) of the token after `position`, and the new cache.

        Attention covers the last `window` positions, `position` included.
        """
        x_B1D = self.embedded(tokens_B1, jnp.full(tokens_B1.shape, position))
        positions_W = jnp.arange(cache[0].shape[2])

        def body(graph: Any, of_layer: int | None) -> Body:
            seen_W = positions_W > position - min(window, of_layer or window)
            mask_B11W = (seen_W & (positions_W <= position))[None, None, None, :]

            def one_layer(x_B1D: jax.Array, layer: tuple[nnx.State, KeyValue]):
                weights, cache_BWKh = layer
                module = nnx.merge(graph, weights)
                return module.decode(x_B1D, position, mask_B11W, cache_BWKh, of_layer)

            return one_layer

        parts = []
        for stack in layer_stacks(self.model):
            graph, stacked = self._layers(stack)
            last = stack.first + stack.count
            own = jax.tree.map(
                lambda x, a=stack.first, b=last: in_rounds(x[a:b], self._rounds), cache
            )

            def apply(x_B1D: jax.Array, layers: Any, graph: Any = graph) -> tuple[jax.Array, Any]:
                return scan_layers(self.model, partial(body, graph), x_B1D, layers)

            x_B1D, part = self._through_layers(apply, x_B1D, (stacked, own))
            parts.append(part)
        cache = jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts)
        return self.logits(self.final_norm(x_B1D)), cache

    def _through_layers(
        self, apply: Callable[..., Any], x_B1D: jax.Array, layers: Any
    ) -> tuple[jax.Array, Any]:
        """Applies layers on all stages to one position; returns its stream and the results."""
        if stages() == 1:
            return apply(x_B1D, layers)
        x_MB1D, results_LM = through_stages(
            lambda x_B1D, layers, _: apply(x_B1D, layers),
            x_B1D[None],
            layers,
            None,
            rounds=self.rounds,
            unroll=not self.model.scan_layers,
        )
        return x_MB1D[0], jax.tree.map(lambda x: x[:, 0], results_LM)


def _stacked_layers(rngs: nnx.Rngs, stack: Stack, moe: MoEKind, chunks: int) -> Layer:
    """Returns layers as one module whose arrays have a leading dim for the layer."""

    @nnx.split_rngs(splits=stack.count)
    @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layer"})
    def layers(rngs: nnx.Rngs) -> Layer:
        return Layer(rngs, stack.model, moe, chunks)

    return layers(rngs)
