"""Trains a model of 1.5 billion parameters on one GPU with the trainer: tokens/s and MFU.

    python -m benchmarks.gpu [PART ...] [--rows N] [--json FILE] [--tiny]

Parts, in this order, all by default:

    product    a bare product of two matrices of 8192^2 in bfloat16: TFLOP/s
    bfloat16   the model at 4,096 tokens, with cuDNN's attention
    unrolled   the same without the loop over layers (model.scan_layers: false)
    packed     the same with packed documents, each by itself
    pytorch    the same model in PyTorch (benchmarks/gpu_torch.py), if that is installed
    losses     200 steps of a small model on the GPU and on the CPU: the differences of the losses
    fp8        the unrolled model with products in fp8

Each part runs `python -m trainer` by hand in processes of its own: Ray, a launcher and a network
are not needed. All end after BUDGET_S, and parts that would start later are left out. Prints a line
for each figure. Exits with 1 when the MFU in bfloat16 is below REQUIRED_MFU, or losses differ by
more than their limit, or a part failed; with 2 when a package or the GPU is missing.

`--rows` is the number of rows in a step; by default what fits the GPU. `--tiny` runs the same code
on CPU devices with small models, and has no limit of the MFU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gpu_trainer import OutOfMemoryError, PartError, Trainer, pytorch_times_s

PARTS = ("product", "bfloat16", "unrolled", "packed", "pytorch", "losses", "fp8")
BUDGET_S = 480.0
REQUIRED_MFU, GOAL_MFU = 0.50, 0.58
PEAK_TFLOPS = 989.4
"""Peak of an H100 or H200 in bfloat16: trainer/contract/planning/chips.py."""
WARM_UP, MEASURED = 4, 12
"""Steps before the measured ones, and those."""
SIZE, PRODUCTS, ROUNDS = 8192, 50, 3
VOCABULARY, END = 32_768, "<|endoftext|>"
DOCUMENT_TOKENS = 600
"""Mean length of a packed document."""
LARGE = {
    "layers": 16, "d_model": 2560, "heads": 20, "kv_heads": 20, "d_ff": 7680,
    "tied_embeddings": False, "remat": "dots",
}  # fmt: skip
"""1.53 billion parameters."""
TINY = {**LARGE, "layers": 2, "d_model": 128, "heads": 2, "kv_heads": 2, "d_ff": 384}
ROWS_BY_GIB = ((120, 16), (60, 8), (0, 4))
"""Memory of a GPU in GiB from which a step has so many rows."""
SMALL = {"layers": 2, "d_model": 128, "heads": 2, "kv_heads": 1, "d_ff": 384}
LOSS_STEPS, TINY_LOSS_STEPS = 200, 10
WITHOUT_DOCUMENTS = "data.mask_across_documents=false"
UNROLLED = "model.scan_layers=false"
OF_PARTS = {
    "bfloat16": (WITHOUT_DOCUMENTS,),
    "unrolled": (WITHOUT_DOCUMENTS, UNROLLED),
    "packed": (UNROLLED,),
    "fp8": (WITHOUT_DOCUMENTS, UNROLLED, "model.precision=fp8"),
}
SUPERVISED = "--xla_gpu_execution_terminate_timeout=inf"
"""Turns off the deadline of steps, which a trainer has only without a launcher; it costs time."""
IN_BFLOAT16 = "model.compute_dtype=bfloat16"
LONG = ("data.seq_len=1024", "data.global_batch=4")
"""Rows in which cuDNN has room for four documents; some have more."""
PACKAGES = (
    "etils", "flax", "grain", "jax", "jinja2", "numpy", "optax", "orbax.checkpoint", "pydantic",
    "ruamel.yaml", "safetensors", "tokenizers",
)  # fmt: skip
"""What the trainer imports. It needs none of the launcher's packages."""


