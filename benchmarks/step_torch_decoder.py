# pyright: reportMissingImports=false
"""A decoder and its training step in PyTorch, for step_torch.py.

`python -m benchmarks.step_torch_decoder FOLDER [--compile]` reads what step_torch_slipway.py has
written, and makes steps on that batch. It has what the quickstart uses: RMSNorm, rotary positions,
grouped-query attention inside documents, SwiGLU, tied embeddings, and Muon with AdamW.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.step_torch import THREADS, serve

Tensor = Any
"""A torch.Tensor: this project's environment has no PyTorch."""
COEFFICIENTS, ROUNDS, RMS = (3.4445, -4.7750, 2.0315), 5, 0.2
"""Constants of trainer/step/muon.py, which cites their sources."""


class Layer(nn.Module):
    """Attention and SwiGLU, each with a norm of its input."""

    def __init__(self, model: Mapping[str, Any], arrays: Mapping[str, Tensor]):
        super().__init__()
        self.eps, self.head_dim = model["norm_eps"], model["head_dim"]
        self.group = model["heads"] // model["kv_heads"]
        self.attention_norm = nn.Parameter(arrays["attention_norm.scale"])
        self.mlp_norm = nn.Parameter(arrays["mlp_norm.scale"])
        inputs = {"output": model["heads"] * model["head_dim"], "down": model["d_ff"]}
        for part in ("query", "key", "value", "output"):
            kernel = arrays[f"attention.{part}.kernel"]
            setattr(self, part, _weight(kernel, inputs.get(part, model["d_model"])))
        for part in ("gate", "up", "down"):
            setattr(
                self,
                part,
                _weight(arrays[f"mlp.{part}.kernel"], inputs.get(part, model["d_model"])),
            )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        normal = functional.rms_norm(x, x.shape[-1:], self.attention_norm, self.eps)
        query, key, value = (
            functional.linear(normal, weight).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        key, value = (part.repeat_interleave(self.group, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + functional.linear(mixed.transpose(1, 2).flatten(2), self.output)
        normal = functional.rms_norm(x, x.shape[-1:], self.mlp_norm, self.eps)
        hidden = functional.silu(functional.linear(normal, self.gate))
        return x + functional.linear(hidden * functional.linear(normal, self.up), self.down)


class Decoder(nn.Module):
    """The model, which returns the mean loss of a batch."""

    def __init__(self, model: Mapping[str, Any], tokens: int, arrays: Mapping[str, Tensor]):
        super().__init__()
        self.eps = model["norm_eps"]
        half = model["head_dim"] // 2
        self.frequencies = model["rope_theta"] ** (-torch.arange(half) / half)
        self.table = nn.Parameter(arrays["embedding.table"][:tokens].clone())
        self.final_norm = nn.Parameter(arrays["final_norm.scale"])
        stacked = {
            name.removeprefix("layers."): array
            for name, array in arrays.items()
            if name.startswith("layers.")
        }
        self.layers = nn.ModuleList(
            Layer(model, {name: array[layer].clone() for name, array in stacked.items()})
            for layer in range(model["layers"])
        )

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        segments, positions = batch["segments"], batch["positions"]
        angles = positions[:, None, :, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        seen = segments[:, None, :, None] == segments[:, None, None, :]
        seen = seen & (positions[:, None, :, None] >= positions[:, None, None, :])
        mask = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)
        x = functional.embedding(batch["tokens"], self.table)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        x = functional.rms_norm(x, x.shape[-1:], self.final_norm, self.eps)
        logits = functional.linear(x, self.table).flatten(0, 1)
        losses = functional.cross_entropy(logits, batch["targets"].flatten(), reduction="none")
        weights = batch["weights"].flatten()
        return (losses * weights).sum() / weights.sum()


class Muon:
    """Muon for the layers' matrices, those of one shape together."""

    def __init__(self, settings: Mapping[str, Any], matrices: list[Any], orthogonal: Callable):
        self._settings, self._orthogonal = settings, orthogonal
        shapes = {matrix.shape for matrix in matrices}
        self._groups = [[one for one in matrices if one.shape == shape] for shape in shapes]
        self._moments = [torch.zeros_like(torch.stack(group)) for group in self._groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Updates the matrices by their gradients."""
        decay, momentum = self._settings["weight_decay"], self._settings["momentum"]
        for group, moment in zip(self._groups, self._moments, strict=True):
            gradients = torch.stack([matrix.grad for matrix in group])
            moment.mul_(momentum).add_(gradients)
            steps = self._orthogonal(gradients.add_(moment, alpha=momentum))
            size = RMS * max(moment.shape[1:]) ** 0.5
            torch._foreach_mul_(group, 1 - rate * decay)
            torch._foreach_add_(group, list(steps.unbind()), alpha=-rate * size)


class Training:
    """The model, its optimizers and its batch."""

    def __init__(self, folder: Path, *, is_compiled: bool):
        job = json.loads((folder / "job.json").read_text())
        start = {name: torch.from_numpy(x) for name, x in np.load(folder / "start.npz").items()}
        arrays, self._batch = _part(start, "params."), _part(start, "batch.")
        self._batch |= {name: self._batch[name].long() for name in ("tokens", "targets")}
        self._job, self._settings = job, job["optimizer"]
        self._model = Decoder(job["model"], job["tokens"], arrays)
        self._loss: Callable[..., Any] = torch.compile(self._model) if is_compiled else self._model
        orthogonal = torch.compile(_orthogonal, dynamic=False) if is_compiled else _orthogonal
        named = list(self._model.layers.named_parameters())
        matrices = [weight for _, weight in named if weight.ndim == 2]
        self._muon = Muon(self._settings, matrices, orthogonal)
        norms = [weight for _, weight in named if weight.ndim == 1]
        self._adam = torch.optim.AdamW(
            [
                {"params": [self._model.table], "weight_decay": self._settings["weight_decay"]},
                {"params": [*norms, self._model.final_norm], "weight_decay": 0.0},
            ],
            betas=(self._settings["beta1"], self._settings["beta2"]),
            eps=self._settings["eps"],
            fused=True,
        )
        self._updates = 0

    def make(self, count: int) -> list[float]:
        """Makes steps; returns their losses."""
        return [self._step() for _ in range(count)]

    def _step(self) -> float:
        self._model.zero_grad(set_to_none=True)
        loss = self._loss(self._batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), self._settings["clip_norm"])
        rate = self._rate()
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._muon.step(rate)
        self._updates += 1
        return loss.item()

    def _rate(self) -> float:
        """Returns the rate of the next update: a linear climb, then a cosine."""
        settings, warmup = self._settings, self._settings["warmup_steps"]
        peak, least = settings["learning_rate"], settings["final_fraction"]
        if self._updates < warmup:
            return peak * (self._updates + 1) / warmup
        done = min(1.0, (self._updates - warmup + 1) / (self._job["steps"] - warmup))
        return peak * (least + (1 - least) * (1 + math.cos(math.pi * done)) / 2)


def _orthogonal(x: Tensor) -> Tensor:
    """Returns Newton-Schulz iterations of stacked matrices, as trainer/step/muon.py does."""
    if x.shape[1] > x.shape[2]:
        return _orthogonal(x.mT).mT
    x = x / (x.square().sum(dim=(1, 2), keepdim=True).sqrt() + 1e-8)
    first, second, third = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), x, beta=first
        )
    return x


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _weight(kernel: Tensor, inputs: int) -> Any:
    return nn.Parameter(kernel.reshape(inputs, -1).T.contiguous())


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = tensors.items()
    return {name.removeprefix(prefix): x for name, x in found if name.startswith(prefix)}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    serve(Training(Path(sys.argv[1]), is_compiled="--compile" in sys.argv).make)
