"""What the processes of a gang get: order, addresses, environment, logs."""

import os
import socket
from pathlib import Path

from launcher.gang.gang import Gang
from tests.support.gang_programs import Script, Seen


def test_processes_are_ordered_by_worker(crew: Gang, seen: Seen) -> None:
    outcome = crew.run(Script("say(event='here', worker=os.environ['TPU_WORKER_ID'])"))
    assert outcome.ok
    assert {e["process"]: e["worker"] for e in seen.events} == {0: "0", 1: "1"}


def test_all_processes_get_the_address_of_the_first_host(crew: Gang, seen: Seen) -> None:
    crew.run(Script("say(event='here', address=os.environ['JAX_COORDINATOR_ADDRESS'])"))
    first, second = (event["address"] for event in seen.events)
    assert first == second
    assert first.startswith("127.")


def test_the_coordinator_listens_at_the_address_that_the_hosts_use_alone(
    crew: Gang, seen: Seen
) -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS")
    crew.run(Script(f"say(event='here', addresses=[os.environ[name] for name in {names}])"))
    address, bound = seen.events[0]["addresses"]
    assert bound == address


BEHIND_A_PROXY = """
for name in ("http_proxy", "https_proxy", "grpc_proxy"):
    os.environ.setdefault(name, "http://127.0.0.1:9")
import jax
jax.distributed.initialize(num_processes=2, process_id=process, initialization_timeout=30)
"""


def test_a_proxy_that_answers_nothing_does_not_come_between_jax_processes(crew: Gang) -> None:
    outcome = crew.run(Script(BEHIND_A_PROXY))
    assert outcome.ok, outcome.tail


def test_programs_see_nothing_of_ray(crew: Gang, seen: Seen) -> None:
    code = "say(event='e', names=[n for n in os.environ if n.startswith(('RAY_', 'OMP_'))])"
    crew.run(Script(code))
    assert [event["names"] for event in seen.events] == [[], []]


def test_programs_have_the_priority_of_what_started_them(crew: Gang, seen: Seen) -> None:
    crew.run(Script("say(event='here', nice=os.nice(0))"))
    assert [event["nice"] for event in seen.events] == [os.nice(0)] * 2


def test_output_goes_to_a_log_per_host_and_to_the_caller(
    crew: Gang, seen: Seen, folder: Path
) -> None:
    crew.run(Script("print('I am', process)"))
    assert sorted(seen.lines) == [(0, "I am 0"), (1, "I am 1")]
    assert (folder / "logs" / "host-0001.log").read_text().endswith("I am 1\n")


def test_a_taken_coordinator_port_is_replaced(crew: Gang, seen: Seen, folder: Path) -> None:
    """The first start finds the port taken in the last moment; the second gets another one."""
    once = folder / "once"
    code = f"""
port = int(os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2])
say(event="here", port=port)
if process == 0 and not os.path.exists({str(once)!r}):
    open({str(once)!r}, "w").close()
    say(event="warning", category="port_taken", message="taken")
    sys.exit(1)
"""
    assert crew.run(Script(code)).ok
    ports = [event["port"] for event in seen.events if event["event"] == "here"]
    assert len(set(ports)) == 2


def test_a_wanted_coordinator_port_that_is_taken_is_not_used(crew: Gang, seen: Seen) -> None:
    code = "say(event='here', address=os.environ['JAX_COORDINATOR_ADDRESS'])"
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert crew.run(Script(code), coordinator_port=port).ok
    assert not seen.events[0]["address"].endswith(f":{port}")


def test_a_flood_of_events_arrives_in_order(crew: Gang, seen: Seen) -> None:
    code = "[say(event='step', step=i) for i in range(2000)]"
    assert crew.run(Script(code)).ok
    for process in (0, 1):
        steps = [e["step"] for e in seen.events if e["process"] == process]
        assert steps == list(range(2000))
