"""What KubeRay's RayCluster (ray.io/v1) may hold: of its schema, the fields near those in use.

Facts from ray-project/kuberay, `ray_v1_raycluster` as its CRD of 1.x publishes it, and Kubernetes'
own PodSpec. A field that is not listed is refused, as the API server does with strict validation.
"""

from typing import Any

Schema = dict[str, Any]


def _object(required: list[str] | None = None, **properties: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "format": "int32"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITIES: Schema = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
        r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    },
}
LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label, RFC 1035."""

CONTAINER = _object(
    ["name"],
    name=TEXT,
    image=TEXT,
    command=_list(TEXT),
    args=_list(TEXT),
    env=_list(
        _object(
            ["name"],
            name=TEXT,
            value=TEXT,
            valueFrom=_object(
                secretKeyRef=_object(["key"], name=TEXT, key=TEXT, optional=FLAG),
            ),
        )
    ),
    ports=_list(_object(["containerPort"], containerPort=COUNT, name=TEXT, protocol=TEXT)),
    resources=_object(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=_list(
        _object(["mountPath", "name"], mountPath=TEXT, name=TEXT, readOnly=FLAG, subPath=TEXT)
    ),
)
POD = _object(
    ["containers"],
    containers=_list(CONTAINER),
    nodeSelector=TEXTS,
    serviceAccountName=TEXT,
    priorityClassName=TEXT,
    tolerations=_list(_object(effect=TEXT, key=TEXT, operator=TEXT, value=TEXT)),
    volumes=_list(
        _object(
            ["name"],
            name=TEXT,
            persistentVolumeClaim=_object(["claimName"], claimName=TEXT, readOnly=FLAG),
        )
    ),
)
TEMPLATE = _object(metadata=_object(labels=TEXTS, annotations=TEXTS), spec=POD)
RAY_CLUSTER = _object(
    ["metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=_object(
        ["name"],
        name={"type": "string", "pattern": LABEL, "maxLength": 53},
        namespace=TEXT,
        labels=TEXTS,
        annotations=TEXTS,
    ),
    spec=_object(
        ["headGroupSpec"],
        rayVersion=TEXT,
        suspend=FLAG,
        enableInTreeAutoscaling=FLAG,
        headGroupSpec=_object(
            ["template"], rayStartParams=TEXTS, serviceType=TEXT, template=TEMPLATE
        ),
        workerGroupSpecs=_list(
            _object(
                # The last two by the operator's own check, where nothing scales by itself.
                ["groupName", "template", "minReplicas", "maxReplicas"],
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                numOfHosts=COUNT,
                suspend=FLAG,
                rayStartParams=TEXTS,
                template=TEMPLATE,
            )
        ),
    ),
)


def problems(cluster: Any) -> list[str]:
    """What the API server would say of it; nothing: it is a RayCluster."""
    from jsonschema import Draft202012Validator

    found = Draft202012Validator(RAY_CLUSTER).iter_errors(cluster)
    return [f"{error.json_path}: {error.message}" for error in found]
