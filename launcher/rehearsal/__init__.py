"""Rehearsals: the real control plane of a run with stubs of hosts, in accelerated time."""
