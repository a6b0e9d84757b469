"""Which documents are kept for evaluation: those whose names' hashes are below a threshold."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def places(names: Iterable[str]) -> np.ndarray:
    """A number in [0, 1) for each, that the name alone decides."""
    return np.array([_place(name) for name in names], np.float64)


@dataclass
class HeldOut:
    """A share of the documents, told part by part.

    A new document moves no other one between the parts, except that each part has at least one
    document where there are two.
    """

    share: float
    documents: int = 0
    below: int = 0
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, some: np.ndarray) -> None:
        """The places of more documents."""
        self.documents += len(some)
        self.below += int(np.sum(some < self.share))
        self.lowest = min(self.lowest, some.min(initial=1.0))
        self.highest = max(self.highest, some.max(initial=0.0))

    @property
    def threshold(self) -> float:
        """Documents with places below it are held out; ask when all have been told."""
        if self.share == 0 or self.documents < 2:
            return 0.0
        if self.below == 0:
            return float(np.nextafter(self.lowest, 1.0))
        return self.highest if self.below == self.documents else self.share


def _place(name: str) -> float:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
