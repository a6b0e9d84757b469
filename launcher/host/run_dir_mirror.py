"""A copy of the run's folder, with what the program reads, on a host that does not share it.

Standard library only, like process.py.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.core.files import replace_file
from launcher.host.log_reader import LogFile
from trainer.contract.storage import kept_programs


class CopiedFolder:
    """Writes `files` (name -> content) to the folder; `written` returns additions to `followed`.

    `made`: followed files that the program creates; existing ones are removed, like compiled
    programs that are not among `files`. Raises OSError when the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, bytes],
        followed: Collection[str],
        made: Collection[str],
    ) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, content)
        _remove_programs(folder / kept_programs.IN_RUN, files)
        for name in made:
            (folder / name).unlink(missing_ok=True)
        self._logs = {name: LogFile(folder / name, tail=0) for name in (*followed, *made)}

    def written(self) -> dict[str, bytes]:
        """Returns name -> the next bytes of each file that has any; the next call continues."""
        chunks = {name: log.read() for name, log in self._logs.items()}
        return {name: chunk for name, chunk in chunks.items() if chunk}

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


def _remove_programs(folder: Path, files: Collection[str]) -> None:
    """Removes the compiled programs of an earlier start that are not among the files."""
    for path in folder.glob("*"):
        if f"{folder.name}/{path.name}" not in files:
            path.unlink(missing_ok=True)  # another process of this host may be first
    with suppress(OSError):  # it is missing, or not empty
        folder.rmdir()
