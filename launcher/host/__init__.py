"""What happens on each host, without Ray: a program, its output, its whole tree of processes."""
