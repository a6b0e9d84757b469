"""No input crashes the loader, and every problem names its key."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, Loaded, dump, load
from trainer.contract.config.model import CustomModel, Model
from trainer.contract.config.yaml import dump as dump_yaml

KEYS = sorted(
    {
        name if section is None else f"{section}.{name}"
        for section, schema in [
            (None, Job),
            ("model", Model),
            ("model", CustomModel),
            *((k, Job.model_fields[k].annotation) for k in ("data", "mesh", "optimizer")),
        ]
        for name in schema.model_fields
    }
)
GOOD = {
    "name": "run",
    "steps": 10,
    "model": {"preset": "tiny"},
    "data": {"source": "stdlib", "seq_len": 32, "global_batch": 8},
}
WILD = st.text(max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WILD
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WILD, inner, max_size=2)
)
NEAR_JOBS = st.dictionaries(
    st.sampled_from(sorted(Job.model_fields)) | WILD,
    VALUES
    | st.dictionaries(st.sampled_from([k.rpartition(".")[2] for k in KEYS]), VALUES, max_size=4),
    max_size=6,
)


def outcome(data: bytes, *overrides: str) -> Loaded[Job] | ConfigError:
    with TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_bytes(data)
        try:
            return load(path, Job, overrides)
        except ConfigError as error:
            assert error.lines and all(error.lines)
            assert all(line.isprintable() for line in error.lines)
            return error


@given(st.binary())
def test_any_bytes_are_a_job_or_an_error(data):
    outcome(data)


@given(NEAR_JOBS)
def test_anything_like_a_job_is_a_job_or_an_error(given_job):
    outcome(dump_yaml(given_job).encode(errors="replace"))


@given(st.lists(st.tuples(st.sampled_from(KEYS) | WILD, st.text(max_size=30)), max_size=3))
def test_any_overrides_give_a_job_or_an_error(pairs):
    outcome(dump_yaml(GOOD).encode(), *(f"{key}={value}" for key, value in pairs))


@given(st.sampled_from(KEYS), VALUES)
def test_an_error_in_one_key_names_that_key_or_one_that_is_missing(key, value):
    override = f"{key}={dump_yaml(value).strip()}"
    result = outcome(dump_yaml(GOOD).encode(), override)
    if isinstance(result, ConfigError):
        name = key.rpartition(".")[2]
        assert all(name in line or line.endswith(": missing") for line in result.lines)


@given(st.sampled_from(KEYS), st.integers(-2, 100) | st.floats(0, 1) | st.booleans() | st.none())
def test_every_job_that_loads_reads_back_equal_from_its_dump(key, value):
    result = outcome(dump_yaml(GOOD).encode(), f"{key}={dump_yaml(value).strip()}")
    if isinstance(result, Loaded):
        again = outcome(dump(result.value).encode())
        assert isinstance(again, Loaded)
        assert again.value == result.value
