"""Names of hosts and processes, in messages and for files. Launcher and trainer share them.

A process that has a host to itself has the name of the host.
"""


def host_name(host: int) -> str:
    """Returns "host-0003"."""
    return f"host-{host:04d}"


def process_name(process: int, per_host: int = 1) -> str:
    """Returns "host-0003"; with several processes on each host, "process-0007 (host-0003)"."""
    name = file_stem(process, per_host)
    return name if per_host == 1 else f"{name} ({host_name(process // per_host)})"


def file_stem(process: int, per_host: int = 1) -> str:
    """Returns the name of a process's files: "host-0003", or "process-0007"."""
    return host_name(process) if per_host == 1 else f"process-{process:04d}"


def process_noun(per_host: int) -> str:
    """Returns the noun in front of a process's number: "host", or "process"."""
    return "host" if per_host == 1 else "process"
