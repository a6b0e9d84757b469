"""What is noted of each equation of a function that is run under explicit types."""

import re
from dataclasses import dataclass, field
from typing import Any

from trainer.explicit.layouts import Layout
from trainer.explicit.source import Place

MARK = "equation"
"""Begins the name of a scope, which an equation's number ends: what becomes of the equation keeps
that name through differentiation and rematerialization."""


@dataclass
class Note:
    place: Place
    operation: str
    reason: str = ""
    """Why jax would stop here, in its own words; "": it would not."""
    summed: tuple[str, ...] = ()
    """Mesh axes along which devices have parts of its result that are to be added up."""
    result: Layout = ()
    """What was assumed of its result, where something is to be added up."""

    @property
    def is_constraint(self) -> bool:
        """Whether the model itself asks for its result's layout."""
        return self.operation == "sharding_constraint"


@dataclass
class Notebook:
    """Notes by the number of the equation."""

    notes: list[Note] = field(default_factory=list)

    def add(self, note: Note) -> str:
        """Returns the name for the equation's scope."""
        self.notes.append(note)
        return f"{MARK}{len(self.notes) - 1}"

    def find(self, equation: Any) -> Note | None:
        """Of what an equation was made from; None: it is nobody's."""
        numbers = re.findall(rf"\b{MARK}(\d+)\b", str(equation.source_info.name_stack))
        return self.notes[int(numbers[-1])] if numbers else None
