"""The settings of the memory allocator of trainers on CPU devices."""

import pytest

from launcher.planning.planner import GLIBC_TUNABLES, HUGE_PAGES, allocator_environment
from tests.support.worlds import cpu_world, tpu_world


def test_cpu_hosts_have_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GLIBC_TUNABLES, raising=False)
    assert allocator_environment(cpu_world(2, 4)) == {GLIBC_TUNABLES: HUGE_PAGES}


def test_settings_of_the_user_follow_and_thus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLIBC_TUNABLES, "glibc.malloc.hugetlb=2")
    expected = f"{HUGE_PAGES}:glibc.malloc.hugetlb=2"
    assert allocator_environment(cpu_world(2, 4)) == {GLIBC_TUNABLES: expected}


def test_huge_pages_of_the_user_are_not_named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLIBC_TUNABLES, HUGE_PAGES)
    assert allocator_environment(cpu_world(2, 4)) == {GLIBC_TUNABLES: HUGE_PAGES}


def test_hosts_with_chips_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLIBC_TUNABLES, "glibc.malloc.hugetlb=2")
    world = tpu_world("v5e-16", (4, 4), (2, 2)).model_copy(update={"simulated": False})
    assert allocator_environment(world) == {}
