"""What a long piece of work has finished so far, in a folder beside the file that it will become.

``<path>.parts`` holds ``job.json``, which says what is worked on, and one file for each finished part. Every file
appears whole or not at all, so that the work can be killed at any moment and taken up again.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from dpjax.table import atomically


class Parts:
    """The parts of the work that ends in ``path``.

    Args:
      path: the file that the work becomes.
      job: what determines the results, as JSON; parts of another job are refused.
      resume: whether to take up what is there.

    Raises:
      FileExistsError: there is something, and it is not to be taken up.
      ValueError: what is there belongs to another job.
    """

    def __init__(self, path: str | os.PathLike, job: dict[str, Any], resume: bool):
        self.path = Path(path)
        self.folder = self.path.with_name(self.path.name + ".parts")
        if not resume and (self.path.exists() or self.folder.exists()):
            there = self.path if self.path.exists() else self.folder
            raise FileExistsError(f"{there} exists: resume=True goes on with it; or remove it, or choose another path.")
        description = self.folder / "job.json"
        if description.exists():
            before = json.loads(description.read_text())
            changed = sorted(k for k in job.keys() | before.keys() if job.get(k) != before.get(k))
            if changed:
                raise ValueError(
                    f"{self.folder} holds another sweep: {', '.join(changed)} differ. Remove it, or choose another path."
                )
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(job, indent=1, sort_keys=True)
            atomically(description, lambda file: file.write_text(text))

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.npz"

    def get(self, number: int) -> dict[str, np.ndarray] | None:
        """The arrays of a part, or None if it is not finished."""
        if not self._file(number).exists():
            return None
        with np.load(self._file(number), allow_pickle=False) as arrays:
            return dict(arrays)

    def put(self, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Keeps a finished part."""

        def write(path: Path) -> None:
            with path.open("wb") as file:  # savez would append .npz to a name
                np.savez(file, **arrays)  # type: ignore[arg-type]

        atomically(self._file(number), write)

    def remove(self) -> None:
        """Forgets the parts: the work is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
