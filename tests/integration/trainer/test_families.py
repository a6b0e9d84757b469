"""Every family of models: the numbers of its reference, and the same ones on every mesh."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES, TYPES
from tests.support.model_folders import (
    assert_equal,
    folder_maker,
    loaded,
    logits_of,
    params_of,
    plan_of,
)
from tests.support.reference_logits import CONFIGS, TOKENS, weights
from tests.support.sampling import sampled
from trainer import hugging_face
from trainer.analysis import collectives, parallelism
from trainer.contract.config.loader import ConfigError
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.hugging_face.tensor_layout import layouts
from trainer.model import Network

REFERENCE = json.loads(Path(__file__).with_name("reference_logits.json").read_text())
VOCABULARY = CONFIGS["llama"]["vocab_size"]
SHAPES = {
    kind: {
        "d_model": 16, "d_ff": 24, "heads": 4, "kv_heads": config.get("num_key_value_heads", 4),
        "head_dim": config.get("qk_nope_head_dim", 0)
        + config.get("qk_rope_head_dim", config.get("head_dim", 4)),
        "vocab_size": VOCABULARY,
    }
    for kind, config in CONFIGS.items()
}  # fmt: skip
MESHES = {
    False: [(4, {"fsdp": 2, "tensor": 2}), (4, {"fsdp": 4})],
    True: [
        (4, {"fsdp": 2, "tensor": 2}),
        (4, {"expert": 4}),
        (8, {"fsdp": 2, "expert": 2, "tensor": 2}),
        (8, {"expert": 2, "context": 2, "tensor": 2}),
    ],
}
"""By whether there are experts: devices and meshes of them."""


@pytest.mark.parametrize("kind", REFERENCE)
def test_logits_are_those_of_hugging_faces_own_code(kind, tmp_path):
    """Of the same weights, which are read from a folder such as theirs."""
    job = job_of(model={**FAMILIES[kind], **SHAPES[kind]}, data={"seq_len": len(TOKENS)})
    tensors = {
        name: weights(name, layout.tensor_shape)
        for layout in layouts(job.decoder, vocab_size(job))
        for name in layout.tensors
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    params = loaded(tmp_path, job)
    found = logits_of(Network.of(job, plan_of(job)), params, jnp.array([TOKENS]))[0]
    wanted = np.array(REFERENCE[kind])
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(found[::3, :VOCABULARY:16], wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_decoding_with_a_cache_gives_the_logits_of_the_whole(kind):
    job = job_of(model=FAMILIES[kind])
    plan = plan_of(job)
    network, tokens_BS = Network.of(job, plan), jnp.array([TOKENS])
    params = {name: 0.3 * array for name, array in params_of(job, plan).items()}

    @jax.jit
    def decode(params, token_B1, place, cache):
        return network.bind(params).decode(token_B1, place, cache, len(TOKENS))

    cache, found = network.bind(params).empty_cache(1, len(TOKENS)), []
    for place in range(len(TOKENS)):
        logits, cache = decode(params, tokens_BS[:, place : place + 1], jnp.int32(place), cache)
        found.append(logits[0, 0])
    wanted = logits_of(network, params, tokens_BS)[0]
    np.testing.assert_allclose(np.stack(found), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_exported_is_loaded_again(kind, tmp_path):
    job = job_of(model=FAMILIES[kind], mesh={"fsdp": 2, "tensor": 2})
    folder, params = folder_maker(tmp_path / "hf")(job, devices=4)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == TYPES.get(kind, kind)
    # What is stored as an addition to one loses its last bits.
    assert_equal(loaded(folder, job, devices=4), params, atol=1e-6 if "gemma" in kind else 0)


def test_a_model_that_no_family_has_is_not_exported(tmp_path):
    job = job_of(model={"norm": "layer", "final_logit_softcap": 30.0})
    with pytest.raises(
        ConfigError, match=r"nearest is \w+, which does not support model.norm: layer"
    ):
        hugging_face.export(job, params_of(job, plan_of(job)), tmp_path / "hf")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(FAMILIES.keys(), ["llama", "gemma"]))
def test_losses_are_the_same_on_every_mesh(kind):
    job = {"steps": 20, "model": FAMILIES[kind]}
    alone = losses(bench(job_of(**job)))
    assert alone[-1] < alone[0]
    for devices, mesh in MESHES["moe" in FAMILIES[kind]]:
        np.testing.assert_allclose(
            losses(bench(job_of(**job, mesh=mesh), devices)), alone, atol=1e-4
        )


@pytest.mark.slow
def test_remote_experts_get_their_tokens_and_nothing_else():
    job = {"steps": 20, "model": FAMILIES["mixtral"]}
    devices, mesh = MESHES[True][1]
    job = job_of(**job, mesh=mesh)
    made = bench(job, devices)
    found = collectives.of(made.text, made.plan)
    assert {one.kind for one in found if one.part == "mlp" and one.backward} == {"all-to-all"}
    share = parallelism.shares(found, job, made.plan)["expert"]
    assert 0.9 * share.must < share.sent < 1.1 * share.must


def losses(made):
    return np.array([metrics.loss for metrics in made.run(20)[1]])
