# pyright: reportMissingImports=false
"""The large model of benchmarks/gpu.py in PyTorch: what a short program of one's own reaches.

`python -m benchmarks.gpu_torch SETTINGS.json` trains on random tokens and prints one line of JSON:
the seconds of each measured step. Weights, gradients and moments are float32, products bfloat16
(autocast). Attention is cuDNN's, or else PyTorch's flash attention. Model and loss are compiled,
and AdamW is fused.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Kernels of attention, the fastest on a Hopper GPU first."""
Tensor = Any
"""A torch.Tensor: this project's environment has no PyTorch."""


class Layer(nn.Module):
    """Attention and SwiGLU, each with a norm of its input."""

    def __init__(self, model: Mapping[str, int]):
        super().__init__()
        width, hidden = model["d_model"], model["d_ff"]
        self.heads = model["heads"]
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normal = self.attention_norm(x)
        query, key, value = (
            part(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            _rotated(query, cos, sin), _rotated(key, cos, sin), value, is_causal=True
        )
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normal = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))


class Decoder(nn.Module):
    """The model, which returns the mean loss of a batch."""

    def __init__(self, model: Mapping[str, int], vocabulary: int, length: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, model["d_model"])
        self.layers = nn.ModuleList(Layer(model) for _ in range(model["layers"]))
        self.norm = nn.RMSNorm(model["d_model"])
        self.head = nn.Linear(model["d_model"], vocabulary, bias=False)
        half = model["d_model"] // model["heads"] // 2
        angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().bfloat16())
        self.register_buffer("sin", angles.sin().bfloat16())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens[:, :-1]).bfloat16()
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def main() -> None:
    """Trains, and prints the seconds of each step after the first ones."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    device, length = settings["device"], settings["length"]
    torch.manual_seed(0)
    with torch.device(device):
        model = Decoder(settings["model"], settings["vocabulary"], length)
        shape = (settings["rows"], length + 1)
        tokens = torch.randint(settings["vocabulary"], shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    times = []
    for _ in range(settings["steps"]):
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16), sdpa_kernel(KERNELS, set_priority=True):
            loss = compiled(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        times.append(time.perf_counter() - began)
    print(json.dumps(times[settings["warm_up"] :]))


if __name__ == "__main__":
    main()