@dataclass(frozen=True)
class Comparison:
    """A small job that trains on the GPU and on the CPU."""

    name: str
    overrides: tuple[str, ...]
    limit: float
    """Largest mean of the relative differences of the losses."""
    environment: dict[str, str] = field(default_factory=dict)


COMPARISONS = (
    Comparison(
        "float32",
        ("model.compute_dtype=float32",),
        1e-3,
        # By default, GPUs round the operands of such products to 10 bits.
        {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    ),
    Comparison("triton", (IN_BFLOAT16,), 1e-2),
    Comparison("cudnn_packed", (IN_BFLOAT16, *LONG), 1e-2),
    Comparison("cudnn", (IN_BFLOAT16, WITHOUT_DOCUMENTS), 1e-2),
)


@dataclass(frozen=True)
class Bench:
    """Where the runs are, how large, and the time.monotonic() at which the last one ends."""

    folder: Path
    rows: int
    is_tiny: bool
    deadline: float

    def trainer(
        self, name: str, job: dict[str, Any], overrides: tuple[str, ...], *, on_cpu: bool,
        **environment: str,
    ) -> Trainer:  # fmt: skip
        flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), SUPERVISED]))
        environment = {"XLA_FLAGS": flags, **environment}
        return Trainer(self.folder, name, job, overrides, on_cpu=on_cpu, environment=environment)


def main() -> int:
    """Runs the parts and prints their figures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rows", type=int, help="rows of a step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tiny", action="store_true", help="small models on CPU devices")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown: {', '.join(unknown)}. Parts: {', '.join(PARTS)}")
    gpu, gib = ("cpu", 0.0) if options.tiny else _gpu()
    if problem := _missing(gpu):
        print(problem, file=sys.stderr)
        return 2
    by_memory = next(rows for least, rows in ROWS_BY_GIB if gib >= least)
    rows = options.rows or (2 if options.tiny else by_memory)
    print(f"{gpu}, {rows} rows in a step", flush=True)
    began, figures, kept = time.monotonic(), dict[str, Any](gpu=gpu, rows=rows), True
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rows, options.tiny, began + BUDGET_S)
        _write_tokens(bench)
        for part in [part for part in PARTS if part in (options.parts or PARTS)]:
            kept &= _run(part, bench, figures)
            if options.json:
                options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if kept else 1


def _run(part: str, bench: Bench, figures: dict[str, Any]) -> bool:
    """Runs a part and adds its figures; returns whether it ended within its limits."""
    try:
        if time.monotonic() > bench.deadline:
            raise PartError(f"left out: {BUDGET_S:.0f} s are over")
        if part == "product":
            figures[part] = _product(bench)
        elif part == "pytorch":
            figures[part] = _pytorch(bench, figures)
        elif part == "losses":
            figures[part] = _losses(bench)
            return all(one["mean"] <= one["limit"] for one in figures[part])
        else:
            figures[part] = _trained(part, bench)
            return part != "bfloat16" or bench.is_tiny or figures[part]["mfu"] >= REQUIRED_MFU
    except PartError as error:
        figures[part] = str(error)
        print(f"{part} FAILED: {error}", flush=True)
        return False
    return True


def _product(bench: Bench) -> dict[str, float]:
    size = 256 if bench.is_tiny else SIZE
    # A process of its own: JAX takes most of the GPU's memory, and keeps it.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        rate = 2 * size**3 / process.submit(_time_product, size, bench.is_tiny).result() / 1e12
    print(f"product {size}^3: {rate:.4g} TFLOP/s, {rate / PEAK_TFLOPS:.1%} of the peak", flush=True)
    return {"tflops": rate}


def _time_product(size: int, on_cpu: bool) -> float:
    """Returns the seconds of a product of random matrices in bfloat16, the median of rounds."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu" if on_cpu else "cuda,cpu")
    left, right = (
        jax.random.normal(key, (size, size), jnp.bfloat16)
        for key in jax.random.split(jax.random.key(0))
    )
    multiply = jax.jit(jnp.matmul).lower(left, right).compile()
    times = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready([multiply(left, right) for _ in range(PRODUCTS)][-1])
        times.append((time.perf_counter() - began) / PRODUCTS)
    return statistics.median(times[1:])


