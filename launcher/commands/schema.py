"""`launch schema`: the JSON Schema of job and cluster files, for editors and other tools."""

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from launcher.cluster.schema import Cluster
from trainer.contract.config.command import CommandJob
from trainer.contract.config.job import Job

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """Returns the schema of a job file: of a training job, or of one with `command`."""
    references, schema = models_json_schema([(Job, "validation"), (CommandJob, "validation")])
    return {
        "$schema": DIALECT,
        "title": "Slipway job",
        "type": "object",
        "if": {"required": ["command"]},
        "then": references[CommandJob, "validation"],
        "else": references[Job, "validation"],
        **schema,
    }


def cluster_schema() -> dict[str, Any]:
    """Returns the schema of a cluster file."""
    return {"$schema": DIALECT, **Cluster.model_json_schema(), "title": "Slipway cluster"}


def as_text(schema: dict[str, Any]) -> str:
    """Returns a schema as indented JSON."""
    return json.dumps(schema, indent=2, ensure_ascii=False)
