"""The other side of the interchange: Hugging Face's own code reads what we write, and writes.

    uv run --group interchange pytest -m interchange

Not selected by default: torch is large. Where it is selected, nothing is skipped: a library that is
absent is a failure.
"""

import functools
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES, TYPES
from tests.support.model_folders import loaded, params_of, plan_of
from trainer import hugging_face
from trainer.data import tokenizer
from trainer.hugging_face import mxfp4
from trainer.model import Network

pytestmark = [
    pytest.mark.interchange,
]

MODELS = {
    "tied": {},
    "untied": {"tied_embeddings": False},
    "grouped, wide heads, other positions": {
        "kv_heads": 1, "head_dim": 16, "rope_theta": 5e5, "norm_eps": 1e-6,
    },
    "own vocabulary": {"vocab_size": 300, "tied_embeddings": False, "layers": 3},
}  # fmt: skip
TEXTS = [
    b"def f(x):\n    return x . y  # it 's, <|document|>\t\r\n",
    "Ünïcödé 漢字 🚢 \u00a0\u200b\x00".encode(),
    b"",
    b" leading and trailing ",
]


@pytest.fixture(scope="module")
def torch():
    return import_module("torch")


@pytest.fixture(scope="module")
def transformers():
    return import_module("transformers")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shard_bytes", [10**9, 20_000], ids=["one file", "several files"])
def test_what_we_export_gives_the_same_logits_there(
    torch, transformers, tmp_path, model, shard_bytes
):
    job = job_of(model=model)
    params = _small(params_of(job, plan_of(job)))
    hugging_face.export(job, params, tmp_path / "hf", shard_bytes=shard_bytes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.dtype == torch.float32
    _assert_same_logits(torch, theirs, job, params)


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_export_of_every_family_gives_the_same_logits_there(torch, transformers, tmp_path, kind):
    job = job_of(model=FAMILIES[kind])
    params = _small(params_of(job, plan_of(job)))
    hugging_face.export(job, params, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert theirs.config.model_type == TYPES.get(kind, kind)
    _assert_same_logits(torch, theirs, job, params)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_what_they_save_gives_the_same_logits_here(
    torch, transformers, tmp_path, model, shard_size
):
    job = job_of(model=model)
    theirs = _their_model(torch, transformers, job)
    theirs.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "20KB")
    spread = job_of(model=model, mesh={"fsdp": 2, "tensor": 2})
    params = jax.device_get(loaded(tmp_path, spread, devices=4))
    _assert_same_logits(torch, theirs, job, params)


def test_mxfp4_is_decoded_to_their_numbers(torch):
    theirs = import_module("transformers.integrations.mxfp4")
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (2, 6, 3, mxfp4.BLOCK // 2), np.uint8)
    scales = draw.integers(110, 140, blocks.shape[:-1], np.uint8)
    wanted = theirs.convert_moe_packed_tensors(
        *map(torch.from_numpy, (blocks, scales)), dtype=torch.float32
    )
    np.testing.assert_array_equal(mxfp4.decoded(blocks, scales), wanted.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_of_theirs_is_loaded(torch, transformers, tmp_path, dtype):
    job = job_of()
    theirs = _their_model(torch, transformers, job).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    wide = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    _assert_same_logits(torch, wide, job, loaded(tmp_path, job))


def test_our_folder_saved_by_them_comes_back_bit_by_bit(transformers, tmp_path):
    job = job_of(model={"tied_embeddings": False})
    params = params_of(job, plan_of(job))
    hugging_face.export(job, params, tmp_path / "ours")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    for name, array in loaded(tmp_path / "theirs", job).items():
        np.testing.assert_array_equal(array, params[name], err_msg=name)


@pytest.fixture(scope="module")
def bytes_tokenizer(transformers, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("tokenizer") / "hf"
    job = job_of()
    hugging_face.export(job, params_of(job, plan_of(job)), folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_gives_our_ids_and_the_text_back(bytes_tokenizer, text):
    ids = bytes_tokenizer(text.decode())["input_ids"]
    assert ids == tokenizer.BYTES.encode(text).tolist()
    back = bytes_tokenizer.decode(ids, skip_special_tokens=True)
    assert back == tokenizer.BYTES.decode(ids[1:]) == text.decode()


def test_the_tokenizer_decodes_broken_text_as_ours_does(bytes_tokenizer):
    draw = np.random.default_rng(0)
    for _ in range(100):
        ids = draw.integers(0, 256, 20).tolist()
        assert bytes_tokenizer.decode(ids) == tokenizer.BYTES.decode(ids)


def test_the_tokenizers_separator_begins_and_ends_documents(bytes_tokenizer):
    assert bytes_tokenizer.bos_token_id == tokenizer.BYTES.eos_id
    assert bytes_tokenizer.eos_token_id == tokenizer.BYTES.eos_id
    assert len(bytes_tokenizer) == 257


def test_they_generate_with_our_folder(torch, transformers, tmp_path):
    job = job_of()
    hugging_face.export(job, params_of(job, plan_of(job)), tmp_path / "hf")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    prompt = tokens("def ", return_tensors="pt")
    with torch.no_grad():
        written = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert written.shape[1] <= 10 and written[0, :5].tolist() == [256, *b"def "]


def _small(params):
    """Kernels at the size of a trained model's, so that logits are a few units."""
    return {
        name: array if name.endswith("scale") else array * np.float32(0.2)
        for name, array in params.items()
    }


def _their_model(torch, transformers, job):
    """A random Llama made by `transformers` from its own names for the job's model."""
    model = job.decoder
    config = transformers.LlamaConfig(
        hidden_size=model.d_model,
        intermediate_size=model.d_ff,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size or 257,
        rope_theta=model.rope_theta,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.tied_embeddings,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config)
    for name, parameter in made.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter)
    return made


def _assert_same_logits(torch, theirs, job, params):
    tokens = np.random.default_rng(1).integers(0, 257, (2, job.data.seq_len))
    with torch.no_grad():
        wanted = theirs.eval()(torch.from_numpy(tokens)).logits.numpy()
    got = np.asarray(_logits(Network.of(job, plan_of(job)), params, tokens))
    got = got[..., : wanted.shape[-1]]
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


@functools.partial(jax.jit, static_argnums=0)
def _logits(network, params, tokens_BS):
    positions_BS = jnp.broadcast_to(jnp.arange(tokens_BS.shape[1]), tokens_BS.shape)
    model = network.bind(params)
    return model.logits(model(tokens_BS, jnp.zeros_like(tokens_BS), positions_BS))