def _trained(part: str, bench: Bench) -> dict[str, Any]:
    """Trains the large model; prints and returns the figures of its steps."""
    overrides = OF_PARTS[part]
    try:
        lines = _steps(part, bench, *overrides)
    except OutOfMemoryError:
        rows = bench.rows // 2
        print(f"{part}: {bench.rows} rows do not fit the GPU's memory. With {rows}:", flush=True)
        lines = _steps(f"{part}-half", bench, *overrides, f"data.global_batch={rows}")
    steps = lines[WARM_UP:]
    seconds, tokens_per_s = (
        statistics.median(step[name] for step in steps) for name in ("step_time_s", "tokens_per_s")
    )
    mfu = None if bench.is_tiny else statistics.median(step["mfu"] for step in steps)
    shown = "no MFU on CPU" if mfu is None else f"MFU {mfu:.1%} of {PEAK_TFLOPS} TFLOP/s"
    if part in ("bfloat16", "unrolled"):
        shown += f" (required {REQUIRED_MFU:.0%}, goal {GOAL_MFU:.0%})"
    print(
        f"{part}: {tokens_per_s:,.0f} tokens/s, {shown}, {seconds:.3f} s a step, "
        f"loss {lines[0]['loss']:.3f} to {lines[-1]['loss']:.3f}",
        flush=True,
    )
    return {"tokens_per_s": tokens_per_s, "mfu": mfu, "step_time_s": seconds}


def _steps(name: str, bench: Bench, *overrides: str) -> list[dict[str, Any]]:
    """Trains the large model; returns the metrics of its steps."""
    job = _large_job(bench)
    with bench.trainer(name, job, overrides, on_cpu=bench.is_tiny) as trainer:
        return trainer.metrics(bench.deadline)


def _large_job(bench: Bench) -> dict[str, Any]:
    return {
        "steps": WARM_UP + MEASURED,
        "model": TINY if bench.is_tiny else LARGE,
        "data": {
            "source": "tokens",
            "path": "tokens.npy",
            "tokenizer": "tokenizer.json",
            "seq_len": 128 if bench.is_tiny else 4096,
            "global_batch": bench.rows,
        },
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": WARM_UP},
        **_nothing_beside_steps(),
    }


def _nothing_beside_steps() -> dict[str, None]:
    return {"eval": None, "sample": None, "checkpoint": None}


def _pytorch(bench: Bench, figures: Mapping[str, Any]) -> dict[str, float] | None:
    """Trains the large model in PyTorch; prints its tokens/s, and ours as shares of them.

    Returns None where PyTorch is not installed.
    """
    if not _is_installed("torch"):
        print("pytorch left out: torch is not installed", flush=True)
        return None
    rows = bench.rows
    try:
        seconds = _pytorch_step_s(bench, rows)
    except OutOfMemoryError:
        rows //= 2
        print(f"pytorch: {bench.rows} rows do not fit the GPU's memory. With {rows}:", flush=True)
        seconds = _pytorch_step_s(bench, rows)
    tokens_per_s = rows * _large_job(bench)["data"]["seq_len"] / seconds
    print(f"pytorch: {tokens_per_s:,.0f} tokens/s, {seconds:.3f} s a step", flush=True)
    for name in ("bfloat16", "unrolled"):
        if isinstance(ours := figures.get(name), dict):
            print(f"    {name}: {ours['tokens_per_s'] / tokens_per_s:.2f} of it", flush=True)
    return {"tokens_per_s": tokens_per_s, "step_time_s": seconds}


