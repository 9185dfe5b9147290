"""The handler of SIGBUS: what is its own it survives, what is not ends the process as before."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bad_input import child_process, run_in_child

from rmqlog.commitlog_format import bus_guard as module
from rmqlog.commitlog_format import mapped_windows
from rmqlog.commitlog_format.bus_guard import BusGuard, SignalInfo, bus_guard, is_supported
from rmqlog.commitlog_format.mapped_windows import intact, map_window

pytestmark = pytest.mark.skipif(not is_supported(), reason="no handler on this system")

SIZE = 64 * 1024
BUS_ADRERR = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file without zeros."""
    (tmp_path / "file").write_bytes(b"\1" * SIZE)
    return tmp_path / "file"


@pytest.fixture
def guard() -> Iterator[BusGuard]:
    """A second guard over the one of this process, which is the handler again afterwards."""
    first = bus_guard()
    assert first is not None
    first.watch(0, 0).forget()
    second = BusGuard()
    second.watch(0, 0).forget()
    yield second
    while handler() == address_of(second):
        second._hand_on()
    assert handler() == address_of(first)


def address_of(guard: BusGuard) -> int | None:
    """The address of a guard's handler."""
    return ctypes.cast(guard._callback, ctypes.c_void_p).value


def handler() -> int | None:
    """The address of the handler that this process has for SIGBUS."""
    action = module._Action()
    ctypes.CDLL(None).sigaction(signal.SIGBUS, None, ctypes.byref(action))
    found: int | None = action.handler
    return found


def signalled(guard: BusGuard, address: int, code: int = BUS_ADRERR) -> None:
    """Call the handler as the kernel does."""
    info = SignalInfo(signal=signal.SIGBUS, code=code, address=address)
    guard.on_signal(signal.SIGBUS, ctypes.pointer(info), None)


def address_in(window: np.ndarray) -> int:
    """Where a window is in memory."""
    return int(window.__array_interface__["data"][0])


