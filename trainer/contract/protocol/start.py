"""The start of a standby process: one line on a pipe, with what has changed in its environment.

A standby process has started before its attempt. It has the environment of the time when it
started; the coordinator, for example, has another address now.
"""

import json
from collections.abc import Mapping, MutableMapping


def encode(before: Mapping[str, str], now: Mapping[str, str]) -> bytes:
    """Returns the line that turns the environment `before` into `now`."""
    changes = {
        name: now.get(name)
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    }
    return json.dumps(changes).encode() + b"\n"


def apply(line: bytes, environment: MutableMapping[str, str]) -> None:
    """Makes the changes of a line in `environment`."""
    for name, value in json.loads(line).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
