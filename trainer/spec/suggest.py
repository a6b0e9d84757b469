"""What a mistyped word was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the nearest known word, or "" where none is near."""
    by_lower = {name.lower(): name for name in known}
    nearest = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean '{by_lower[nearest[0]]}'?" if nearest else ""
