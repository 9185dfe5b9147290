"""Several stores as one cluster: brokers that share their topics, told apart by name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

from rmqlog.commitlog_format.errors import InvalidNameError, StoreNotFoundError
from rmqlog.commitlog_format.store import Store

_GLOB_CHARACTERS = frozenset("*?[")


class StoreSet:
    """Stores of one or many brokers, in the order of their paths."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)

    @classmethod
    def open(cls, paths: str | Sequence[str], **options: Any) -> StoreSet:
        """Open paths, which may be globs; ``options`` are those of :class:`Store`.

        A store is named by ``broker_name``, else by the component of its path that differs
        among them, else by its directory. Two stores with one name raise.
        """
        found = expand_paths([paths] if isinstance(paths, str) else paths)
        given = options.pop("broker_name", None)
        if given is not None and len(found) > 1:
            raise InvalidNameError(
                "one broker name for several stores", found=given, expected=f"{len(found)} names"
            )
        names = [given] if given is not None else broker_names(found)
        return cls(
            [Store(path, broker_name=name, **options)
             for path, name in zip(found, names, strict=True)]
        )

    def __iter__(self) -> Iterator[Store]:
        return iter(self.stores)

    def __len__(self) -> int:
        return len(self.stores)

    @property
    def topics(self) -> list[str]:
        """The topics of all stores."""
        return sorted({topic for store in self.stores for topic in store.topics})


def is_glob(path: str) -> bool:
    """Whether a path stands for all directories that match it."""
    return not _GLOB_CHARACTERS.isdisjoint(path)


def expand_paths(paths: Sequence[str]) -> list[str]:
    """The directories that paths and globs name, sorted, each once."""
    found: dict[str, None] = {}
    for path in paths:
        if is_glob(path):
            matches = sorted(filter(os.path.isdir, glob.glob(path)))
            if not matches:
                raise StoreNotFoundError("no directory matches", path)
            found.update(dict.fromkeys(match.rstrip("/") for match in matches))
        else:
            found[path.rstrip("/") or "/"] = None
    if not found:
        raise StoreNotFoundError("no store was named")
    return list(found)


def broker_names(paths: Sequence[str]) -> list[str]:
    """A name for each path: the one component that differs, else the last one."""
    components = [path.strip("/").split("/") for path in paths]
    names = [parts[-1] for parts in components]
    if len({len(parts) for parts in components}) == 1 and len(paths) > 1:
        for choices in zip(*components, strict=True):
            if len(set(choices)) == len(paths):
                names = list(choices)
                break
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidNameError(
                "two stores have the same broker name; give paths that differ in one folder, or "
                "rename a directory", paths[index], found=name,
                expected=f"another name than that of {paths[names.index(name)]}",
            )
    return names
