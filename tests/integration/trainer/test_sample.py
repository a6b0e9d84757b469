"""Text is written with a cache, one token at a time: the same as without one."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.contract.config.eval import Sample
from trainer.data.tokenizer import BYTES
from trainer.evaluation import generate
from trainer.evaluation.generate import Sampler

PROMPTS = ["", "def ", "import os, sys"]


def _params(made):
    """Far from their start, so that every token depends on those before it."""
    params = made.initial().params
    keys = jax.random.split(jax.random.key(7), len(params))
    return {
        name: array + 0.3 * jax.random.normal(key, array.shape)
        for (name, array), key in zip(params.items(), keys, strict=True)
    }


@functools.partial(jax.jit, static_argnums=0)
def _likeliest(network, params, tokens, last):
    """After the place `last` of a row of tokens, all of which are looked at anew."""
    model = network.bind(params)
    row = tokens[None]
    features = model(row, jnp.zeros_like(row), jnp.arange(len(tokens))[None])
    return jnp.argmax(model.logits(features)[0, last])


def _without_cache(made, params, prompt: bytes, count: int) -> list[int]:
    """The last `seq_len` tokens are all that the next one sees."""
    window = made.program.job.data.seq_len
    tokens = [256, *prompt]
    for _ in range(count):
        seen = tokens[-window:]
        row = np.zeros(window, np.int32)
        row[: len(seen)] = seen
        tokens.append(int(_likeliest(made.program.network, params, row, len(seen) - 1)))
    return tokens


def _with_cache(program, params, prompt: str, count: int, temperature=0.0) -> list[int]:
    settings = Sample(prompt=prompt, tokens=count, temperature=temperature)
    with jax.set_mesh(program.mesh):
        tokens = Sampler(program, settings, BYTES).tokens(params)
    assert tokens is not None, "this process has all devices"
    return tokens.tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_cache_changes_no_token(prompt):
    made = bench(job_of())
    params, count = _params(made), 31 - len(prompt)
    tokens = _with_cache(made.program, params, prompt, count)
    assert tokens == _without_cache(made, params, prompt.encode(), count)
    assert len(set(tokens)) > 5


@pytest.mark.parametrize("prompt", PROMPTS)
def test_nor_does_it_when_the_window_is_full(prompt):
    """Of one layer: in several, what was seen before the window still has a say."""
    made = bench(job_of(model={"layers": 1}, data={"seq_len": 8}))
    params = _params(made)
    tokens = _with_cache(made.program, params, prompt, 30)
    assert tokens == _without_cache(made, params, prompt.encode(), 30)


def test_one_device_writes_what_all_of_them_write(monkeypatch):
    made = bench(job_of(mesh={"fsdp": 2, "tensor": 2}), 4)
    params = _params(made)
    alone = _with_cache(made.program, params, "def ", 10)
    monkeypatch.setattr(generate, "ONE_DEVICE_BYTES", 0)
    assert _with_cache(made.program, params, "def ", 10) == alone


def test_the_seed_decides_what_is_drawn():
    made = bench(job_of())
    other = replace(made.program, job=made.program.job.model_copy(update={"seed": 1}))
    drawn = [
        _with_cache(program, _params(made), "x", 20, temperature=1.0)
        for program in (made.program, made.program, other)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_it_is_compiled_once():
    made = bench(job_of())
    params, events = _params(made), []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        events.append(event)

    sampler = Sampler(made.program, Sample(tokens=3, temperature=0.0), BYTES)
    with jax.set_mesh(made.program.mesh):
        first = sampler.sample(params)
        monitoring.register_event_duration_secs_listener(note)
        try:
            assert sampler.sample(params) == first
        finally:
            monitoring.unregister_event_duration_listener(note)
    assert "/jax/core/compile/backend_compile_duration" not in events
