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

from tests.trainer.jobs import corpus_of, job_of, world_of
from trainer import hugging_face
from trainer import mesh as meshes
from trainer.data import tokenizer
from trainer.hugging_face import importer, layout
from trainer.hugging_face import tokenizer as interchange_tokenizer
from trainer.hugging_face.layout import Box
from trainer.hugging_face.weights import Weights
from trainer.spec.config import ConfigError
from trainer.spec.resolve import resolve, vocab_size

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


def plan_of(job, devices=1):
    return resolve(job, world_of(1, devices), corpus_of(job))


def params_of(job, plan):
    """Random numbers, with zeros for the tokens that only pad."""
    draw = np.random.default_rng(0)
    arrays = {}
    for parameter in plan.parameters:
        array = draw.standard_normal(parameter.shape, np.float32)
        if "vocab" in parameter.axes:
            np.moveaxis(array, parameter.axes.index("vocab"), 0)[vocab_size(job) :] = 0
        arrays[parameter.name] = array
    return arrays


def loaded(path, job, devices=1):
    plan = plan_of(job, devices)
    mesh = meshes.build(plan, jax.devices()[:devices])
    return hugging_face.load(path, job, plan, meshes.parameter_shardings(plan, mesh))


@pytest.fixture
def exported(tmp_path):
    """Makes a folder: exported(job, **options) -> the folder, the parameters."""

    def make(job, devices=1, **options):
        params = params_of(job, plan_of(job, devices))
        hugging_face.export(job, params, tmp_path / "hf", **options)
        return tmp_path / "hf", params

    return make


def assert_equal(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == np.float32
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_is_exported_is_loaded_bit_by_bit(exported, model):
    job = job_of(model=model)
    folder, params = exported(job)
    assert hugging_face.is_hugging_face(folder)
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
    assert_equal(hugging_face.load(folder, job, plan, shardings), params)


@pytest.mark.parametrize("strip", [1, 7, 8])
def test_strips_of_any_size_make_the_whole(exported, monkeypatch, strip):
    monkeypatch.setattr(layout, "STRIP", strip)
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
    save_file({**_tensors(folder), **frequencies}, folder / "model.safetensors")
    assert_equal(loaded(folder, job), params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_loaded_as_float32(exported, dtype):
    job = job_of()
    folder, params = exported(job)
    rounded = {n: a.astype(jax.numpy.dtype(dtype)) for n, a in _tensors(folder).items()}
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
    assert sizes == {name: array.size for name, array in _tensors(folder).items()}


PARTS = {
    "layers.feed_forward.gate.kernel": ((0, 2), (8, 16), (32, 64)),
    "layers.feed_forward.down.kernel": ((1, 2), (32, 64), (8, 16)),
    "layers.attention.query.kernel": ((0, 1), (8, 16), (1, 3), (0, 8)),
    "layers.attention.output.kernel": ((0, 2), (1, 3), (0, 8), (8, 16)),
    "embedding.table": ((192, 384), (16, 32)),  # tokens 257 to 383 only pad
    "output.kernel": ((0, 16), (288, 384)),  # nothing to read
}


@pytest.mark.parametrize(("name", "bounds"), PARTS.items(), ids=PARTS)
def test_a_devices_part_is_all_that_is_read(exported, read, name, bounds):
    job = job_of(model=MODELS["untied"])
    folder, params = exported(job)
    wanted = next(one for one in layout.layouts(job.model, 257) if one.name == name)
    with Weights.open(folder) as weights:
        got = importer.part_of(weights, wanted, bounds)
    there = tuple(slice(*bound) for bound in bounds)
    np.testing.assert_array_equal(got, params[name][there])
    elements = sum(math.prod(part.stop - part.start for part in box) for _, box in read)
    assert elements == np.count_nonzero(got)


def test_every_key_that_differs_is_named_with_both_values(exported):
    folder, _ = exported(job_of())
    other = job_of(
        model={"layers": 3, "d_model": 64, "heads": 8, "kv_heads": 4, "head_dim": 16, "d_ff": 128,
               "vocab_size": 300, "rope_theta": 5e5, "norm_eps": 1e-6, "tied_embeddings": False}
    )  # fmt: skip
    with pytest.raises(ConfigError) as error:
        loaded(folder, other)
    file = folder / "config.json"
    assert error.value.problems == [
        f"{file}: hidden_size is 32, the job's model.d_model is 64",
        f"{file}: intermediate_size is 64, the job's model.d_ff is 128",
        f"{file}: num_hidden_layers is 2, the job's model.layers is 3",
        f"{file}: num_attention_heads is 4, the job's model.heads is 8",
        f"{file}: num_key_value_heads is 2, the job's model.kv_heads is 4",
        f"{file}: head_dim is 8, the job's model.head_dim is 16",
        f"{file}: vocab_size is 257, the job's model.vocab_size is 300",
        f"{file}: rope_theta is 10000.0, the job's model.rope_theta is 500000.0",
        f"{file}: rms_norm_eps is 1e-05, the job's model.norm_eps is 1e-06",
        f"{file}: tie_word_embeddings is true, the job's model.tied_embeddings is false",
    ]


OTHER_KINDS = {
    "another family": ({"model_type": "qwen3"}, ["model_type is 'qwen3'"]),
    "biases": ({"attention_bias": True, "mlp_bias": True}, ["attention_bias", "mlp_bias"]),
    "activation": ({"hidden_act": "gelu"}, ["hidden_act is 'gelu', this trainer knows 'silu'"]),
    "scaled positions": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 32.0}},
        ["rope_type is 'llama3', this trainer knows 'default'"],
    ),
    "scaled positions, as they were": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        ["rope_type is 'linear', this trainer knows 'default'"],
    ),
    "positions of transformers 5": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ["rope_theta is 500000.0, the job's model.rope_theta is 10000.0"],
    ),
    "nothing said": ({"hidden_size": None}, ["hidden_size is nothing, the job's model.d_model"]),
}


