"""Commits a checkpoint on process 0, around Orbax's own atomic step.

Orbax writes into `400.orbax-checkpoint-tmp-LABEL` and renames it to `400` when all processes have
written. Right before the rename, Slipway checks its lease and adds about.json, so that the file
exists if and only if the arrays do. An object store cannot rename: Orbax writes into `400/LABEL/`
and finishes with its own file. `400/about.json` follows as the commit and names the LABEL.

LABEL names the attempt, its lease and the save, so that no two saves ever write the same file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etils import epath

from trainer.checkpoint.private import atomicity_defaults
from trainer.contract.storage import durable_files
from trainer.contract.storage.paths import is_url

TEMPORARY = ".orbax-checkpoint-tmp"
"""Orbax's suffix for unfinished steps: the step precedes it, and Slipway's label follows it."""


def temporary_path_class(
    folder: epath.Path,
    label: Callable[[], str],
    commit: Callable[[epath.Path], None],
    after: Callable[[], None],
) -> Any:
    """Returns Orbax's own class for `folder`, with `commit` and `after` called at its end.

    `label` returns the name of what is written. `commit` receives the folder to commit; an
    exception from it fails the save.
    """
    base: Any = atomicity_defaults.get_default_temporary_path_class(folder)

    class Fenced(base):
        @classmethod
        def from_final(cls, final_path: epath.Path, **options: Any) -> Any:
            path = super().from_final(final_path, **options)
            if is_url(folder):
                path._tmp_path = path._final_path = final_path / label()
            else:
                path._tmp_path = final_path.with_name(f"{final_path.name}{TEMPORARY}-{label()}")
            return path

        async def create(self) -> epath.Path:
            # The other processes wait for the folder without a Slipway deadline. An error is
            # raised later, in `finalize`, when all of them can receive it.
            self._creation_error: Exception | None = None
            try:
                if is_url(folder) and not await asyncio.to_thread(folder.exists):
                    # The folder holds at least the lease. To create the folder again, gcsfs would
                    # create a new bucket.
                    raise FileNotFoundError(f"{folder} no longer exists")
                return await super().create()
            except Exception as error:
                self._creation_error = error
                return self.get()

        async def finalize(self) -> None:
            if self._creation_error:
                raise self._creation_error
            if is_url(folder):
                await super().finalize()
                await asyncio.to_thread(commit, self.get())
            else:
                await asyncio.to_thread(commit, self.get())
                await super().finalize()
                await asyncio.to_thread(durable_files.sync, Path(folder))
            await asyncio.to_thread(after)

    return Fenced
