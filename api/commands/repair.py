"""Checking and repairing a store: ``verify``, ``recover``, ``expire``, ``rebuild``."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from typing import Annotated, Any

import typer

from rmqlog.commands.guard import UsageError, findings
from rmqlog.commands.output import (
    format_size,
    print_fields,
    print_json,
    print_line,
    printable,
)
from rmqlog.commands.parameters import (
    CommitLogOption,
    DryRunOption,
    JsonOption,
    StoreArgument,
    YesOption,
    open_store,
)
from rmqlog.commands.progress import progress_bar
from rmqlog.commitlog_format.files import LocalFiles
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import list_store
from rmqlog.commitlog_format.verify import Finding, Severity, Verified, verify_store
from rmqlog.writer.posix import Posix
from rmqlog.writer.rebuild import rebuild as rebuild_store
from rmqlog.writer.recovery import preview
from rmqlog.writer.retention import ExpiryReport
from rmqlog.writer.retention import expire as expire_files
from rmqlog.writer.settings import StoreSettings
from rmqlog.writer.store_lock import StoreLock
from rmqlog.writer.store_writer import StoreWriter

ConfOption = Annotated[
    str | None,
    typer.Option("--conf", metavar="FILE", help="The broker's broker.conf, for its settings."),
]


def verify(
    store: StoreArgument,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything and say what is wrong.

    Records, checksums, queues, index, time order and config. Exit code 1 when the store is
    damaged; warnings and notes are worth knowing, but no answer is wrong because of them.
    """
    opened = open_store(store, commit_log)
    counts = Verified()
    severities: Counter[Severity] = Counter()
    with progress_bar("verifying") as progress:
        for finding in verify_store(opened, counts, progress):
            severities[finding.severity] += 1
            if as_json:
                print_json(_finding_facts(finding))
            else:
                _print_finding(finding, opened)
    damage = severities[Severity.DAMAGE]
    warnings, notes = severities[Severity.WARNING], severities[Severity.NOTE]
    if as_json:
        print_json({
            "verdict": "damaged" if damage else "sound", "damage": damage, "warnings": warnings,
            "notes": notes, "records": counts.record_count, "bytes": counts.record_size,
            "queueUnits": counts.unit_count, "indexEntries": counts.index_entry_count,
        })
    else:
        print_line(
            f"read {counts.record_count} records ({format_size(counts.record_size)}), "
            f"{counts.unit_count} queue units, {counts.index_entry_count} index entries"
        )
        print_line(f"{'DAMAGED' if damage else 'sound'}: {damage} damage, {warnings} warnings, "
                   f"{notes} notes")
    if damage:
        raise findings()


def _print_finding(finding: Finding, store: Store) -> None:
    place = finding.path.removeprefix(f"{store.path}/")
    if finding.offset >= 0:
        place = f"{place} at {finding.offset}".strip()
    text = f"{place}: {finding.what}" if place and place != store.path else finding.what
    lines = textwrap.wrap(printable(text), 80 - 18)
    for number, line in enumerate(lines):
        head = f"{finding.severity.value:<9}{finding.area:<9}" if number == 0 else " " * 18
        print_line(head + line)


def _finding_facts(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value, "area": finding.area, "what": finding.what,
        "path": finding.path or None, "offset": finding.offset if finding.offset >= 0 else None,
    }


def recover(
    store: StoreArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a store into order after a crash.

    As a broker does at its start: the log ends at the first record that does not check, queues
    and index are completed. What lies behind the end is not deleted but moved to STORE/rmqlog.
    Use --dry-run first.
    """
    settings = _settings(store, conf)
    with progress_bar("checking the log"):
        seen = preview(store.rstrip("/") or "/", settings)
        behind = sum(units.message_count for units in Store(store).tail.values())
    facts: dict[str, Any] = {
        "stopped": "clean" if seen.was_clean else "not in order: abort is there",
        "logStart": seen.log_start, "logEnd": seen.log_end, "checkedFrom": seen.walk_start,
        "notDispatched": behind,
        "cuts": [
            {"segment": cut.segment, "offset": cut.offset, "size": cut.size,
             "messages": cut.message_count, "reason": cut.reason} for cut in seen.cuts
        ],
    }
    if not dry_run:
        size = sum(cut.size for cut in seen.cuts)
        _confirm(f"recover {store}, setting {format_size(size)} aside?", yes)
        with (
            progress_bar("recovering"),
            StoreWriter(store, settings, background=False) as writer,
        ):
            for fact, cut in zip(facts["cuts"], writer.recovery.cuts, strict=False):
                fact["movedTo"] = cut.moved_to
            facts["logEnd"] = writer.recovery.log_end
    _print_recovery(facts, is_dry_run=dry_run, as_json=as_json)


def _print_recovery(facts: dict[str, Any], *, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({**facts, "dryRun": is_dry_run})
        return
    would = "would be " if is_dry_run else ""
    print_fields([
        ("stopped", facts["stopped"]),
        ("log", f"{facts['logStart']} to {facts['logEnd']}, checked from {facts['checkedFrom']}"),
        ("queues", f"{facts['notDispatched']} messages {would}added to queues and index"),
    ])
    for cut in facts["cuts"]:
        print_line(f"{would}set aside: {format_size(cut['size'])} from offset {cut['offset']}, "
                   f"{cut['messages']} whole messages")
        print_line(f"  {printable(cut['reason'])}")
        if "movedTo" in cut:
            print_line(f"  moved to {cut['movedTo']}")
    if not facts["cuts"]:
        print_line(f"nothing {would or 'was '}cut off")
    print_line("nothing was changed" if is_dry_run else "the store is in order")


def expire(
    store: StoreArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    hours: Annotated[
        int | None, typer.Option(min=0, help="Keep segments so many hours instead of "
                                             "fileReservedTime, 72.")
    ] = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the files that a broker would remove.

    Segments that were not changed for fileReservedTime, the oldest ones while the disk is too
    full, and the queue and index files that only point to them. Use --dry-run first.
    """
    settings = _settings(store, conf)
    if hours is not None:
        settings = settings.with_changes(fileReservedTime=hours)
    now_ms = time.time_ns() // 1_000_000
    path = store.rstrip("/") or "/"
    report = expire_files(Posix(), path, settings, now_ms, dry_run=True)
    if not dry_run and report.files:
        _confirm(f"remove {len(report.files)} files, {format_size(report.size)}?", yes)
        posix = Posix()
        with StoreLock(posix, path):
            report = expire_files(posix, path, settings, now_ms)
    _print_expiry(report, path, is_dry_run=dry_run, as_json=as_json)


def _print_expiry(
    report: ExpiryReport, store_path: str, *, is_dry_run: bool, as_json: bool
) -> None:
    if as_json:
        for file in report.files:
            print_json({"path": file.path, "size": file.size, "reason": file.reason})
        print_json({"files": len(report.files), "size": report.size,
                    "logStart": report.log_start, "dryRun": is_dry_run})
        return
    for file in report.files:
        print_line(f"{format_size(file.size):>10}  {file.path.removeprefix(store_path + '/')}")
        print_line(f"{'':>10}  {file.reason}")
    would = "would be removed" if is_dry_run else "removed"
    print_line(f"{len(report.files)} files, {format_size(report.size)} {would}; "
               f"the log begins at {report.log_start}")


def rebuild(
    store: StoreArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make queues and index anew from the log.

    The present ones are removed first; the log is not touched. Killed half-way, the next open
    of the store, by us or by a broker, makes them again.
    """
    settings = _settings(store, conf)
    opened = Store(store)
    facts: dict[str, Any] = {
        "queues": len(opened.files.queues), "indexFiles": len(opened.index.files),
        "logBytes": opened.end - opened.start, "dryRun": dry_run,
    }
    if not dry_run:
        _confirm(f"remove {facts['queues']} queues and {facts['indexFiles']} index files of "
                 f"{store}, and make them anew?", yes)
        with progress_bar("rebuilding"):
            report = rebuild_store(store, settings)
        facts["messages"] = report.message_count
        facts["logEnd"] = report.log_end.offset
    if as_json:
        print_json(facts)
    elif dry_run:
        print_line(f"would be removed: {facts['queues']} queues, {facts['indexFiles']} index "
                   f"files; made anew from {format_size(facts['logBytes'])} of log")
        print_line("nothing was changed")
    else:
        print_line(f"made anew from {facts['messages']} messages; the log ends at "
                   f"{facts['logEnd']}")


def _settings(store: str, conf: str | None) -> StoreSettings:
    """The settings of a store that there is: those of a file, else what its files tell."""
    list_store(LocalFiles(), store)
    return StoreSettings.from_file(conf) if conf else StoreSettings.of_store(store)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this changes the store: add --dry-run to see how, or --yes to do it")
    if not typer.confirm(question, err=True):
        raise typer.Exit
