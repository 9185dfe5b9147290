"""A file system that counts what is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.files import LocalFiles, ReadableFile


class CountingFiles(LocalFiles):
    """Files that count how many bytes of each kind are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}

    def open(self, path: str) -> ReadableFile:
        kind = Path(path).parent.name
        file, sizes = super().open(path), self.sizes

        class Counted:
            path = file.path

            def size(self) -> int:
                return file.size()

            def read(self, offset: int, size: int) -> bytes:
                sizes[kind] = sizes.get(kind, 0) + size
                return file.read(offset, size)

            def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
                sizes[kind] = sizes.get(kind, 0) + len(target)
                file.read_into(offset, target)

            def window(self, offset: int, size: int, *, sequential: bool = False) -> object:
                sizes[kind] = sizes.get(kind, 0) + size
                return file.window(offset, size, sequential=sequential)

        return Counted()  # type: ignore[return-value]
