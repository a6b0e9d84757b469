"""Queries a Ray cluster for its nodes: `python -m launcher.providers.ray.probe HOST:PORT`.

Prints one JSON object: `here` and `there` (versions of Ray and Python), `nodes` (alive ones: `id`,
`address`, `is_head`); or `error` and `message`. `here` is this process, `there` the cluster. Ray's
own environment variables hold the token.
"""

import json
import sys
from typing import Any

from launcher.providers.ray import private

TIMEOUT_S = 15.0


def main() -> None:
    try:
        answer = look(sys.argv[1])
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "")
        answer = {"error": type(error).__name__, "message": line}
    print(json.dumps(answer), flush=True)


def look(address: str) -> dict[str, Any]:
    import ray

    client = private.gcs_client(address)
    namespace = private.cluster_namespace()
    metadata = client.internal_kv_get(b"CLUSTER_METADATA", namespace, timeout=TIMEOUT_S)
    versions = json.loads(metadata or b"{}")
    nodes = client.get_all_node_info(
        timeout=TIMEOUT_S, state_filter=private.alive_nodes_filter()
    ).values()
    return {
        "here": {"ray": ray.__version__, "python": ".".join(map(str, sys.version_info[:3]))},
        "there": {name: versions.get(f"{name}_version") for name in ("ray", "python")},
        "nodes": [
            {
                "id": node.node_id.hex(),
                "address": node.node_manager_address,
                "is_head": node.is_head_node,
            }
            for node in nodes
        ],
    }


if __name__ == "__main__":
    main()
