"""Any events of a run, with missing and wrong fields, in any order."""

from typing import Any

from hypothesis import strategies as st

from tests.support.run_builders import BEGIN_S, DAY_S

NAMES = ["data", "compile", "restore", "train", "save", "evaluate", "sample", "lunch"]
STATES = [
    "provisioning", "starting", "running", "backing_off", "waiting_for_hosts", "waiting_for_runs",
]  # fmt: skip
ENDS = ["finished", "failed", "stopped", "interrupted", "over_budget"]
END_REASONS = ["finished", "stopped", "budget", "crash", "hang", "lost", "preempted", "final"]
junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3), st.just([]))
times = st.one_of(st.floats(BEGIN_S, BEGIN_S + DAY_S), junk)
steps = st.one_of(st.integers(0, 20), junk)


def any_event(states: list[str], names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    names_of_all = st.sampled_from([*names, "heartbeat", "eval"]) | st.text(max_size=3)
    fields = {
        "process": st.sampled_from([0, 0, 0, 1]) | junk,
        "attempt": st.integers(1, 3) | junk,
        "time": times,
        "received": times,
        "state": st.sampled_from(states) | junk,
        "end_reason": st.sampled_from(END_REASONS) | junk,
        "name": st.sampled_from(NAMES) | junk,
        "edge": st.sampled_from(["begin", "end"]) | junk,
        "step": steps,
        "data_wait_s": st.floats(0, 100) | junk,
    }
    return st.fixed_dictionaries({"event": names_of_all}, optional=fields)
