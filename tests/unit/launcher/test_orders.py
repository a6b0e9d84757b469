"""Messages between the launcher's processes arrive as they were sent, or say what is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster.prices import price_per_chip_hour
from launcher.cluster.schema import Attach, Cluster, Gcp, find_cluster, known_clusters
from launcher.core.errors import HostError
from launcher.core.messages import Message, MessageReader, encode
from launcher.providers.ray.host_protocol import HeadPort, LaunchEnded, NodeOrder, NodeUp, RunOrder
from tests.support.worlds import tpu_world

READER = MessageReader((HeadPort, NodeUp, LaunchEnded, NodeOrder, RunOrder), "host-1", HostError)


def run_order(cluster: Cluster) -> RunOrder:
    return RunOrder(cluster, "pod", "name: small", "runs", "small", "1", secrets={"KEY": "5ecret"})


@pytest.mark.parametrize(
    "message",
    [
        NodeUp(),
        HeadPort(6379),
        LaunchEnded(1, "an error\n"),
        NodeOrder("", 1, tpu_world("v4-16", (2, 2, 2), (2, 2, 1)), "10.0.0.2", ("10.0.0.1", 6379)),
        *[run_order(find_cluster(name).value) for name in known_clusters()],
    ],
)
def test_message_arrives_as_it_was_sent(message: Message) -> None:
    assert READER.parse(encode(message)) == message


@pytest.mark.parametrize("line", ["Welcome!", "[1]", "{}", '{"message": "other"}', '{"up": 1}'])
def test_line_without_a_known_message_is_ignored(line: str) -> None:
    assert READER.parse(line.encode()) is None


def test_message_with_fields_of_a_newer_version_is_read() -> None:
    assert READER.parse(b'{"message": "port", "port": 1, "more": 2}') == HeadPort(1)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"message": "ended", "exit_code": 1}', "has no field `output`"),
        ('{"message": "port", "port": "many"}', "has a wrong field `port` (Input should be"),
    ],
)
def test_wrong_message_is_reported_with_sender_and_field(line: str, found: str) -> None:
    with pytest.raises(HostError) as raised:
        READER.parse(line.encode())
    kind = json.loads(line)["message"]
    assert str(raised.value).startswith(f"the message `{kind}` from host-1 {found}")
    assert "another version of Slipway" in str(raised.value)


@pytest.mark.parametrize(("price", "expected"), [(None, 3.22), (1.5, 1.5)])
def test_the_head_has_the_price_of_the_original_hosts(
    tmp_path: Path, price: float | None, expected: float
) -> None:
    provider = Gcp(kind="gcp", price_per_chip_hour=price)
    order = run_order(Cluster(accelerator="v4-32", provider=provider))
    path = order.cluster_file(tmp_path, Attach(kind="attach"))
    assert price_per_chip_hour(find_cluster(path).value) == expected


@pytest.mark.parametrize(("hot", "expected"), [(True, False), (False, True)])
@pytest.mark.parametrize("job", ["name: small", None])
def test_the_head_is_asked_for_no_hot_start(
    tmp_path: Path, job: str | None, hot: bool, expected: bool
) -> None:
    order = replace(run_order(find_cluster("local").value), job=job, hot=hot)
    arguments = order.arguments(tmp_path, Attach(kind="attach"))
    assert ("--no-hot" in arguments) == expected


def test_wrong_order_is_reported_without_its_secrets() -> None:
    wire = json.loads(encode(run_order(find_cluster("local").value)))
    wire["secrets"]["KEY"] = ["5ecret"]
    with pytest.raises(HostError) as raised:
        READER.parse(json.dumps(wire).encode())
    assert "`secrets.KEY`" in str(raised.value)
    assert "5ecret" not in str(raised.value)
