"""A copy of the run's folder, with what the program reads, on a host that does not share it.

Standard library only, like process.py.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.core.files import replace_file
from launcher.host.log_reader import LogFile


class CopiedFolder:
    """Writes `files` (name -> text) to the folder; `written` returns additions to `followed`.

    `made`: followed files that the program creates; existing ones are removed. Raises OSError when
    the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, str],
        followed: Collection[str],
        made: Collection[str],
    ) -> None:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, text)
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