@pytest.mark.parametrize(("change", "said"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_models_of_another_kind_are_refused(exported, change, said):
    folder, _ = exported(job_of())
    _rewrite(folder / "config.json", change)
    with pytest.raises(ConfigError) as error:
        loaded(folder, job_of())
    assert len(error.value.problems) == len(said)
    for problem, words in zip(error.value.problems, said, strict=True):
        assert words in problem


def test_keys_that_a_llama_has_by_default_need_not_be_said(exported):
    job = job_of(model={"kv_heads": 4, "norm_eps": 1e-6, "tied_embeddings": False})
    folder, params = exported(job)
    defaults = ["num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "hidden_act",
                "tie_word_embeddings", "attention_bias", "mlp_bias"]  # fmt: skip
    _rewrite(folder / "config.json", dict.fromkeys(defaults))
    assert_equal(loaded(folder, job), params)


def test_all_tensors_that_do_not_fit_are_named(exported):
    job = job_of()
    folder, _ = exported(job)
    tensors = _tensors(folder)
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.zeros((256, 32), np.float32)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as error:
        loaded(folder, job)
    shapes = "has the shape (256, 32), the job's model (257, 32)"
    assert sorted(problem.split(": ", 1)[1] for problem in error.value.problems) == [
        "lm_head.weight is unexpected",
        f"model.embed_tokens.weight {shapes}",
        "model.layers.0.mlp.up_proj.weight is of I8, not of F32, BF16, F16",
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.norm.weight is missing",
    ]


def _cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BROKEN = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither"),
    "a cut file": (_cut, "model.safetensors: cannot be read"),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"
    ),
    "a config of a list": (
        lambda folder: (folder / "config.json").write_text("[]"), "expected keys and values"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("breaks", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_folders_are_told_with_the_file(exported, breaks, said):
    folder, _ = exported(job_of())
    breaks(folder)
    with pytest.raises(ConfigError, match=said):
        loaded(folder, job_of())


def test_a_file_that_the_index_names_must_be_there(exported):
    folder, _ = exported(job_of(), shard_bytes=20_000)
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-.*cannot be read"):
        loaded(folder, job_of())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 1}')
    with pytest.raises(ConfigError, match="not an index"):
        loaded(folder, job_of())


def test_export_refuses_a_full_folder_and_another_models_parameters(tmp_path):
    job = job_of()
    params = params_of(job, plan_of(job))
    with pytest.raises(ValueError, match=r"unexpected \['output.kernel'\]"):
        hugging_face.export(job, {**params, "output.kernel": params["embedding.table"]}, tmp_path)
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        hugging_face.export(job, params, tmp_path)


def test_a_broken_off_export_is_no_folder_of_hugging_face(tmp_path):
    job = job_of()
    params = params_of(job, plan_of(job))
    with pytest.raises(AssertionError, match="final_norm"):
        hugging_face.export(job, {**params, "final_norm.scale": np.zeros(3)}, tmp_path)
    assert not hugging_face.is_hugging_face(tmp_path)


def test_the_tokenizer_has_each_byte_once_and_the_separator_after_them():
    files = interchange_tokenizer.files(64)
    made = files["tokenizer.json"]
    vocabulary = made["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert all(vocabulary[chr(byte)] == byte for byte in b"az09!~")
    assert all(len(sign) == 1 and not sign.isspace() for sign in vocabulary)
    assert [token["id"] for token in made["added_tokens"]] == [tokenizer.SEPARATOR]
    assert files["tokenizer_config.json"]["model_max_length"] == 64


def _tensors(folder):
    return load_file(folder / "model.safetensors")


def _rewrite(path, changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
