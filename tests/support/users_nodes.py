"""Ray nodes as users start them: with Ray's own agents, and without Slipway's labels."""

from dataclasses import replace

from launcher.providers.ray import node_spec
from launcher.providers.ray.node_group import NodeSpec


def as_users_start_it(node: NodeSpec) -> NodeSpec:
    flags = [flag for flag in node.flags if node_spec.HOST_LABEL not in flag]
    return replace(node, flags=flags, has_agents=True)


def with_dashboard(head: NodeSpec, address: str, port: int) -> NodeSpec:
    """Returns the head with Ray's dashboard, which has the Jobs API."""
    flags = [flag for flag in head.flags if flag != "--include-dashboard=false"]
    dashboard = [
        "--include-dashboard=true",
        f"--dashboard-host={address}",
        f"--dashboard-port={port}",
        "--dashboard-agent-listen-port=0",
    ]
    return replace(head, flags=[*flags, *dashboard])
