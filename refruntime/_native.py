"""Python functions as machine code on the CPU: the one place that compiles with Numba.

State
-----
A `NativeKernel` holds a Python function and a signature; Numba is imported and the function
compiled at the first call, then Numba's CPython wrapper (`entry`) is called directly, which skips
the type dispatch (about 90 ns a call instead of 210). A `DeviceFunction` is compiled into its
callers.

Invariants
----------
* Nothing here is compiled at import, and importing this module does not import Numba.
* Pointers travel as int64 byte addresses; `ptr_f32(address)` and its siblings make typed pointers
  of them inside a body. No address is ever baked into code, so cached code runs in any process.
* Machine code is cached on disk under `config.cache_dir`; its stamp covers the source file of the
  kernel and of every device function that it reaches, so an edit never runs stale code.
* A body never raises: it returns a status, and the caller maps it to an error.
* With `config.pure` each body runs as plain Python over ctypes pointers: slow, and debuggable.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import struct
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refruntime.config import config

# Reassociation and contraction let loops vectorise; NaN and infinity keep their meaning.
FASTMATH = frozenset({"reassoc", "contract", "nsz"})

_lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    # A child must not inherit a compilation in progress: the thread that runs it does not exist
    # there, and its locks (ours, Numba's, LLVM's) would stay taken. So a fork waits for it.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """One compilation or cache load: kernel name, signature, seconds, and whether from disk."""

    name: str
    signature: str
    seconds: float
    cached: bool


compile_log: list[CompileEvent] = []


class Lazy:
    """A global of a kernel body that becomes a Numba object when the body is compiled."""

    def resolve(self) -> Any:
        """Return what Numba should see in the place of this object."""
        raise NotImplementedError

    def sources(self) -> set[str]:
        """Return the files whose change must invalidate machine code that uses this object."""
        return {__file__}


def _bind_globals(func: types.FunctionType, files: set[str]) -> types.FunctionType:
    """Copy `func` with each lazy global resolved, collecting the source files it depends on."""
    files.add(func.__code__.co_filename)
    namespace = dict(func.__globals__)
    for name in _names(func.__code__):
        value = namespace.get(name)
        if isinstance(value, Lazy):
            files |= value.sources()
            namespace[name] = value.resolve()
    bound = types.FunctionType(
        func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__
    )
    bound.__qualname__, bound.__module__ = func.__qualname__, func.__module__
    bound.__kwdefaults__ = func.__kwdefaults__
    return bound


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


class DeviceFunction(Lazy):
    """A Python function that kernels call; compiled into each of them, and inlined by LLVM.

    `force` inlines it where LLVM would find it too long, which lets the caller's loop vectorise.
    """

    def __init__(
        self, func: Callable[..., Any], fastmath: frozenset[str], force: bool = False
    ) -> None:
        self.py_func: Any = func
        self._fastmath = fastmath
        self._force = force
        self._resolved: Any = None
        self._files: set[str] = set()
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__

    def __call__(self, *args: Any) -> Any:
        return self.py_func(*args)

    def resolve(self) -> Any:
        with _lock:
            if self._resolved is None:
                import numba

                bound = _bind_globals(self.py_func, self._files)
                self._resolved = numba.njit(
                    fastmath=set(self._fastmath), error_model="numpy", no_cpython_wrapper=True,
                    no_cfunc_wrapper=True, nogil=True, forceinline=self._force,
                )(bound)  # fmt: skip
                _ignore_literals(self._resolved)
            return self._resolved

    def sources(self) -> set[str]:
        self.resolve()
        return self._files | {__file__}


def _ignore_literals(dispatcher: Any) -> None:
    """Have a dispatcher compile once for an integer, not once for each constant it is called with.

    What a constant would gain, LLVM gains by inlining.
    """
    from numba import types as nb

    def plain(kind: Any) -> Any:
        return nb.unliteral(kind) if isinstance(kind, nb.IntegerLiteral) else kind

    template_of = dispatcher.get_call_template

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return template_of(
            tuple(plain(arg) for arg in args), {name: plain(arg) for name, arg in kws.items()}
        )

    dispatcher.get_call_template = get_call_template


def device_function(func: Callable[..., Any]) -> DeviceFunction:
    """Make `func` callable from kernel bodies (and, uncompiled, from Python)."""
    return DeviceFunction(func, FASTMATH)


class NativeKernel(Lazy):
    """A compiled entry point with a fixed signature of int64, float64 and the like.

    Parameters
    ----------
    func : callable
        The body; see the module docstring for what it may do.
    signature : str
        In Numba's notation, for example ``"int64(int64, float64, int64)"``.
    fastmath : frozenset of str
        LLVM fast-math flags.
    gil : bool
        Keep the interpreter lock while running: the call is then atomic among Python threads.
    """

    __slots__ = ("_fastmath", "_files", "_gil", "entry", "inner", "py_func", "signature")

    def __init__(
        self, func: Callable[..., Any], signature: str, fastmath: frozenset[str], gil: bool
    ) -> None:
        self.py_func: Any = func
        self.signature = signature
        self._fastmath = fastmath
        self._gil = gil
        self._files: set[str] = set()
        self.inner: Any = None
        self.entry: Callable[..., Any] = self._first_call

    def __call__(self, *args: Any) -> Any:
        return self.entry(*args)

    def __repr__(self) -> str:
        return f"NativeKernel({self.py_func.__qualname__}: {self.signature})"

    def _first_call(self, *args: Any) -> Any:
        self.compile()
        return self.entry(*args)

    @property
    def compiled(self) -> bool:
        """Whether machine code (or, in pure mode, the Python body) is in place."""
        return self.entry != self._first_call

    def compile(self) -> None:
        """Compile now, or load from the disk cache."""
        with _lock:
            if self.compiled:
                return
            if config.pure:
                self.entry = self.py_func
                return
            self._compile()

    def _compile(self) -> None:
        start = time.perf_counter()
        dispatcher = self.resolve()
        args = dispatcher.nopython_signatures[0].args
        self.entry = dispatcher.overloads[args].entry_point
        hit = bool(sum(dispatcher.stats.cache_hits.values()))
        seconds = time.perf_counter() - start
        compile_log.append(CompileEvent(self.py_func.__qualname__, self.signature, seconds, hit))

    def resolve(self) -> Any:
        with _lock:
            if self.inner is None:
                self.inner = self._make_dispatcher()
            return self.inner

    def _make_dispatcher(self) -> Any:
        import numba
        from numba.core import sigutils

        bound = _bind_globals(self.py_func, self._files)
        dispatcher = numba.njit(
            nogil=not self._gil, error_model="numpy", fastmath=set(self._fastmath),
            no_cfunc_wrapper=True,
        )(bound)  # fmt: skip
        attach_cache(dispatcher, bound, frozenset(self._files))
        args, return_type = sigutils.normalize_signature(self.signature)
        dispatcher.compile(args if return_type is None else return_type(*args))
        dispatcher.disable_compile()
        return dispatcher

    def sources(self) -> set[str]:
        self.resolve()
        return self._files | {__file__}


def native(
    signature: str, *, fastmath: frozenset[str] | set[str] = FASTMATH, gil: bool = False
) -> Callable[[Callable[..., Any]], NativeKernel]:
    """Decorate a kernel body; see `NativeKernel`."""

    def wrap(func: Callable[..., Any]) -> NativeKernel:
        return NativeKernel(func, signature, frozenset(fastmath), gil)

    return wrap


# ---------------------------------------------------------------------------------------------
# The disk cache


def attach_cache(dispatcher: Any, func: types.FunctionType, files: frozenset[str]) -> None:
    """Cache `dispatcher` under `config.cache_dir`, stamped by the contents of all its sources."""
    from numba.core import caching

    directory = Path(config.cache_dir) / "numba"
    stamp = _stamp(files)

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        """Places the cache of one function; Numba asks it for the path and the source stamp."""

        def __init__(self, py_func: Any, py_file: str) -> None:
            digest = hashlib.sha1(str(Path(py_file).parent).encode()).hexdigest()[:10]
            self._path = str(directory / digest)

        def get_cache_path(self) -> str:
            return self._path

        def get_source_stamp(self) -> Any:
            return stamp

        def get_disambiguator(self) -> str:
            return str(func.__code__.co_firstlineno)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            locator = cls(py_func, py_file)
            try:
                locator.ensure_cache_path()
            except OSError:
                return None
            return locator

    class Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = [Locator]

    class Cache(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Implementation

    try:
        dispatcher._cache = Cache(func)
    except RuntimeError:
        # No writable cache directory: compile in each process, and say nothing but in the log.
        return


_content_digests: dict[tuple[str, int, int], str] = {}


def _stamp(files: frozenset[str]) -> str:
    return hashlib.sha1("".join(map(_content_digest, sorted(files))).encode()).hexdigest()


def _content_digest(file: str) -> str:
    info = Path(file).stat()
    key = (file, info.st_mtime_ns, info.st_size)
    if key not in _content_digests:
        _content_digests[key] = hashlib.sha1(Path(file).read_bytes()).hexdigest()
    return _content_digests[key]


_generated: dict[str, types.ModuleType] = {}


def generated_module(source: str, stem: str) -> types.ModuleType:
    """Import `source` from a file named after its content, so that Numba can cache what it holds.

    Parameters
    ----------
    source : str
        A complete Python module.
    stem : str
        The readable part of the file name.
    """
    digest = hashlib.sha1(source.encode()).hexdigest()[:16]
    name = f"refruntime_generated_{stem}_{digest}"
    with _lock:
        if name not in _generated:
            _generated[name] = _import_file(name, _write_once(name, source))
        return _generated[name]


def _write_once(name: str, source: str) -> Path:
    directory = Path(config.cache_dir) / "generated"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="refruntime-"))
    path = directory / f"{name}.py"
    if not path.exists() or path.read_text() != source:
        # Written beside and moved into place, so that another process never reads half a file.
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        Path(temporary).replace(path)
    return path


def _import_file(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------------------------
# Intrinsics: typed pointers and bit casts, each with a plain Python twin


class Intrinsic(Lazy):
    """A primitive of kernel bodies: LLVM code when compiled, `twin` when run as plain Python."""

    def __init__(self, build: Callable[[], Any], twin: Callable[..., Any]) -> None:
        self._build = build
        self._twin = twin
        self._resolved: Any = None

    def __call__(self, *args: Any) -> Any:
        return self._twin(*args)

    def resolve(self) -> Any:
        if self._resolved is None:
            self._resolved = self._build()
        return self._resolved


def _pointer(numba_name: str, c_type: Any) -> Intrinsic:
    """Make the intrinsic that turns an int64 address into a pointer to `numba_name` elements."""

    def build() -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        element = getattr(nb, numba_name)

        @intrinsic
        def pointer(typingctx: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

            return nb.CPointer(element)(nb.intp), codegen

        return pointer

    pointer_type = ctypes.POINTER(c_type)
    return Intrinsic(build, lambda address: ctypes.cast(address, pointer_type))


ptr_f32 = _pointer("float32", ctypes.c_float)
ptr_f64 = _pointer("float64", ctypes.c_double)
ptr_i8 = _pointer("int8", ctypes.c_int8)
ptr_i16 = _pointer("int16", ctypes.c_int16)
ptr_i32 = _pointer("int32", ctypes.c_int32)
ptr_i64 = _pointer("int64", ctypes.c_int64)
ptr_u8 = _pointer("uint8", ctypes.c_uint8)
ptr_u16 = _pointer("uint16", ctypes.c_uint16)
ptr_u32 = _pointer("uint32", ctypes.c_uint32)
ptr_u64 = _pointer("uint64", ctypes.c_uint64)


def _bitcast(source: str, target: str, formats: str) -> Intrinsic:
    """Make the intrinsic that reads the bits of a `source` value as a `target` value."""

    def build() -> Any:
        from numba import types as nb
        from numba.extending import intrinsic

        from_type, to_type = getattr(nb, source), getattr(nb, target)

        @intrinsic
        def cast(typingctx: Any, value: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return builder.bitcast(args[0], context.get_value_type(to_type))

            return to_type(from_type), codegen

        return cast

    return Intrinsic(
        build, lambda value: struct.unpack(formats[1], struct.pack(formats[0], value))[0]
    )


f32_bits = _bitcast("float32", "uint32", "fI")
bits_f32 = _bitcast("uint32", "float32", "If")
f64_bits = _bitcast("float64", "uint64", "dQ")
bits_f64 = _bitcast("uint64", "float64", "Qd")


# ---------------------------------------------------------------------------------------------
# Half types: no CPU kernel computes in them, so they are widened at the load and rounded at the
# store (round to nearest, ties to even). `p` points at uint16.


@device_function
def widen_bf16(bits):  # type: ignore[no-untyped-def]
    """Return the float32 of a bfloat16's bits (uint16)."""
    return bits_f32(np.uint32(np.uint32(bits) << np.uint32(16)))


