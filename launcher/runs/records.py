"""Records in a run's folder of what the run has outside the folder and this machine."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ValidationError

from launcher.core.errors import HostError
from launcher.core.files import replace_file


class RunRecord(BaseModel):
    """A record in its own file, written before the resource that it describes is created."""

    FILE: ClassVar[str]
    REMEDY: ClassVar[str] = "Look for what the run has there, then remove the file"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Reads the record of the run in `folder`. Returns None when there is none of this kind.

        Raises RunRecordError for a file without a valid record, HostError for a file that
        cannot be read now.
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
            raise HostError(f"{path} cannot be read: {why}. {cls.REMEDY}") from None

    def write(self, folder: Path) -> None:
        """Writes the record, in place of a previous one."""
        replace_file(folder / self.FILE, self.model_dump_json(indent=2))

    def forget(self, folder: Path) -> None:
        """Removes the record, because no such resource remains."""
        (folder / self.FILE).unlink(missing_ok=True)


class KubernetesRecord(RunRecord):
    """A RayCluster and a Secret of the same name, recorded before they are created."""

    FILE: ClassVar = "kubernetes.json"
    REMEDY: ClassVar = (
        "A RayCluster and a Secret of the run may still be there: find them with `kubectl get "
        "rayclusters --all-namespaces -l app.kubernetes.io/managed-by=slipway`, delete both, then "
        "remove the file"
    )

    name: str
    namespace: str
    context: str | None


class RunRecordError(HostError):
    """A file has no valid record; reading it again does not help."""
