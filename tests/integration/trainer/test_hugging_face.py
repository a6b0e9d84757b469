"""Export to and import from Hugging Face's files, without its libraries."""

import json
import math
import weakref
from collections import Counter

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.support.jobs import job_of
from tests.support.model_folders import (
    assert_equal,
    folder_maker,
    loaded,
    params_of,
    plan_of,
    tensors_of,
)
from trainer import hugging_face
from trainer.contract.hugging_face.config import is_hugging_face
from trainer.data import tokenizer
from trainer.hugging_face import importer, tensor_layout
from trainer.hugging_face import tokenizer as interchange_tokenizer
from trainer.hugging_face.safetensors import Weights
from trainer.hugging_face.tensor_layout import Box, layouts

MODELS = {
    "tied": {},
    "untied": {"tied_embeddings": False},
    "one kv head": {"kv_heads": 1},
    "wide heads": {"head_dim": 16, "rope_theta": 5e5, "norm_eps": 1e-6},
    "own vocabulary": {"vocab_size": 300, "tied_embeddings": False},
}
MESHES = [
    {"fsdp": 8},
    {"fsdp": 2, "tensor": 4},  # kv_heads 2 do not divide: replicated; tokens 257 to 384 split
    {"data": 2, "fsdp": 2, "tensor": 2},
]


@pytest.fixture
def exported(tmp_path):
    return folder_maker(tmp_path / "hf")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_is_exported_is_loaded_bit_by_bit(exported, model):
    job = job_of(model=model)
    folder, params = exported(job)
    assert is_hugging_face(folder)
    assert_equal(loaded(folder, job), params)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("model", [MODELS["untied"], MODELS["tied"]], ids=["untied", "tied"])
def test_every_mesh_loads_the_same_numbers_where_they_are_planned(exported, mesh, model):
    job = job_of(model=model, mesh=mesh)
    folder, params = exported(job, devices=8)
    got = loaded(folder, job, devices=8)
    assert_equal(got, params)
    for parameter in plan_of(job, 8).parameters:
        sharding = got[parameter.name].sharding
        assert isinstance(sharding, jax.NamedSharding)
        assert sharding.spec == jax.P(*parameter.spec)


def test_a_split_inside_heads_reads_right_too(exported):
    """No rule splits head_dim today; the layout must not depend on that."""
    job = job_of()
    folder, params = exported(job)
    plan = plan_of(job)
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = {name: [None] * array.ndim for name, array in params.items()}
    specs["layers.attention.query.kernel"] = ["a", None, None, "b"]
    specs["layers.attention.output.kernel"] = [None, "b", "a", None]
    shardings = {name: jax.NamedSharding(mesh, jax.P(*spec)) for name, spec in specs.items()}
    with hugging_face.opened(folder, job) as read:
        got = {one.name: read(one.name, one.shape, shardings[one.name]) for one in plan.parameters}
    assert_equal(got, params)


@pytest.mark.parametrize("strip", [1, 7, 8])
def test_strips_of_any_size_make_the_whole(exported, monkeypatch, strip):
    monkeypatch.setattr(tensor_layout, "STRIP", strip)
    job = job_of(model=MODELS["untied"], mesh={"fsdp": 2, "tensor": 4})
    folder, params = exported(job, devices=8)
    assert_equal(loaded(folder, job, devices=8), params)


