"""Keeps the process alive when a file shrinks while it is mapped.

To touch a page of a mapping that lies behind the end of its file is SIGBUS, and that ends the
process: a Spark worker, a notebook. Here SIGBUS has a handler, which puts pages of zeros into
the place of a watched range and marks it as lost; the instruction that failed goes on with
zeros, and whoever reads asks at the end whether the range was lost (:mod:`mapped_windows`).

The handler is Python code. That is sound because the signal is a synchronous one: it comes at
a load from a watched range, in code that copies or compares bytes, never within an allocator or
under a lock that the handler needs, and never asynchronously between two instructions of the
interpreter. The thread may hold the GIL or not, may be Python's or not: ctypes sees to that.
An exception in it (of a Python signal handler that is due: a Ctrl-C) is shown and dropped, and
the instruction fails again.

Only on Linux with x86-64 or arm64, whose ``struct sigaction`` is declared here; elsewhere nothing
is watched.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys

#: From <signal.h> and <sys/mman.h> of Linux, which Python does not name.
_SA_SIGINFO = 0x0000_0004
_SA_NODEFER = 0x4000_0000
_PROT_READ = 0x01
_MAP_PRIVATE = 0x02
_MAP_FIXED = 0x10
_MAP_ANONYMOUS = 0x20
_SIGSET_WORDS = 1024 // 64


class SignalInfo(ctypes.Structure):
    """The head of ``siginfo_t``; ``address`` is only there for what the kernel sends."""

    _fields_ = (
        ("signal", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


class _Action(ctypes.Structure):
    """``struct sigaction`` as the C library has it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * _SIGSET_WORDS),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(SignalInfo), ctypes.c_void_p)


class WatchedRange:
    """Mapped memory of which pages may vanish; ``lost`` when they did, and all of it is zero.

    ``ranges`` are those of the guard by their addresses, this one among them.
    """

    __slots__ = ("_ranges", "address", "lost", "size")

    def __init__(self, address: int, size: int, ranges: dict[int, WatchedRange]) -> None:
        self.address = address
        self.size = size
        self.lost = False
        self._ranges = ranges
        ranges[address] = self

    def forget(self) -> None:
        """To be called before the memory is unmapped: others may be mapped there next."""
        self._ranges.pop(self.address, None)


class BusGuard:
    """The handler of SIGBUS and the ranges that it knows. A process has one, for good.

    There is no lock here, which the handler or a forked process could wait for in vain:
    dictionaries, lists and flags change in one step each.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._sigaction = library.sigaction
        self._sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._mmap = library.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        )
        self._ranges: dict[int, WatchedRange] = {}
        self._callback = _Handler(self.on_signal)
        #: SA_NODEFER: a fault within the handler is one more fault, not the end. No alternate
        #: stack: those that others set up are too small for Python.
        self._own = _Action(
            handler=ctypes.cast(self._callback, ctypes.c_void_p).value,
            flags=_SA_SIGINFO | _SA_NODEFER,
        )
        #: What was there before us, the newest last.
        self._earlier: list[_Action] = []

    def watch(self, address: int, size: int) -> WatchedRange:
        """Survive faults in whole pages of memory from now on, until they are forgotten."""
        self._install()
        return WatchedRange(address, size, self._ranges)

    def on_signal(self, _signal: int, info: object, _context: object) -> None:
        """The handler: return to go on, where there are zeros now, or where others handle it."""
        found: SignalInfo = info.contents  # type: ignore[attr-defined]
        # Codes above 0 are the kernel's; what a process sends has no address.
        if found.code <= 0:
            self._hand_on()
            signal.raise_signal(signal.SIGBUS)
        elif not self._replace(found.address or 0):
            self._hand_on()

    def _install(self) -> None:
        """Be the handler. Another one that came since then is kept, for faults that are its."""
        current = _Action()
        self._sigaction(signal.SIGBUS, None, ctypes.byref(current))
        if current.handler == self._own.handler:
            return
        known = [action for action in self._earlier if action.handler != current.handler]
        self._earlier = [*known, current]
        self._sigaction(signal.SIGBUS, ctypes.byref(self._own), None)

    def _replace(self, address: int) -> bool:
        """Put zeros where the range of an address is; ``False`` if it is nobody's, or fails."""
        for watched in list(self._ranges.values()):
            if watched.address <= address < watched.address + watched.size:
                # First the mark: another thread must not see zeros that are not marked.
                watched.lost = True
                # All of it: a part would be one more mapping, of which there may be too many.
                placed = self._mmap(
                    watched.address, watched.size, _PROT_READ,
                    _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED, -1, 0,
                )
                return bool(placed == watched.address)
        return False

    def _hand_on(self) -> None:
        """Let the handler before us have it: the failing instruction is run once more.

        Each is tried once, at last the default, which ends the process. If one of them can go
        on, we are the handler again with the next mapping.
        """
        earlier = self._earlier.pop() if self._earlier else _Action()
        self._sigaction(signal.SIGBUS, ctypes.byref(earlier), None)


def is_supported() -> bool:
    """Whether SIGBUS can be handled on this system."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


_KEY = "the guard"
_guards: dict[str, BusGuard] = {}


def bus_guard() -> BusGuard | None:
    """The guard of this process, made when first asked for; ``None`` where there is none."""
    if not _guards and is_supported():
        # Of two threads that come here at once, both get the same one.
        _guards.setdefault(_KEY, BusGuard())
    return _guards.get(_KEY)
