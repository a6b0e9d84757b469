"""Whom the compiler is asked about: down the ranking, until enough fit."""

from collections import deque

import pytest

from launcher.planning.compiler import (
    MOST,
    WANTED,
    CompiledCandidate,
    at_once,
    next_to_ask,
)
from tests.support.llama_jobs import CORPUS, job_of, world_of
from trainer.contract.estimates.search import Candidate, rank
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport


@pytest.fixture
def waiting() -> deque[Candidate]:
    job = job_of(64)
    ranking = rank(job, resolve(job, world_of("v5p-64"), CORPUS))
    assert ranking
    return deque(ranking.fitting)


def said(candidate: Candidate, fits: bool) -> CompiledCandidate:
    return CompiledCandidate(candidate, CompileReport(fits, None, 0, {}, 1.0, ""))


def test_the_likely_best_is_asked_about_first(waiting: deque[Candidate]) -> None:
    first, second = list(waiting)[:2]
    assert next_to_ask(waiting, [], 0) is first
    assert next_to_ask(waiting, [said(first, True)], 0) is second


def test_when_enough_fit_nobody_is_asked_any_more(waiting: deque[Candidate]) -> None:
    fitting = [said(one, True) for one in list(waiting)[:WANTED]]
    assert next_to_ask(waiting, fitting, 0) is None
    assert next_to_ask(waiting, fitting[:-1], 1) is None, "the one under way may fit"
    assert next_to_ask(waiting, fitting[:-1], 0) is not None


def test_what_needs_more_than_one_that_did_not_fit_is_passed_over(
    waiting: deque[Candidate],
) -> None:
    refused = sorted(waiting, key=lambda one: one.footprint.total)[len(waiting) // 2]
    found = next_to_ask(waiting, [said(refused, False)], 0)
    assert found and found.footprint.total < refused.footprint.total


def test_there_is_an_end_where_nothing_fits(waiting: deque[Candidate]) -> None:
    largest = max(waiting, key=lambda one: one.footprint.total)
    assert next_to_ask(waiting, [said(largest, False)] * MOST, 0) is None
    smallest = min(waiting, key=lambda one: one.footprint.total)
    assert next_to_ask(waiting, [said(smallest, False)], 0) is None


def test_a_failure_of_the_compiler_says_nothing_of_the_size(waiting: deque[Candidate]) -> None:
    smallest = min(waiting, key=lambda one: one.footprint.total)
    assert next_to_ask(waiting, [CompiledCandidate(smallest, failure="crashed")], 0) is not None


def test_one_process_has_room_everywhere() -> None:
    assert at_once() >= 1