def test_files_are_split_above_a_size_and_the_index_names_them(exported):
    job = job_of(model=MODELS["untied"])
    folder, params = exported(job, shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    held = {name: file for file in files for name in load_file(folder / file)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(
        array.nbytes for file in files for array in load_file(folder / file).values()
    )
    assert_equal(loaded(folder, job), params)


def test_tensors_have_the_names_and_shapes_of_a_llama(exported):
    folder, params = exported(job_of(model={"layers": 1, "tied_embeddings": False}))
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    tensors = load_file(folder / "model.safetensors")
    layer = "model.layers.0."
    assert {name: array.shape for name, array in tensors.items()} == {
        "model.embed_tokens.weight": (257, 32),
        layer + "input_layernorm.weight": (32,),
        layer + "self_attn.q_proj.weight": (32, 32),
        layer + "self_attn.k_proj.weight": (16, 32),
        layer + "self_attn.v_proj.weight": (16, 32),
        layer + "self_attn.o_proj.weight": (32, 32),
        layer + "post_attention_layernorm.weight": (32,),
        layer + "mlp.gate_proj.weight": (64, 32),
        layer + "mlp.up_proj.weight": (64, 32),
        layer + "mlp.down_proj.weight": (32, 64),
        "model.norm.weight": (32,),
        "lm_head.weight": (257, 32),
    }
    query = params["layers.attention.query.kernel"][0]
    np.testing.assert_array_equal(
        tensors[layer + "self_attn.q_proj.weight"][8:16], query[:, 1].T, err_msg="second head"
    )


def test_what_follows_from_the_config_may_lie_beside_the_weights(exported):
    job = job_of()
    folder, params = exported(job)
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file({**tensors_of(folder), **frequencies}, folder / "model.safetensors")
    assert_equal(loaded(folder, job), params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_loaded_as_float32(exported, dtype):
    job = job_of()
    folder, params = exported(job)
    rounded = {n: a.astype(jax.numpy.dtype(dtype)) for n, a in tensors_of(folder).items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    wanted = {n: a.astype(jax.numpy.dtype(dtype)).astype(np.float32) for n, a in params.items()}
    assert_equal(loaded(folder, job), wanted)


def test_export_in_bfloat16(exported):
    job = job_of()
    folder, params = exported(job, dtype="bfloat16")
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    half = jax.numpy.bfloat16
    assert_equal(
        loaded(folder, job), {n: a.astype(half).astype(np.float32) for n, a in params.items()}
    )


def test_one_parameter_is_held_at_a_time(tmp_path):
    job = job_of(model=MODELS["untied"])
    params = params_of(job, plan_of(job))
    given: list[weakref.ref] = []

    class Lazy(dict):
        def __getitem__(self, name):
            assert not any(ref() is not None for ref in given), "one before is still held"
            array = super().__getitem__(name).copy()
            given.append(weakref.ref(array))
            return array

    hugging_face.export(job, Lazy(params), tmp_path)
    assert len(given) == len(params)


@pytest.fixture
def read(monkeypatch):
    """(tensor, box) of every read."""
    seen: list[tuple[str, Box]] = []
    original = Weights.read

    def recorded(self, name, box):
        seen.append((name, box))
        return original(self, name, box)

    monkeypatch.setattr(Weights, "read", recorded)
    return seen


def test_what_several_devices_hold_is_read_once(exported, read):
    job = job_of(mesh={"data": 2, "fsdp": 2, "tensor": 2})
    folder, _ = exported(job, devices=8)
    loaded(folder, job, devices=8)
    sizes: Counter[str] = Counter()
    for name, box in read:
        sizes[name] += math.prod(part.stop - part.start for part in box)
    assert sizes == {name: array.size for name, array in tensors_of(folder).items()}


PARTS = {
    "layers.mlp.gate.kernel": ((0, 2), (8, 16), (32, 64)),
    "layers.mlp.down.kernel": ((1, 2), (32, 64), (8, 16)),
    "layers.attention.query.kernel": ((0, 1), (8, 16), (1, 3), (0, 8)),
    "layers.attention.output.kernel": ((0, 2), (1, 3), (0, 8), (8, 16)),
    "embedding.table": ((192, 384), (16, 32)),  # tokens 257 to 383 only pad
    "output.kernel": ((0, 16), (288, 384)),  # nothing to read
}


@pytest.mark.parametrize(("name", "bounds"), PARTS.items(), ids=PARTS)
def test_a_devices_part_is_all_that_is_read(exported, read, name, bounds):
    job = job_of(model=MODELS["untied"])
    folder, params = exported(job)
    wanted = next(one for one in layouts(job.decoder, 257) if one.name == name)
    with Weights.open(folder) as weights:
        got = importer.part_of(weights, wanted, bounds)
    there = tuple(slice(*bound) for bound in bounds)
    np.testing.assert_array_equal(got, params[name][there])
    elements = sum(math.prod(part.stop - part.start for part in box) for _, box in read)
    assert elements == np.count_nonzero(got)


def test_the_tokenizer_has_each_byte_once_and_the_separator_after_them():
    files = interchange_tokenizer.files(job_of(data={"seq_len": 64}).data)
    made = files["tokenizer.json"]
    vocabulary = made["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert all(vocabulary[chr(byte)] == byte for byte in b"az09!~")
    assert all(len(sign) == 1 and not sign.isspace() for sign in vocabulary)
    assert [token["id"] for token in made["added_tokens"]] == [tokenizer.BYTES.eos_id]
    assert files["tokenizer_config.json"]["model_max_length"] == 64
