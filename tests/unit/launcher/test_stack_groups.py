"""Processes with equal stacks are one group of `launch stacks`."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.diagnosis.stacks import NOT_READ, group_stacks, title

FAULTHANDLER = """
Thread 0x00007f0c7dffb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f0c8a2b1740 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/me/train.py", line {line} in next_batch
  File "/home/me/train.py", line 40 in <module>
"""
PY_SPY = """\
[py-spy: process 7, state T (stopped)]
Process 7: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    next_batch (/home/me/train.py:31)
    <module> (/home/me/train.py:40)
"""


def stack(line: int = 31) -> str:
    return FAULTHANDLER.format(line=line)


def test_largest_group_is_first() -> None:
    groups = group_stacks({0: stack(12), 1: stack(), 2: stack(), 3: stack()}, {})
    assert [group.processes for group in groups] == [[1, 2, 3], [0]]


def test_threads_other_than_the_main_one_divide_no_group() -> None:
    other = stack().replace("line 331 in wait", "line 99 in run")
    assert len(group_stacks({0: stack(), 1: other}, {})) == 1


def test_title_says_where_the_program_is_and_in_which_call() -> None:
    (group,) = group_stacks({0: stack(), 1: stack()}, {0: "data", 1: "data"})
    assert title(group, 4) == (
        "2 of 4 processes (host-0000, host-0001), data: at /home/me/train.py:31 in next_batch, "
        "waiting in queue.py:171 in get"
    )


def test_stopped_process_is_a_group_with_its_state() -> None:
    groups = group_stacks({0: stack(), 1: PY_SPY, 2: stack()}, {})
    assert [(group.processes, group.state) for group in groups] == [
        ([0, 2], ""), ([1], "T (stopped)")
    ]  # fmt: skip
    assert "(host-0001), T (stopped): at /home/me/train.py:31 in next_batch" in title(groups[1], 3)


def test_process_without_stacks_is_named() -> None:
    groups = group_stacks({0: stack(), 1: ""}, {1: "start"})
    assert title(groups[1], 2) == f"1 of 2 processes (host-0001), start: {NOT_READ}"


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([stack(), stack(12), PY_SPY, "", "x"])))
def test_each_process_is_in_one_group(texts: dict[int, str]) -> None:
    groups = group_stacks(texts, {})
    assert sorted(p for group in groups for p in group.processes) == sorted(texts)
    sizes = [len(group.processes) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