def mapped(path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """All of a file, watched by a guard."""
    monkeypatch.setattr(mapped_windows, "bus_guard", lambda: guard)
    with open(path, "rb") as file:
        return map_window(file.fileno(), str(path), 0, SIZE)


def test_a_fault_in_a_watched_range_leaves_zeros_and_a_mark(
    path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, other = (mapped(path, guard, monkeypatch) for _ in range(2))
    signalled(guard, address_in(window) + SIZE - 1)

    assert not window.any()
    assert other.all()
    assert [watched.lost for watched in guard._ranges.values()] == [True, False]
    signalled(guard, address_in(window))  # a thread that failed at the same time
    assert handler() == address_of(guard)


def test_a_window_is_watched_as_long_as_somebody_holds_it(
    path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = mapped(path, guard, monkeypatch)
    part = window[10:20].view(np.int8)
    del window
    assert len(guard._ranges) == 1
    del part
    assert not guard._ranges


@pytest.mark.parametrize("place", [-1, SIZE])
def test_a_fault_elsewhere_goes_to_the_handler_before(
    path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    window = mapped(path, guard, monkeypatch)
    signalled(guard, address_in(window) + place)

    assert handler() not in (None, address_of(guard))
    with intact(window):
        assert window.all()
    again = mapped(path, guard, monkeypatch)
    assert handler() == address_of(guard)
    assert again.all()


def test_a_fault_that_cannot_be_mended_goes_to_the_handler_before(
    path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = mapped(path, guard, monkeypatch)
    monkeypatch.setattr(guard, "_mmap", lambda *_: 2**64 - 1)
    signalled(guard, address_in(window))

    assert handler() != address_of(guard)


def test_a_signal_that_somebody_sent_is_sent_again_to_the_handler_before(
    path: Path, guard: BusGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int | None] = []
    monkeypatch.setattr(signal, "raise_signal", lambda _: sent.append(handler()))
    window = mapped(path, guard, monkeypatch)
    signalled(guard, address_in(window), code=0)  # the bytes of an address mean nothing then

    assert sent == [handler()] != [address_of(guard)]
    assert window.all()


def test_after_all_handlers_before_comes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = BusGuard()
    given: list[tuple[int | None, int]] = []

    def sigaction(_signal: int, action: object, _old: object) -> int:
        found = action._obj  # type: ignore[attr-defined]
        given.append((found.handler, found.flags))
        return 0

    monkeypatch.setattr(guard, "_sigaction", sigaction)
    signalled(guard, 4096)

    assert given == [(None, 0)]


def test_where_signals_are_other_ones_nothing_is_watched(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.platform, "machine", lambda: "s390x")
    monkeypatch.setattr(module, "_guards", {})
    assert bus_guard() is None

    with open(path, "rb") as file:
        window = map_window(file.fileno(), str(path), 0, SIZE)
    with intact(window):
        assert window.all()


#: Says which signals have a handler, before and after a window was mapped.
HANDLERS = '''
import signal
import rmqlog, rmqlog.commitlog_format.store
from rmqlog.commitlog_format.files import LocalFile

def is_handled():
    with open("/proc/self/status") as status:
        caught, = (int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(caught >> signal.SIGBUS - 1 & 1)

imported = is_handled()
file = LocalFile(sys.argv[1])
file.window(0, 1 << 20)
copied = is_handled()
window = file.window(0, (1 << 20) + 1)
print(json.dumps({"imported": imported, "copied": copied, "mapped": is_handled()}))
'''


def test_nothing_is_handled_before_something_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2 << 20))

    found = run_in_child(HANDLERS, tmp_path / "large")
    assert found == {"imported": False, "copied": False, "mapped": True}


#: A mapping of ours and one that is not; then the latter fails.
FOREIGN_FAULT = '''
import faulthandler, mmap, signal
from rmqlog.commitlog_format.files import LocalFile

path, how = sys.argv[1:]
if how == "faulthandler before":
    faulthandler.enable()
ours = LocalFile(path).window(0, 2 << 20)
if how == "faulthandler after":
    faulthandler.enable()
    again = LocalFile(path).window(0, 2 << 20)
if how == "sent":
    os.kill(os.getpid(), signal.SIGBUS)
with open(path, "rb") as file:
    foreign = mmap.mmap(file.fileno(), 2 << 20, mmap.MAP_SHARED, mmap.PROT_READ)
os.truncate(path, 0)
print(json.dumps(int(ours[5000])), flush=True)
foreign[5000]
'''


@pytest.mark.parametrize("how", ["alone", "faulthandler before", "faulthandler after", "sent"])
def test_a_signal_that_is_not_ours_still_ends_the_process(tmp_path: Path, how: str) -> None:
    (tmp_path / "large").write_bytes(b"\1" * (2 << 20))
    process = child_process(FOREIGN_FAULT, tmp_path / "large", how)

    assert process.returncode == -signal.SIGBUS, process.stderr
    assert process.stdout == ("" if how == "sent" else "0\n")
    assert ("Fatal Python error: Bus error" in process.stderr) == how.startswith("faulthandler")


#: A window that was mapped before a fork is lost in the child, then in the parent.
FORK = '''
from rmqlog.commitlog_format.errors import TruncatedFileError
from rmqlog.commitlog_format.files import LocalFile
from rmqlog.commitlog_format.mapped_windows import intact

window = LocalFile(sys.argv[1]).window(0, 2 << 20)
os.truncate(sys.argv[1], 5000)

def reads_zeros_and_is_told():
    try:
        with intact(window):
            assert not window[8192:].any()
    except TruncatedFileError as error:
        return error.path == sys.argv[1]

child = os.fork()
if child == 0:
    os._exit(0 if reads_zeros_and_is_told() else 1)
status = os.waitpid(child, 0)[1]
print(json.dumps({"child": status, "parent": reads_zeros_and_is_told()}))
'''


def test_a_forked_process_survives_as_its_parent_does(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"\1" * (2 << 20))

    assert run_in_child(FORK, tmp_path / "large") == {"child": 0, "parent": True}


#: Faults where hardly a call can be made any more: an error, not the same fault for ever.
DEEP_CALLS = """
from rmqlog.commitlog_format.errors import TruncatedFileError
from rmqlog.commitlog_format.files import LocalFile
from rmqlog.commitlog_format.mapped_windows import intact

path = sys.argv[1]
file = LocalFile(path)

def read(window, depth):
    if depth:
        return read(window, depth - 1)
    with intact(window):
        return inner(window, 5)

def inner(window, depth):
    return inner(window, depth - 1) if depth else int(window.sum())

outcomes = []
for depth in range(sys.getrecursionlimit() - 80, sys.getrecursionlimit() + 1):
    os.truncate(path, 2 << 20)
    window = file.window(0, 2 << 20)
    os.truncate(path, 0)
    try:
        outcomes.append(read(window, depth))
    except (TruncatedFileError, RecursionError) as error:
        outcomes.append(type(error).__name__)
print(json.dumps({"outcomes": sorted(set(outcomes))}))
"""


def test_a_fault_in_the_deepest_of_calls_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"\1" * (2 << 20))
    result = run_in_child(DEEP_CALLS, tmp_path / "large")

    assert result == {"outcomes": ["RecursionError", "TruncatedFileError"]}


#: Many faults in all kinds of code that reads memory, in several threads, some in one window.
MANY_FAULTS = '''
import random, threading, zlib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng import zlib_ng
from rmqlog.commitlog_format import files
from rmqlog.commitlog_format.binary_columns import gather_binary, items_at
from rmqlog.commitlog_format.bus_guard import bus_guard
from rmqlog.commitlog_format.errors import TruncatedFileError
from rmqlog.commitlog_format.mapped_windows import intact

path, seed, round_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SIZE = 2 << 20
places = np.random.default_rng(seed).integers(0, SIZE - 300, 5000)

def column(window, kind):
    return pa.Array.from_buffers(kind, SIZE * 8 // kind.bit_width, [None, pa.py_buffer(window)])

readers = [
    lambda window: window[places], lambda window: items_at(window, places, 20),
    lambda window: window.sum(), lambda window: np.flatnonzero(window[1:] == window[:-1]),
    lambda window: window.view(">i8").astype(np.int64), lambda window: window.tobytes(),
    lambda window: [window.data[place] for place in places.tolist()],
    lambda window: window[::4096].tolist(), lambda window: np.isin(window.view("i4"), [1, 2]),
    lambda window: gather_binary(window, places, places % 300),
    lambda window: pc.take(column(window, pa.uint8()), pa.array(places)),
    lambda window: pa.chunked_array([column(window, pa.uint8())] * 4).cast(pa.float32()),
    lambda window: pa.table([column(window, pa.uint64())], ["x"]).group_by("x").aggregate([]),
    lambda window: zlib.crc32(window), lambda window: zlib_ng.crc32(window),
]
outcomes = []

def read(window, reader):
    try:
        with intact(window):
            reader(window)
        outcomes.append("read")
    except TruncatedFileError:
        outcomes.append("truncated")
    except Exception as error:
        outcomes.append(repr(error))

def work(number):
    chosen = random.Random(seed * 100 + number)
    own = f"{path}-{number}"
    with open(own, "wb") as file:
        file.write(b"\\1" * SIZE)
    for _ in range(round_count):
        os.truncate(own, SIZE)
        window = files.LocalFile(own).window(0, SIZE)
        threads = [
            threading.Thread(target=read, args=(window, chosen.choice(readers))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        os.truncate(own, chosen.choice([0, 1, chosen.randrange(SIZE), SIZE - 1]))
        for thread in threads:
            thread.join()

workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
counts = {outcome: outcomes.count(outcome) for outcome in set(outcomes)}
print(json.dumps({**counts, "watched": len(bus_guard()._ranges)}))
'''


@pytest.mark.fuzz
def test_thousands_of_faults_in_many_threads_are_survived(tmp_path: Path, seed: int) -> None:
    result = run_in_child(MANY_FAULTS, tmp_path / "large", seed, 400)

    assert result.pop("truncated") > 400
    assert result.keys() == {"read", "watched"}
    assert result["watched"] == 0