def _pytorch_step_s(bench: Bench, rows: int) -> float:
    """Returns the median of the seconds of a step. Raises PartError."""
    settings, job = bench.folder / "pytorch.json", _large_job(bench)
    text = json.dumps(
        {
            "model": job["model"],
            "vocabulary": VOCABULARY,
            "device": "cpu" if bench.is_tiny else "cuda",
            "length": job["data"]["seq_len"],
            "rows": rows,
            "steps": WARM_UP + MEASURED,
            "warm_up": WARM_UP,
        }
    )
    settings.write_text(text, encoding="utf-8")
    return statistics.median(pytorch_times_s(settings, bench.deadline))


def _losses(bench: Bench) -> list[dict[str, Any]]:
    """Trains the small jobs on both devices, all at once; prints how their losses differ."""
    with ExitStack() as running:
        started = [
            [running.enter_context(_small(bench, one, device)) for device in ("gpu", "cpu")]
            for one in COMPARISONS
        ]
        losses = [
            [[line["loss"] for line in trainer.metrics(bench.deadline)] for trainer in both]
            for both in started
        ]
    return [_compared(one, *both) for one, both in zip(COMPARISONS, losses, strict=True)]


def _small(bench: Bench, one: Comparison, device: str) -> Trainer:
    job = {
        "steps": TINY_LOSS_STEPS if bench.is_tiny else LOSS_STEPS,
        "model": SMALL,
        "data": {"source": "stdlib", "seq_len": 256, "global_batch": 16},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10},
        **_nothing_beside_steps(),
    }
    share = {"XLA_CLIENT_MEM_FRACTION": f"{0.9 / len(COMPARISONS):.2f}"}
    return bench.trainer(
        f"{one.name}-{device}",
        job,
        one.overrides,
        on_cpu=bench.is_tiny or device == "cpu",
        **share,
        **one.environment,
    )


def _compared(one: Comparison, gpu: list[float], cpu: list[float]) -> dict[str, Any]:
    apart = [abs(a - b) / b for a, b in zip(gpu, cpu, strict=True)]
    found = {"mean": statistics.mean(apart), "largest": max(apart), "limit": one.limit}
    print(
        f"losses, {one.name}: {len(apart)} steps differ by {found['mean']:.1e} on average (limit "
        f"{one.limit:.0e}) and by {found['largest']:.1e} at most; the last is {gpu[-1]:.4f} on the "
        f"GPU, {cpu[-1]:.4f} on the CPU",
        flush=True,
    )
    return {"name": one.name, **found}


def _write_tokens(bench: Bench) -> None:
    """Writes a tokenizer of words without meaning, and random documents of its tokens."""
    import numpy as np
    from tokenizers import AddedToken, Tokenizer, models

    words = {END: 0} | {f"w{number}": number for number in range(1, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    tokenizer.add_special_tokens([AddedToken(END)])
    tokenizer.save(str(bench.folder / "tokenizer.json"))
    data, random = _large_job(bench)["data"], np.random.default_rng(0)
    count = data["seq_len"] * bench.rows * (WARM_UP + MEASURED) * 2
    tokens = random.integers(1, VOCABULARY, count, np.uint16)
    tokens[random.random(count) < 1 / DOCUMENT_TOKENS] = 0
    np.save(bench.folder / "tokens.npy", tokens)


def _gpu() -> tuple[str, float]:
    """Returns the name of the first GPU and its memory in GiB; ("", 0.0) without one."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "", 0.0
    name, _, mib = lines.splitlines()[0].rpartition(", ")
    return name, int(mib) / 1024


def _missing(gpu: str) -> str:
    """Returns what this machine lacks, or ""."""
    absent = [name for name in PACKAGES if not _is_installed(name)]
    if absent:
        return f"{sys.executable} lacks packages of the trainer: {', '.join(absent)}"
    if not gpu:
        return "nvidia-smi shows no GPU. --tiny runs on CPU devices"
    if gpu != "cpu" and not any(map(_is_installed, ("jax_cuda13_plugin", "jax_cuda12_plugin"))):
        return "JAX has no plugin for CUDA. Install jax[cuda13]"
    return ""


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


if __name__ == "__main__":
    sys.exit(main())
