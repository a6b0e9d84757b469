"""The relay of a program's output, in this process, with a log on storage that has trouble."""

import errno
import os
from pathlib import Path

from launcher.host import log_writer


def test_a_stale_handle_of_the_log_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    log, real, troubles = tmp_path / "host.log", os.fstat, [1]
    made = log_writer.Relay(str(log), 1 << 20)
    made._take(b"before\n")

    def fstat(descriptor: int) -> os.stat_result:
        if troubles:
            troubles.pop()
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(descriptor)

    monkeypatch.setattr(log_writer.os, "fstat", fstat)
    made._take(b"meanwhile\n")
    made._take(b"after\n")
    assert log.read_bytes() == b"before\nmeanwhile\nafter\n"
    assert not troubles
