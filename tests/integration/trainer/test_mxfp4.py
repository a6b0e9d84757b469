"""Experts in MXFP4, as in the published files of gpt-oss, load as the numbers they encode."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES
from tests.support.model_folders import assert_equal, folder_maker, loaded, tensors_of
from trainer.contract.config.loader import ConfigError
from trainer.hugging_face import mxfp4

MODEL = FAMILIES["gpt_oss"]


def packed_of(shape: tuple[int, int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random blocks and scales of a tensor (experts, inputs, outputs)."""
    draw = np.random.default_rng(seed)
    experts, inputs, outputs = shape
    blocks = (experts, outputs, inputs // mxfp4.BLOCK, mxfp4.BLOCK // 2)
    scales = draw.integers(120, 130, blocks[:-1], np.uint8)
    return draw.integers(0, 256, blocks, np.uint8), scales


def numbers_of(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decodes with the types of ml_dtypes, one number at a time."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], mxfp4.BLOCK)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    numbers *= scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[..., None]
    return numbers.reshape(*blocks.shape[:2], -1).swapaxes(1, 2)


def test_every_code_with_every_scale_is_decoded() -> None:
    scales = np.arange(252, dtype=np.uint8).reshape(1, -1, 1)  # 6 times the next one overflows
    blocks = np.resize(np.arange(256, dtype=np.uint8), (*scales.shape, 16))
    wanted = numbers_of(blocks, scales)
    np.testing.assert_array_equal(mxfp4.decoded(blocks, scales), wanted)


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2, "tensor": 2}, {"fsdp": 4, "expert": 2}])
def test_blocks_load_like_the_floats_they_encode_on_every_mesh(mesh, tmp_path) -> None:
    devices = int(np.prod(list(mesh.values())))
    job = job_of(model=MODEL, mesh=mesh)
    folder, _ = folder_maker(tmp_path / "hf")(job_of(model=MODEL))
    plain, packed = tensors_of(folder), tensors_of(folder)
    for seed, name in enumerate(sorted(plain)):
        if name.endswith(("gate_up_proj", "down_proj")):
            parts = packed_of(plain[name].shape, seed)
            plain[name] = numbers_of(*parts)
            packed |= zip((name + mxfp4.BLOCKS, name + mxfp4.SCALES), parts, strict=True)
            del packed[name]
    plain = {name: np.ascontiguousarray(array) for name, array in plain.items()}
    save_file(plain, folder / "model.safetensors")
    wanted = loaded(folder, job, devices)
    save_file(packed, folder / "model.safetensors")
    assert_equal(loaded(folder, job, devices), wanted)


def test_blocks_without_scales_are_refused(tmp_path) -> None:
    folder, _ = folder_maker(tmp_path / "hf")(job_of(model=MODEL))
    tensors = tensors_of(folder)
    name = "model.layers.0.mlp.experts.down_proj"
    tensors[name + mxfp4.BLOCKS], _ = packed_of(tensors.pop(name).shape, 0)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError) as error:
        loaded(folder, job_of(model=MODEL))
    assert [line.split(": ")[1] for line in error.value.lines] == [
        f"{name} is missing",
        f"{name}{mxfp4.BLOCKS} is unexpected",
    ]
