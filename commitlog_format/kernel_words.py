"""Reading and writing several bytes at once at any place of an array, for kernels.

They become single instructions. Nothing checks the place: whoever uses them does.

What numba has kept on disk it makes anew when the file of a kernel is newer, and asks for no other
file: who changes this one touches that one too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Codegen = Callable[[Any, Any, Any, Any], Any]


def kernel(function: _Function) -> _Function:
    """Compile when it is called, once for each type of arguments, and keep the result on disk."""
    compiled: Any = numba.njit(cache=True, nogil=True)(function)
    return cast("_Function", compiled)


def part(function: _Function) -> _Function:
    """A piece of kernels."""
    compiled: Any = numba.njit(function)
    return cast("_Function", compiled)


def _instruction(in_python: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """What a kernel calls, made from what tells its types and how to write its instruction.

    ``in_python`` does the same where numba compiles nothing (``NUMBA_DISABLE_JIT``): so a kernel
    can be followed step by step.
    """
    settings: Any = numba.config
    if settings.DISABLE_JIT:
        return lambda _: in_python
    return intrinsic


def _load(array: Any, place: int, dtype: type[np.unsignedinteger[Any]]) -> Any:
    return array[place : place + np.dtype(dtype).itemsize].view(dtype)[0]


def _store(array: Any, place: int, word: Any) -> None:
    array[place : place + word.itemsize] = np.array([word]).view(np.uint8)


def _copy(source: Any, start: int, size: int, target: Any, place: int) -> None:
    target[place : place + size] = source[start : start + size]


def _zeros_below(word: Any) -> Any:
    number = int(word)
    return np.uint64((number & -number).bit_length() - 1 if number else 64)


def _crc32(_address: int, array: Any, place: int, size: int) -> int:
    return zlib.crc32(array[place : place + size].tobytes())


def _place(context: Any, builder: Any, array_type: Any, array: Any, place: Any, bits: int) -> Any:
    """A pointer to a number of so many bits."""
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [place])
    return builder.bitcast(pointer, ir.IntType(bits).as_pointer())


def _loading(bits: int) -> _Codegen:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        return builder.load(
            _place(context, builder, signature.args[0], array, place, bits), align=1
        )

    return codegen


@_instruction(lambda array, place: _load(array, place, np.uint64))
def load_word(_typing: Any, array: Any, place: Any) -> Any:
    """Eight bytes of an array of bytes, the first one lowest."""
    return types.uint64(array, types.int64), _loading(64)


@_instruction(lambda array, place: _load(array, place, np.uint32))
def load_half(_typing: Any, array: Any, place: Any) -> Any:
    """Four bytes, likewise."""
    return types.uint32(array, types.int64), _loading(32)


@_instruction(_store)
def store_word(_typing: Any, array: Any, place: Any, word: Any) -> Any:
    """Put eight bytes, the lowest one first."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, position, value = arguments
        pointer = _place(context, builder, signature.args[0], target, position, 64)
        builder.store(value, pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


@_instruction(_copy)
def copy_bytes(
    _typing: Any, source: Any, start: Any, size: Any, target: Any, place: Any
) -> Any:
    """Copy bytes from one array to another, exactly so many (memcpy)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, first, count, into, position = arguments
        out_of = _place(context, builder, signature.args[0], data, first, 8)
        pointer = _place(context, builder, signature.args[3], into, position, 8)
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, pointer, out_of, count, 1)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target, types.int64), codegen


@_instruction(_crc32)
def call_crc32(_typing: Any, address: Any, array: Any, place: Any, size: Any) -> Any:
    """What a C function like zlib-ng's ``zng_crc32``, at this address, says of some bytes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, data, position, count = arguments
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [number, pointer, number])
        start = _place(context, builder, signature.args[1], data, position, 8)
        callee = builder.inttoptr(function, kind.as_pointer())
        return builder.call(callee, [number(0), start, builder.trunc(count, number)])

    return types.uint32(types.int64, array, types.int64, types.int64), codegen


@_instruction(lambda array, place: array[place])
def prefetch(_typing: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of a place, without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, position = arguments
        number = ir.IntType(32)
        pointer = _place(context, builder, signature.args[0], data, position, 8)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type],
            ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number]),
        )
        # To be read, kept near, data.
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def _swapping(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bswap(arguments[0])


@_instruction(lambda word: word.byteswap())
def swap_word(_typing: Any, word: Any) -> Any:
    """The bytes of a 64-bit number in the other order."""
    return types.uint64(types.uint64), _swapping


@_instruction(lambda half: half.byteswap())
def swap_half(_typing: Any, half: Any) -> Any:
    """The bytes of a 32-bit number in the other order."""
    return types.uint32(types.uint32), _swapping


@_instruction(_zeros_below)
def trailing_zeros(_typing: Any, word: Any) -> Any:
    """How many low bits of a 64-bit number are zero; all 64 of zero."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen
