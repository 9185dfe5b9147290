"""Which batch commits are done: ``<store>/rmqlog/commits.json``.

It keeps the last version of every application that numbers its writes, and the last jobs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.config_files import parse_json
from rmqlog.commitlog_format.errors import CorruptConfigError
from rmqlog.writer.posix import Posix

#: More than drivers that could still ask for the outcome of their jobs.
_JOBS_KEPT = 100


@dataclass(frozen=True, slots=True)
class Transaction:
    """An application's own number for a write; only higher ones than the last are written."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class JobId:
    """What a batch commit is known by."""

    job_id: str
    transaction: Transaction | None = None

    def __str__(self) -> str:
        if self.transaction is None:
            return f"job {self.job_id}"
        return f"job {self.job_id} ({self.transaction.app_id} {self.transaction.version})"

    def to_json(self) -> dict[str, Any]:
        """Members of a JSON object."""
        members: dict[str, Any] = {"job": self.job_id}
        if self.transaction is not None:
            members["txnAppId"] = self.transaction.app_id
            members["txnVersion"] = self.transaction.version
        return members

    @classmethod
    def from_json(cls, members: dict[str, Any], path: str) -> JobId:
        """The inverse of :meth:`to_json`."""
        job_id, app_id = members.get("job"), members.get("txnAppId")
        if not isinstance(job_id, str):
            raise CorruptConfigError("no job is named", path, found=repr(job_id)[:80])
        if app_id is None:
            return cls(job_id)
        version = members.get("txnVersion")
        if not isinstance(app_id, str) or isinstance(version, bool) or not isinstance(version, int):
            raise CorruptConfigError("no transaction is named", path, found=repr(version)[:80])
        return cls(job_id, Transaction(app_id, version))


class CommitRecords:
    """The commits that are done, as the file says when this is made."""

    def __init__(self, posix: Posix, store_path: str) -> None:
        self._posix = posix
        self._path = f"{store_path}/{layout.RMQLOG_DIRECTORY}/{layout.COMMIT_RECORDS_FILE}"
        content = _read(self._path)
        self._versions: dict[str, int] = _member(content, "transactions", dict, self._path)
        self._jobs: list[str] = _member(content, "jobs", list, self._path)

    def is_done(self, job: JobId) -> bool:
        """Whether a job, or one of its application with no lower version, is done."""
        transaction = job.transaction
        if transaction is not None:
            last = self._versions.get(transaction.app_id)
            if last is not None and transaction.version <= last:
                return True
        return job.job_id in self._jobs

    def add(self, job: JobId) -> None:
        """Note that a job is done; on disk when it returns. Again is fine."""
        if self.is_done(job):
            return
        if job.transaction is not None:
            self._versions[job.transaction.app_id] = job.transaction.version
        self._jobs = [*self._jobs, job.job_id][-_JOBS_KEPT:]
        content = {"transactions": self._versions, "jobs": self._jobs}
        self._posix.mkdir(os.path.dirname(self._path))
        self._posix.replace_file(self._path, json.dumps(content, indent=2).encode())


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return parse_json(file.read(), path)
    except FileNotFoundError:
        return {}


def _member(content: dict[str, Any], name: str, kind: type, path: str) -> Any:
    found = content.get(name, kind())
    if not isinstance(found, kind):
        raise CorruptConfigError(f"{name} cannot be read", path, found=repr(found)[:80])
    return found
