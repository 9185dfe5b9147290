"""One writer, no broker: who gets the lock, and what the others are told."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import fork, in_two_processes

from rmqlog.commitlog_format.errors import StoreLockedError
from rmqlog.writer.posix import Posix
from rmqlog.writer.store_lock import StoreLock

# What a broker does at its start (DefaultMessageStore.start): tryLock(0, 1, false).
JAVA_LOCK = """
import java.io.RandomAccessFile;
import java.nio.channels.FileLock;
public class Lock {
    public static void main(String[] args) throws Exception {
        RandomAccessFile file = new RandomAccessFile(args[0] + "/lock", "rw");
        FileLock lock = file.getChannel().tryLock(0, 1, false);
        System.out.println(lock == null ? "refused" : "locked");
        if (lock != null) System.in.read();
    }
}
"""
LOCK_AND_WAIT = """
import sys
from rmqlog.writer.posix import Posix
from rmqlog.writer.store_lock import StoreLock
lock = StoreLock(Posix(), sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


@pytest.fixture(scope="module")
def java_lock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the compiled class ``Lock``."""
    if shutil.which("javac") is None:
        pytest.skip("no javac: the lock cannot be tried against Java")
    folder = tmp_path_factory.mktemp("java")
    (folder / "Lock.java").write_text(JAVA_LOCK)
    subprocess.run(["javac", str(folder / "Lock.java")], check=True)
    return str(folder)


def tree_hash(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        digest.update(str(file.relative_to(path)).encode())
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def test_a_second_writer_is_told_which_process_holds_the_store(tmp_path: Path) -> None:
    with StoreLock(Posix(), str(tmp_path)):
        before = tree_hash(tmp_path)
        with pytest.raises(StoreLockedError) as caught:
            StoreLock(Posix(), str(tmp_path))

        assert f"process {os.getpid()} on " in str(caught.value)
        assert caught.value.path == str(tmp_path / "lock")
        assert pickle.loads(pickle.dumps(caught.value)) == caught.value
        assert tree_hash(tmp_path) == before


def test_a_released_lock_can_be_taken_again_and_release_twice_is_fine(tmp_path: Path) -> None:
    lock = StoreLock(Posix(), str(tmp_path))
    lock.release()
    lock.release()

    with StoreLock(Posix(), str(tmp_path)):
        assert (tmp_path / "lock").read_bytes() == b"lock"


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    holder = start(sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path))
    assert first_line(holder) == "locked"
    with pytest.raises(StoreLockedError, match=f"process {holder.pid} on "):
        StoreLock(Posix(), str(tmp_path))

    holder.send_signal(signal.SIGKILL)
    end(holder)

    StoreLock(Posix(), str(tmp_path)).release()


def test_opening_and_closing_the_file_elsewhere_keeps_the_lock(tmp_path: Path) -> None:
    with StoreLock(Posix(), str(tmp_path)):
        (tmp_path / "lock").read_bytes()
        with pytest.raises(StoreLockedError):
            StoreLock(Posix(), str(tmp_path))


def test_a_forked_child_neither_holds_nor_frees_the_lock(tmp_path: Path) -> None:
    lock = StoreLock(Posix(), str(tmp_path))
    reader, writer = os.pipe()
    released, release = os.pipe()
    child = fork()
    if child == 0:
        lock.release()
        os.write(release, b"1")
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.close(release)
    os.read(released, 1)
    os.close(released)
    try:
        with pytest.raises(StoreLockedError):
            StoreLock(Posix(), str(tmp_path))
        lock.release()
        # The child lives on, but has closed its copy.
        StoreLock(Posix(), str(tmp_path)).release()
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_store_that_a_living_process_has_mapped_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(4096))
    holder = start(
        sys.executable, "-c",
        "import mmap, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0)\n"
        "    print('mapped', flush=True)\n"
        "    sys.stdin.read()\n",
        str(tmp_path / "segment"),
    )
    assert first_line(holder) == "mapped"
    (tmp_path / "abort").write_text(str(holder.pid))

    with pytest.raises(StoreLockedError, match=f"process {holder.pid} "):
        StoreLock(Posix(), str(tmp_path))

    end(holder)
    StoreLock(Posix(), str(tmp_path)).release()


def test_an_abort_file_that_names_an_unrelated_process_does_not_lock(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "abort").write_text(str(other.pid))

        StoreLock(Posix(), str(tmp_path)).release()
        other.kill()


def test_a_process_that_hides_its_maps_locks_only_if_it_may_be_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def hidden(path: Path, *arguments: str, **options: str) -> str:
        if path.name == "maps":
            raise PermissionError(path)
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    for name, is_refused in (("sleep", False), ("/opt/jdk/bin/java", True)):
        with subprocess.Popen([name, "60"], executable="/bin/sleep") as other:
            while not Path(f"/proc/{other.pid}/cmdline").read_bytes():
                time.sleep(0.001)  # it has no name yet
            (tmp_path / "abort").write_text(str(other.pid))
            if is_refused:
                with pytest.raises(StoreLockedError, match=f"process {other.pid} "):
                    StoreLock(Posix(), str(tmp_path))
            else:
                StoreLock(Posix(), str(tmp_path)).release()
            other.kill()


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b'{"pid": "x"}', b"\xff\xfe"])
def test_a_damaged_owner_file_only_costs_the_name(tmp_path: Path, content: bytes) -> None:
    with StoreLock(Posix(), str(tmp_path)):
        (tmp_path / "rmqlog" / "owner.json").write_bytes(content)
        with pytest.raises(StoreLockedError, match="written by somebody else"):
            StoreLock(Posix(), str(tmp_path))


def test_java_cannot_lock_what_we_hold(tmp_path: Path, java_lock: str) -> None:
    with StoreLock(Posix(), str(tmp_path)):
        java = start("java", "-cp", java_lock, "Lock", str(tmp_path))
        assert first_line(java) == "refused"
        end(java)


def test_we_cannot_lock_what_java_holds_and_can_when_it_dies(
    tmp_path: Path, java_lock: str
) -> None:
    java = start("java", "-cp", java_lock, "Lock", str(tmp_path))
    assert first_line(java) == "locked"

    with pytest.raises(StoreLockedError, match=f"process {java.pid} \\(java"):
        StoreLock(Posix(), str(tmp_path))

    java.send_signal(signal.SIGKILL)
    end(java)
    StoreLock(Posix(), str(tmp_path)).release()


def test_two_processes_never_hold_the_lock_together(tmp_path: Path) -> None:
    inside = tmp_path / "inside"

    def take_turns(index: int, _: int) -> int:
        taken = 0
        for _ in range(300):
            try:
                lock = StoreLock(Posix(), str(tmp_path / "store"))
            except StoreLockedError:
                continue
            inside.mkdir()  # fails if the other one is inside too
            taken += 1
            inside.rmdir()
            lock.release()
        return taken

    assert in_two_processes(take_turns) > 0
