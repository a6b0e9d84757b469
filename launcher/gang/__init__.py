"""One program on all hosts, all or none, over Ray."""
