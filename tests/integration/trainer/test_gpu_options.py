"""The compiler knows every option of the step on GPUs, and takes its value."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from trainer.contract.config.job import Deadlines
from trainer.step import compiler_options, gpu_options

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gpus.md"


def mesh_of(devices: int) -> Any:
    """What the options read of a mesh of GPUs."""
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    return SimpleNamespace(devices=np.array([gpu] * devices, dtype=object), size=devices)


def all_options() -> dict[str, str]:
    mesh = mesh_of(8)
    deadline = compiler_options.hang_deadline(mesh, Deadlines())
    return compiler_options.of_step(mesh) | deadline | compiler_options.SAME_ON_ALL_GPUS


# Every jaxlib has XLA's options for GPUs. An unknown one would give a warning, which is an error.
@pytest.mark.parametrize(("name", "value"), all_options().items())
def test_compiler_takes_the_option(name: str, value: str) -> None:
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    assert compiler_options.compiled(lowered, {name: value})(1.0) == 2.0


def test_one_gpu_has_no_options_of_collectives() -> None:
    assert compiler_options.of_step(mesh_of(1)) == gpu_options.PRODUCTS


def test_option_named_in_xla_flags_is_left_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "--xla_gpu_enable_triton_gemm=true --xla_gpu_pipeline_all_gather_or_so=1 "
        "--xla_gpu_execution_terminate_timeout=1m"
    )
    monkeypatch.setenv("XLA_FLAGS", flags)
    options = compiler_options.of_step(mesh_of(2))
    assert "xla_gpu_enable_triton_gemm" not in options
    assert options["xla_gpu_pipeline_all_gather"].endswith("_ON")
    assert compiler_options.hang_deadline(mesh_of(2), Deadlines()) == {}


def test_hang_deadline_is_longer_than_a_host_may_wait() -> None:
    options = compiler_options.hang_deadline(mesh_of(1), Deadlines(restore_s=4000.0))
    assert options == {gpu_options.HANG_DEADLINE: "4000s"}


def test_the_page_lists_every_option_with_its_value() -> None:
    rows = dict(re.findall(r"^\| `(xla_\w+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE))
    options = compiler_options.of_step(mesh_of(8))
    options |= compiler_options.hang_deadline(mesh_of(8), Deadlines())
    assert rows == options
