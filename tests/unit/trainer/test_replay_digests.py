"""Digests of a replay in which hosts have different copies of an array."""

import numpy as np

from trainer.integrity.replay import combined

CLEAN, CORRUPT = 7, 9


def of_hosts(corrupt: int | None) -> np.ndarray:
    """Digests of two arrays on three hosts, the second with a corrupt copy on one of them."""
    digests = np.full((3, 2), CLEAN, np.uint32)
    if corrupt is not None:
        digests[corrupt, 1] = CORRUPT
    return digests


def test_equal_copies_have_the_digest_of_one() -> None:
    assert combined(of_hosts(None)).tolist() == [CLEAN, CLEAN]


def test_the_digest_shows_which_process_has_the_corrupt_copy() -> None:
    found = [combined(of_hosts(process)).tolist() for process in range(3)]
    assert {first for first, _ in found} == {CLEAN}
    assert len({CLEAN, *(second for _, second in found)}) == 4
