"""Ray nodes as users start them: with Ray's own agents, and without Slipway's labels."""

from dataclasses import replace

from launcher.providers.ray.node import NodeSpec


def as_users_start_it(node: NodeSpec) -> NodeSpec:
    parameters = {**node.parameters, "labels": {}}
    return replace(node, parameters=parameters, has_agents=True)


def with_dashboard(head: NodeSpec, address: str, port: int) -> NodeSpec:
    """Returns the head with Ray's dashboard, which has the Jobs API."""
    dashboard = {"include_dashboard": True, "dashboard_host": address, "dashboard_port": port}
    return replace(head, parameters={**head.parameters, **dashboard})
