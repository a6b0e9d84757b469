"""The part that runs on each host, without Ray: a program, its output, its whole process tree."""
