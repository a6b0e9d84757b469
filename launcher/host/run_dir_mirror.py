"""A run's folder on a host that does not share it: a copy of what the program reads there.

Standard library only, as process.py.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.core.files import replace_file
from launcher.host.log_reader import LogFile


class CopiedFolder:
    """Holds `files` (name -> text) from now on; tells what is added to the files `followed`.

    `made`: files that the program is to make anew; earlier ones are removed. Raises OSError where
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
        """Name -> the next bytes of those that have any: the rest comes when it is asked again."""
        chunks = {name: log.read() for name, log in self._logs.items()}
        return {name: chunk for name, chunk in chunks.items() if chunk}

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
