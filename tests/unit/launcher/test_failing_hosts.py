"""Which hosts the next attempt avoids."""

from launcher.health.failing_hosts import FailingHosts

HOSTS = {0: "a", 1: "b"}


def test_a_host_on_which_two_attempts_ended_is_avoided() -> None:
    failing = FailingHosts()
    assert failing.record(HOSTS, 1, ()) == {}
    assert failing.record(HOSTS, 0, ()) == {}
    assert failing.record(HOSTS, 1, ()) == {1: "2 attempts ended on host-0001"}


def test_a_host_is_known_again_under_another_number() -> None:
    failing = FailingHosts()
    failing.record(HOSTS, 1, ())
    assert list(failing.record({0: "b", 1: "c"}, 0, ())) == [0]


def test_a_host_that_was_slow_to_the_end_is_avoided() -> None:
    found = FailingHosts().record(HOSTS, None, [0])
    assert found == {0: "host-0000 was slow to the end"}
