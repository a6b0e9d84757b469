"""What a run has outside its folder and this machine, as its folder remembers it."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ValidationError

from launcher.core.errors import ProviderError
from launcher.core.files import replace_file


class RunRecord(BaseModel):
    """In a file of its own, from before what it tells of is made."""

    FILE: ClassVar[str]
    REMEDY: ClassVar[str] = "Look for what the run has there, then remove the file"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Reads the note of the run in `folder`; None: it has none of this kind.

        Raises RunRecordError for a file without a record, ProviderError for one that cannot be
        read now.
        """
        path = folder / cls.FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            why = f"{error.errors()[0]['msg']} ({path.stat().st_size} bytes)"
            raise RunRecordError(f"{path} cannot be read: {why}. {cls.REMEDY}") from None
        except OSError as error:
            why = error.strerror
            raise ProviderError(f"{path} cannot be read: {why}. {cls.REMEDY}") from None

    def write(self, folder: Path) -> None:
        """In place of the one before."""
        replace_file(folder / self.FILE, self.model_dump_json(indent=2))

    def forget(self, folder: Path) -> None:
        """Removes it: there is nothing elsewhere."""
        (folder / self.FILE).unlink(missing_ok=True)


class KubernetesRecord(RunRecord):
    """A RayCluster and a Secret of one name; noted before they are made."""

    FILE: ClassVar = "kubernetes.json"
    REMEDY: ClassVar = (
        "A RayCluster and a Secret of the run may still be there: find them with `kubectl get "
        "rayclusters --all-namespaces -l app.kubernetes.io/managed-by=slipway`, delete both, then "
        "remove the file"
    )

    name: str
    namespace: str
    context: str | None


class RunRecordError(ProviderError):
    """What a file has is no note: reading it again does not help."""
