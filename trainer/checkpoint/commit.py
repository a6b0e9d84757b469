"""What happens in the moment of a commit, on process 0, around Orbax's own atomic step.

Orbax writes into `400.orbax-checkpoint-tmp` and makes it `400` when all processes have written (on
an object store, a marker file takes the place of the rename). Slipway checks its lease right before
that, and adds about.json, so that it is there if and only if the arrays are.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from etils import epath
from orbax.checkpoint._src.path import atomicity_defaults

Before = Callable[[epath.Path], None]
"""Called with the folder that is about to be committed; what it raises fails the save."""


def temporary_path_class(folder: epath.Path, before: Before, after: Callable[[], None]) -> Any:
    """Orbax's own class for `folder`, with `before` and `after` called around the commit."""
    base: Any = atomicity_defaults.get_default_temporary_path_class(folder)

    class Fenced(base):
        async def create(self) -> epath.Path:
            # The others wait for the folder without a deadline of ours: a failure is told later,
            # when all of them listen.
            self._creation_error: OSError | None = None
            try:
                return await super().create()
            except OSError as error:
                self._creation_error = error
                return self.get()

        async def finalize(self) -> None:
            if self._creation_error:
                raise self._creation_error
            await asyncio.to_thread(before, self.get())
            await super().finalize()
            await asyncio.to_thread(after)

    return Fenced