@device_function
def narrow_bf16(value):  # type: ignore[no-untyped-def]
    """Round a float32 to bfloat16 and return its bits (uint16)."""
    bits = f32_bits(np.float32(value))
    lower_half_bit = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint32(bits + np.uint32(0x7FFF) + lower_half_bit) >> np.uint32(16)
    # A NaN must stay one: rounding could carry its mantissa into infinity.
    is_nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(np.uint32(0x7FC0) if is_nan else rounded)


@device_function
def widen_f16(bits):  # type: ignore[no-untyped-def]
    """Return the float32 of a float16's bits (uint16)."""
    half = np.uint32(bits)
    shifted = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
    # Multiplying by 2**112 moves the exponent bias, and normalises subnormals on the way.
    magnitude = f32_bits(np.float32(bits_f32(shifted) * bits_f32(np.uint32(0x77800000))))
    special = np.uint32(half & np.uint32(0x7C00)) == np.uint32(0x7C00)
    wide = np.uint32(shifted | np.uint32(0x7F800000)) if special else magnitude
    return bits_f32(
        np.uint32(wide | np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16)))
    )


@device_function
def narrow_f16(value):  # type: ignore[no-untyped-def]
    """Round a float32 to float16 and return its bits (uint16)."""
    bits = f32_bits(np.float32(value))
    sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # Normal results: rebias the exponent, and round on the 13 bits that go away.
    odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32(
        np.uint32(magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    )
    # Subnormal results: adding 0.5 lines the mantissa up with 2**-24, and the FPU rounds.
    subnormal = np.uint32(
        f32_bits(np.float32(bits_f32(magnitude) + np.float32(0.5))) - np.uint32(0x3F000000)
    )
    finite = subnormal if magnitude < np.uint32(0x38800000) else normal
    overflow = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else np.uint32(0x7C00)
    result = overflow if magnitude >= np.uint32(0x477FF000) else finite
    return np.uint16(np.uint32(result | sign))


@device_function
def load_bf16(p, i):  # type: ignore[no-untyped-def]
    """Return element `i` of bfloat16 memory as float32."""
    return widen_bf16(p[i])


@device_function
def store_bf16(p, i, value):  # type: ignore[no-untyped-def]
    """Round `value` (float32) to bfloat16 and store it as element `i`."""
    p[i] = narrow_bf16(value)


@device_function
def load_f16(p, i):  # type: ignore[no-untyped-def]
    """Return element `i` of float16 memory as float32."""
    return widen_f16(p[i])


@device_function
def store_f16(p, i, value):  # type: ignore[no-untyped-def]
    """Round `value` (float32) to float16 and store it as element `i`."""
    p[i] = narrow_f16(value)
