"""Bytes as tokens: 0 to 255 are the bytes, 256 stands before every document."""

from collections.abc import Iterable

import numpy as np

SEPARATOR = 256
TOKEN_DTYPE = np.uint16


def encode(text: bytes) -> np.ndarray:
    """The separator, then one token per byte."""
    tokens = np.empty(len(text) + 1, TOKEN_DTYPE)
    tokens[0] = SEPARATOR
    tokens[1:] = np.frombuffer(text, np.uint8)
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """Text up to the first separator; bytes that are no UTF-8 are shown as a replacement sign."""
    text = bytearray()
    for token in tokens:
        if token >= SEPARATOR:
            break
        text.append(token)
    return text.decode("utf-8", errors="replace")
