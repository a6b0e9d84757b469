"""The settings of the C libraries that trainers load."""

import pytest

from launcher.planning.planner import (
    GLIBC_TUNABLES,
    HUGE_PAGES,
    OPENBLAS_THREAD_TIMEOUT,
    SHORT_WAIT,
    library_environment,
)
from tests.support.worlds import cpu_world, tpu_world

CPU_HOSTS = cpu_world(2, 4)
TPU_HOSTS = tpu_world("v5e-16", (4, 4), (2, 2)).model_copy(update={"simulated": False})


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (GLIBC_TUNABLES, OPENBLAS_THREAD_TIMEOUT):
        monkeypatch.delenv(name, raising=False)


def test_cpu_hosts_have_huge_pages() -> None:
    assert library_environment(CPU_HOSTS)[GLIBC_TUNABLES] == HUGE_PAGES


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param("a=1:b=2", f"{HUGE_PAGES}:a=1:b=2", id="so that they count"),
        pytest.param(f"a=1:{HUGE_PAGES}", f"a=1:{HUGE_PAGES}", id="not named twice"),
    ],
)
def test_tunables_of_the_user_follow(
    monkeypatch: pytest.MonkeyPatch, own: str, expected: str
) -> None:
    monkeypatch.setenv(GLIBC_TUNABLES, own)
    assert library_environment(CPU_HOSTS)[GLIBC_TUNABLES] == expected


def test_hosts_with_chips_have_no_tunables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLIBC_TUNABLES, "a=1")
    assert GLIBC_TUNABLES not in library_environment(TPU_HOSTS)


@pytest.mark.parametrize("world", [CPU_HOSTS, TPU_HOSTS], ids=["CPU", "TPU"])
def test_threads_of_numpy_soon_sleep_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, world
) -> None:
    assert library_environment(world)[OPENBLAS_THREAD_TIMEOUT] == SHORT_WAIT
    monkeypatch.setenv(OPENBLAS_THREAD_TIMEOUT, "30")
    assert library_environment(world)[OPENBLAS_THREAD_TIMEOUT] == "30"
