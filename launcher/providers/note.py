"""What a run's folder remembers of what the run has elsewhere."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel

from launcher.files import replace_file


class Note(BaseModel):
    """In a file of its own, from before what it tells of is made."""

    FILE: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Of the run in `folder`; None: it has nothing of this kind."""
        try:
            return cls.model_validate_json((folder / cls.FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def write(self, folder: Path) -> None:
        """In place of the one before."""
        replace_file(folder / self.FILE, self.model_dump_json(indent=2))
