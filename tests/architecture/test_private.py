"""The private symbols of other libraries, each of which Slipway relies on."""

import inspect
import re
import time
from pathlib import Path

import pytest
from etils import epath
from jaxlib import _jax  # type: ignore[attr-defined]

from launcher.providers.ray import private as ray_private
from launcher.providers.ray.node_spec import environment
from trainer.checkpoint import private as orbax_private
from trainer.distributed import private as jax_private

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(r"^\s*(?:from|import) (?:ray|jax|flax|orbax|grain)[.\w]*\._", re.M)
ALONE = "trainer/any_program/jax_plugins/__init__.py"


def test_ray_starts_nodes_by_services_get_node() -> None:
    assert list(inspect.signature(ray_private.services().get_node).parameters)[:2] == [
        "gcs_address",
        "node_id",
    ]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("worker", "listen_error_messages"),
        ("state", "actors"),
        ("state", "state"),
        ("services", "get_node"),
        ("services", "resolve_ip_for_localhost"),
        ("services", "start_ray_process"),
        ("services", "start_api_server"),
        ("utils", "get_dashboard_dependency_error"),
        ("node_class", "start_ray_client_server"),
    ],
)
def test_ray_has_the_private_symbol(module: str, name: str) -> None:
    assert hasattr(getattr(ray_private, module)(), name)


def test_a_starting_node_sleeps_through_the_time_module() -> None:
    assert {module.time.sleep for module in ray_private.modules_that_retry()} == {time.sleep}


def test_raylet_reads_every_variable_of_a_node() -> None:
    binary = Path(ray_private.services().RAYLET_EXECUTABLE).read_bytes()
    names = [name for name in environment(Path("token")) if re.match(r"RAY_[a-z]", name)]
    assert len(names) > 5
    assert [name for name in names if name.encode() not in binary] == []


def test_ray_selects_a_node_by_its_id() -> None:
    assert ray_private.node_selector("ab" * 28).node_id == bytes.fromhex("ab" * 28)


def test_ray_reports_free_resources_of_nodes() -> None:
    assert callable(ray_private.available_resources_per_node())


def test_ray_has_a_client_of_the_gcs() -> None:
    assert ray_private.cluster_namespace()
    assert isinstance(ray_private.alive_nodes_filter(), int)


def test_ray_can_forget_the_token_of_an_earlier_cluster() -> None:
    assert callable(ray_private.token_loader().reset_cache)


def test_jax_has_a_global_state_of_its_distributed_client() -> None:
    assert hasattr(jax_private.distributed.global_state, "client")
    assert hasattr(jax_private.xla_bridge, "make_cpu_client")
    assert hasattr(jax_private.xla_bridge, "register_backend_factory")


@pytest.mark.parametrize(
    "name", ["get_distributed_runtime_service", "get_distributed_runtime_client"]
)
def test_jaxlib_has_the_coordination_service_and_its_client(name: str) -> None:
    assert callable(getattr(_jax, name))


def test_orbax_has_a_temporary_path_of_each_file_system(tmp_path: Path) -> None:
    found = orbax_private.atomicity_defaults.get_default_temporary_path_class(epath.Path(tmp_path))
    assert hasattr(found, "from_final")


def test_private_symbols_are_imported_by_private_modules_only() -> None:
    files = [*ROOT.glob("launcher/**/*.py"), *ROOT.glob("trainer/**/*.py")]
    found = [path for path in files if PRIVATE.search(path.read_text(encoding="utf-8"))]
    names = {path.relative_to(ROOT).as_posix() for path in found if path.name != "private.py"}
    assert names == {ALONE}
