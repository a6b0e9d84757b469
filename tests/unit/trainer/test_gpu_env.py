"""Variables of CUDA programs: set where GPUs may be used, and never over the user's own."""

import pytest

from trainer.distributed import gpu_env

SHARE = {"XLA_CLIENT_MEM_FRACTION": "0.9"}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which some module takes the place of JAX's plugin for CUDA."""
    monkeypatch.setattr(gpu_env, "PLUGINS", ("no_such_plugin", "json"))


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {**SHARE, **gpu_env.IN_ONE_HOST}),
        ({"JAX_PLATFORMS": "cuda,cpu", "SLIPWAY_NUM_PROCESSES": "2"}, SHARE),
        ({"JAX_PLATFORMS": "cpu"}, {}),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5", "SLIPWAY_NUM_PROCESSES": "2"}, {}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "SLIPWAY_NUM_PROCESSES": "2"}, {}),
    ],
)
@pytest.mark.usefixtures("plugin")
def test_defaults_are_added_to_what_is_set(given: dict[str, str], added: dict[str, str]) -> None:
    variables = dict(given)
    gpu_env.set_defaults(variables)
    assert variables == given | added


@pytest.mark.usefixtures("plugin")
def test_own_nccl_variable_stays() -> None:
    variables = {"NCCL_PROTO": "Simple"}
    gpu_env.set_defaults(variables)
    assert variables["NCCL_PROTO"] == "Simple"
    assert variables["NCCL_LL_BUFFSIZE"] == "-2"


def test_machine_without_cuda_gets_none() -> None:
    variables: dict[str, str] = {}
    gpu_env.set_defaults(variables)
    assert variables == {}
