"""A program in place of the trainer: it meets its peers, makes steps that do nothing, and says so.

    python -I -S stub.py STEPS SECONDS_A_STEP

Standard library only, so that 64 of them start in a moment. They meet as JAX's processes do:
process 0 listens at JAX_COORDINATOR_ADDRESS, and nobody goes on before all are there.
"""

import json
import os
import socket
import sys
import time

HEARTBEAT_EVERY_S = 2.0
RETRY_S = 0.1
GO = b"go"
PROCESS, PROCESSES = (
    int(os.environ[f"SLIPWAY_{name}"]) for name in ("PROCESS_ID", "NUM_PROCESSES")
)


def main() -> None:
    """Events: `started`, `initialized` once all have met, then `step`s with heartbeats between."""
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    _say("started")
    peers = _meet()
    _say("initialized", processes=1 + len(peers) if PROCESS == 0 else PROCESSES)
    beat_at = 0.0
    for step in range(1, steps + 1):
        if time.monotonic() >= beat_at:
            beat_at = time.monotonic() + HEARTBEAT_EVERY_S
            _say(
                "heartbeat",
                phase="train",
                step=step,
                host_time_s=0.001,
                cpu_probe_s=0.0,
                step_time_s=step_s,
            )
        time.sleep(step_s)
        _say("step", step=step, loss=1.0, step_time_s=step_s)
    _say("finished")


def _say(event: str, **fields: object) -> None:
    line = json.dumps({"time": time.time(), "process": PROCESS, "event": event, **fields})
    os.write(int(os.environ["SLIPWAY_EVENTS_FD"]), line.encode() + b"\n")


def _meet() -> list[socket.socket]:
    """Connections to all others, of process 0; of another, to process 0."""
    host, _, port = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
    if PROCESS != 0:
        connection = _connect(host, int(port))
        assert connection.recv(len(GO)) == GO
        return [connection]
    with socket.create_server((host, int(port)), backlog=PROCESSES) as server:
        others = [server.accept()[0] for _ in range(PROCESSES - 1)]
    for other in others:
        other.sendall(GO)
    return others


def _connect(host: str, port: int) -> socket.socket:
    """Process 0 may come later; the launcher ends the processes that wait for a failed host."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
