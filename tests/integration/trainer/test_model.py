"""What the model may see, and what it must not."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning.planner import resolve
from trainer.data import packing, tokenizer
from trainer.data.packing import Batch
from trainer.model import Network
from trainer.model.embeddings import Vocabulary
from trainer.step import loss as losses


@pytest.fixture(scope="module")
def made():
    return bench(job_of())


@pytest.fixture(scope="module")
def params(made):
    """Parameters far from their start, so that everything has a say."""
    state = made.initial()
    leaves, tree = jax.tree.flatten(state.params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def _logits(made, params, batch: Batch):
    return np.asarray(_logits_of(made.program.network, params, batch))


@functools.partial(jax.jit, static_argnums=0)
def _logits_of(network, params, batch):
    model = network.bind(params)
    return model.logits(model(batch.tokens, batch.segments, batch.positions))


def _packed(*documents: bytes, boundaries=True) -> Batch:
    stream = np.concatenate([tokenizer.BYTES.encode(document) for document in documents] + [[0]])
    eos_id = tokenizer.BYTES.eos_id if boundaries else None
    return packing.stack([packing.example(stream, 0, eos_id)])


def test_changing_one_document_changes_no_other_documents_logits(made, params):
    first = _logits(made, params, _packed(b"import os", b"def f(x):", b"class A"))
    second = _logits(made, params, _packed(b"import os", b"DEF G(Y);", b"class A"))
    changed = np.any(first != second, axis=-1)[0]
    assert np.all(changed[11:20]) and not np.any(changed[:11]) and not np.any(changed[20:])


def test_a_document_has_the_same_logits_wherever_it_lies(made, params):
    alone = _logits(made, params, _packed(b"class A"))[0]
    packed = _logits(made, params, _packed(b"import os", b"class A"))[0]
    np.testing.assert_allclose(packed[-8:], alone, rtol=1e-4, atol=1e-4)


def test_without_boundaries_documents_see_the_ones_before_them(made, params):
    first = _logits(made, params, _packed(b"import os", b"class A", boundaries=False))
    second = _logits(made, params, _packed(b"IMPORT OS", b"class A", boundaries=False))
    assert np.all(np.any(first != second, axis=-1)[0, 1:])


def test_no_position_sees_a_later_one(made, params):
    batch = _packed(b"a single document without an end")

    def one_logit(table, place):
        changed = {**params, "embedding.table": table}
        model = made.program.network.bind(changed)
        features = model(batch.tokens, batch.segments, batch.positions)
        return features[0, place].sum()

    table = params["embedding.table"]
    seen = np.asarray(jax.jit(jax.grad(one_logit))(table, 3)).any(axis=-1)
    assert set(np.flatnonzero(seen)) == set(np.asarray(batch.tokens)[0, :4].tolist())


def test_padded_tokens_have_no_probability_and_no_gradient(made, params):
    batch = _packed(b"some text to learn from")
    probabilities = jax.nn.softmax(_logits(made, params, batch))
    assert float(jnp.max(probabilities[..., 257:])) == 0
    gradient = _loss_and_gradient(made, params, batch)[1]["embedding.table"]
    assert np.any(gradient[:257]) and not np.any(gradient[257:])


@pytest.mark.parametrize("name", ["embedding.table", "output.kernel"])
def test_initial_rows_do_not_depend_on_the_padding(name):
    job = job_of(model={"tied_embeddings": False})
    network = Network.of(job, resolve(job, world_of(), corpus_of(job)))
    rows = []
    for padded in (384, 512):
        padded_network = replace(network, vocabulary=Vocabulary(257, padded))
        array = np.asarray(jax.jit(lambda n=padded_network: n.initial(jnp.uint32(0))[name])())
        rows.append(array if name == "embedding.table" else array.T)
    assert [len(array) for array in rows] == [384, 512]
    np.testing.assert_array_equal(rows[0], rows[1][:384])
    assert rows[0][:257].all() and not rows[1][257:].any()


def test_the_loss_in_chunks_is_the_loss_of_the_whole(made, params, monkeypatch):
    batch = _packed(b"a text of thirty-one characters")
    model = made.program.network.bind(params)
    whole, whole_grads = _loss_and_gradient(made, params, batch)
    monkeypatch.setattr(losses, "LOGIT_BYTES", 8 * 384 * 4)
    assert losses.chunk_count(batch.tokens.size, model.vocabulary.padded) == 4
    chunked, grads = _loss_and_gradient(made, params, batch)
    np.testing.assert_allclose(whole, chunked, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), whole_grads, grads)


def test_logits_are_multiplied_out_once_for_the_loss_and_its_gradient(made, params):
    """Of three products of the kernel's size, one for the loss and two for the gradients."""
    batch, vocab = _packed(b"a text of thirty-one characters"), made.plan.padded_vocab
    loss = lambda params: losses.loss_sum(made.program.network.bind(params), batch)  # noqa: E731
    program = jax.make_jaxpr(jax.value_and_grad(loss))(params)
    products = [e for e in _equations(program.jaxpr) if e.primitive.name == "dot_general"]
    shapes = [{dim for var in (*e.invars, *e.outvars) for dim in var.aval.shape} for e in products]
    assert sum(vocab in dims for dims in shapes) == 3


def _equations(jaxpr):
    """Also those of the programs inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        is_program = lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")  # noqa: E731
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
        for program in filter(is_program, inner):
            yield from _equations(getattr(program, "jaxpr", program))


def test_bfloat16_computes_close_to_float32_and_keeps_float32_parameters():
    exact, rounded = (
        bench(job_of(model={"compute_dtype": dtype})).run(3) for dtype in ("float32", "bfloat16")
    )
    assert all(array.dtype == jnp.float32 for array in jax.tree.leaves(rounded[0].params))
    for one, other in zip(exact[1], rounded[1], strict=True):
        assert one.loss != other.loss
        np.testing.assert_allclose(one.loss, other.loss, rtol=2e-2)


def test_decoding_one_token_at_a_time_gives_the_logits_of_the_whole(made, params):
    batch = _packed(b"one document, seen bit by bit")
    model = made.program.network.bind(params)
    length = batch.tokens.shape[1]
    cache, got = model.empty_cache(1, length), []

    @jax.jit
    def decode(params, token, place, cache):
        return made.program.network.bind(params).decode(token, place, cache, length)

    for place in range(length):
        token = batch.tokens[:, place : place + 1]
        logits, cache = decode(params, token, jnp.int32(place), cache)
        got.append(logits[0, 0])
    np.testing.assert_allclose(np.stack(got), _logits(made, params, batch)[0], rtol=1e-3, atol=1e-3)


def _loss_and_gradient(made, params, batch):
    network = made.program.network

    def loss(params):
        return losses.loss_sum(network.bind(params), batch)

    return jax.jit(jax.value_and_grad(loss))(params)
