"""What a launching process and a host say to each other: a JSON object a line, both ways.

Orders come on the host's standard input, answers go to its standard output. What is common to all
providers: {"node": Order} is answered with {"port": n} by the head and {"up": true}, or
{"failed": why}; {"gone": true} is the last answer.
"""

import json
import os
import select
from typing import Any

from pydantic import BaseModel, Field

from launcher.files import parse_object
from trainer.spec.plan import World


class Order(BaseModel):
    """The Ray node of a host."""

    token: str = Field(repr=False)
    process: int
    world: World
    ip: str
    head: tuple[str, int] | None
    """None: it is this host, which says where."""


class Orders:
    """Those that come on standard input; `over` once the other side is gone."""

    def __init__(self) -> None:
        self.over = False
        self._rest = b""

    def wait(self, timeout_s: float | None, *others: int) -> list[dict[str, Any]]:
        """What has come, as soon as something has, here or on one of the other descriptors."""
        own = [] if self.over else [0]
        readable, _, _ = select.select([*own, *others], [], [], timeout_s)
        if 0 not in readable:
            return []
        chunk = os.read(0, 1 << 16)
        self.over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [order for line in lines if (order := parse_object(line)) is not None]


def tell(**answer: object) -> None:
    """Nothing, where nobody listens any more: the end of the orders says so too."""
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass
