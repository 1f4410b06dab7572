"""Two machines that run the same straight-line arithmetic: LLVM code, and NumPy.

A function such as ``exp`` of `vectormath` is written once over a machine and values that overload
the operators. With `IrMachine` it becomes LLVM instructions inside a kernel (which vectorise, for
there is no call and no branch); with `PlainMachine` it computes on NumPy scalars or arrays, which
is its twin in pure mode and its form in accuracy tests.

State
-----
A machine has a width (32 or 64 bits) and the limits that go with it; IR values hold their builder.

Invariants
----------
* Floating-point instructions carry the flag ``contract`` and no other: range reductions depend on
  exact rounding, and Numba gives its own flags to instructions that have none.
* Values are floats and integers of the machine's width, or truth values; integers wrap.
* A shift distance is a Python int; comparisons of floats are false when a NaN takes part, but for
  ``!=``.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Limits:
    """Constants of IEEE 754 binary32 and binary64."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.mantissa_bits = 23 if width == 32 else 52
        self.bias = 127 if width == 32 else 1023
        self.mantissa_mask = (1 << self.mantissa_bits) - 1
        self.one_bits = self.bias << self.mantissa_bits
        self.smallest_normal = 2.0 ** (1 - self.bias)
        # Adding it leaves a rounded integer in the low bits of the mantissa.
        self.round_magic = 1.5 * 2.0**self.mantissa_bits
        self.round_magic_bits = int(self._type(self.round_magic).view(f"i{width // 8}"))
        self.epsilon = 2.0**-self.mantissa_bits
        self.wide = width == 64

    @property
    def _type(self) -> Any:
        return np.float32 if self.width == 32 else np.float64


_LIMITS = {width: Limits(width) for width in (32, 64)}


FLAGS = ("contract",)


class Value:
    """An LLVM value of kind ``f`` (float), ``i`` (integer) or ``b`` (truth value)."""

    __slots__ = ("ir", "kind", "machine")

    def __init__(self, machine: IrMachine, ir: Any, kind: str) -> None:
        self.machine = machine
        self.ir = ir
        self.kind = kind

    def _binary(self, other: Any, float_op: str, int_op: str) -> Value:
        right = self.machine.like(other, self.kind)
        builder = self.machine.builder
        if self.kind == "f":
            ir = getattr(builder, float_op)(self.ir, right.ir, flags=FLAGS)
        else:
            ir = getattr(builder, int_op)(self.ir, right.ir)
        return Value(self.machine, ir, self.kind)

    def __add__(self, other: Any) -> Value:
        return self._binary(other, "fadd", "add")

    def __sub__(self, other: Any) -> Value:
        return self._binary(other, "fsub", "sub")

    def __mul__(self, other: Any) -> Value:
        return self._binary(other, "fmul", "mul")

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "fdiv", "sdiv")

    def __radd__(self, other: Any) -> Value:
        return self.machine.like(other, self.kind) + self

    def __rsub__(self, other: Any) -> Value:
        return self.machine.like(other, self.kind) - self

    def __rmul__(self, other: Any) -> Value:
        return self.machine.like(other, self.kind) * self

    def __rtruediv__(self, other: Any) -> Value:
        return self.machine.like(other, self.kind) / self

    def __neg__(self) -> Value:
        if self.kind == "f":
            return Value(self.machine, self.machine.builder.fneg(self.ir, flags=FLAGS), "f")
        return 0 - self

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "", "and_")

    def __or__(self, other: Any) -> Value:
        return self._binary(other, "", "or_")

    def __xor__(self, other: Any) -> Value:
        return self._binary(other, "", "xor")

    def __lshift__(self, distance: int) -> Value:
        return self._binary(distance, "", "shl")

    def __rshift__(self, distance: int) -> Value:
        return self._binary(distance, "", "ashr")

    def __lt__(self, other: Any) -> Value:
        return self.machine.compare("<", self, other)

    def __le__(self, other: Any) -> Value:
        return self.machine.compare("<=", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.machine.compare(">", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.machine.compare(">=", self, other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.machine.compare("==", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.machine.compare("!=", self, other)

    __hash__ = None  # type: ignore[assignment]


class IrMachine(Limits):
    """Emits LLVM instructions through an llvmlite builder."""

    def __init__(self, builder: Any, width: int) -> None:
        from llvmlite import ir

        super().__init__(width)
        self.builder = builder
        self.ir = ir
        self.float_type = ir.FloatType() if width == 32 else ir.DoubleType()
        self.int_type = ir.IntType(width)

    def floating(self, value: Any) -> Value:
        """Return a float constant, or wrap an LLVM float."""
        return self.like(value, "f")

    def like(self, value: Any, kind: str) -> Value:
        """Return `value` (a Value or a Python number) as a value of `kind`."""
        if isinstance(value, Value):
            return value
        if kind == "b":
            return Value(self, self.ir.Constant(self.ir.IntType(1), int(value)), "b")
        if kind == "f":
            exact = float(np.float32(value)) if self.width == 32 else float(value)
            return Value(self, self.ir.Constant(self.float_type, exact), "f")
        return Value(self, self.ir.Constant(self.int_type, int(value)), "i")

    def compare(self, op: str, left: Value, right: Any) -> Value:
        """Compare two values of one kind."""
        other = self.like(right, left.kind)
        if left.kind == "f":
            emit = self.builder.fcmp_unordered if op == "!=" else self.builder.fcmp_ordered
            return Value(self, emit(op, left.ir, other.ir, flags=FLAGS), "b")
        return Value(self, self.builder.icmp_signed(op, left.ir, other.ir), "b")

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        """Return `yes` where the condition holds, else `no`; both are computed."""
        kind = yes.kind if isinstance(yes, Value) else no.kind if isinstance(no, Value) else "f"
        left, right = self.like(yes, kind), self.like(no, kind)
        return Value(self, self.builder.select(condition.ir, left.ir, right.ir), kind)

    def _intrinsic(self, name: str, *args: Any) -> Value:
        values = [self.floating(arg).ir for arg in args]
        kind = self.ir.FunctionType(self.float_type, [self.float_type] * len(values))
        full = f"llvm.{name}.f{self.width}"
        module = self.builder.module
        function = module.globals.get(full) or self.ir.Function(module, kind, full)
        return Value(self, self.builder.call(function, values, fastmath=FLAGS), "f")

    def fma(self, a: Any, b: Any, c: Any) -> Value:
        """Return ``a * b + c``, rounded once."""
        return self._intrinsic("fma", a, b, c)

    def fabs(self, x: Any) -> Value:
        """Return the magnitude."""
        return self._intrinsic("fabs", x)

    def sqrt(self, x: Any) -> Value:
        """Return the square root."""
        return self._intrinsic("sqrt", x)

    def floor(self, x: Any) -> Value:
        """Round towards minus infinity."""
        return self._intrinsic("floor", x)

    def ceil(self, x: Any) -> Value:
        """Round towards plus infinity."""
        return self._intrinsic("ceil", x)

    def trunc(self, x: Any) -> Value:
        """Round towards zero."""
        return self._intrinsic("trunc", x)

    def rint(self, x: Any) -> Value:
        """Round to nearest, ties to even."""
        return self._intrinsic("rint", x)

    def copysign(self, magnitude: Any, sign: Any) -> Value:
        """Return the magnitude with the sign of another number."""
        return self._intrinsic("copysign", magnitude, sign)

    def bits(self, x: Value) -> Value:
        """Return the bits of a float as an integer."""
        return Value(self, self.builder.bitcast(x.ir, self.int_type), "i")

    def from_bits(self, bits: Value) -> Value:
        """Return the float that has these bits."""
        return Value(self, self.builder.bitcast(bits.ir, self.float_type), "f")

    def to_float(self, integer: Value) -> Value:
        """Convert a signed integer."""
        return Value(self, self.builder.sitofp(integer.ir, self.float_type), "f")

    def to_double(self, x: Value) -> tuple[IrMachine, Value]:
        """Return the 64-bit machine, and the value there."""
        wide = IrMachine(self.builder, 64)
        ir = x.ir if self.width == 64 else self.builder.fpext(x.ir, wide.float_type)
        return wide, Value(wide, ir, "f")

    def from_double(self, x: Value) -> Value:
        """Round a value of the 64-bit machine to this one."""
        ir = x.ir if self.width == 64 else self.builder.fptrunc(x.ir, self.float_type)
        return Value(self, ir, "f")

    def to_narrow_int(self, x: Value) -> Value:
        """Cut an integer of the 64-bit machine to this machine's width."""
        ir = x.ir if self.width == 64 else self.builder.trunc(x.ir, self.int_type)
        return Value(self, ir, "i")

    def lookup(self, table: tuple[float, ...], index: Value) -> Value:
        """Return element `index` of a constant table of doubles, on the 64-bit machine."""
        ir, builder = self.ir, self.builder
        name = f"refruntime.table.{hash(table) & 0xFFFFFFFFFFFF:x}"
        kind = ir.ArrayType(ir.DoubleType(), len(table))
        found = builder.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(builder.module, kind, name)
            found.initializer = ir.Constant(kind, [ir.Constant(ir.DoubleType(), v) for v in table])
            found.global_constant = True
            found.linkage = "internal"
        wide = builder.sext(index.ir, ir.IntType(64)) if self.width == 32 else index.ir
        place = builder.gep(found, [ir.Constant(ir.IntType(64), 0), wide], inbounds=True)
        element = builder.load(place)
        # A constant: no store of the kernel can change it, so the loop around may vectorise.
        element.set_metadata("alias.scope", operand_scope(builder.module))
        return Value(IrMachine(builder, 64), element, "f")


def operand_scope(module: Any) -> Any:
    """Return the metadata list that names the scope of everything that a kernel only reads."""
    domain = module.add_metadata(["refruntime pointwise"])
    scope = module.add_metadata(["operands", domain])
    return module.add_metadata([scope])


class PlainMachine(Limits):
    """Computes with NumPy: scalars or whole arrays of one float type."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.float_type: Any = np.float32 if width == 32 else np.float64
        self.int_type: Any = np.int32 if width == 32 else np.int64

    def floating(self, value: Any) -> Any:
        """Return a number of the machine's float type."""
        return self.float_type(value) if np.ndim(value) == 0 else value.astype(self.float_type)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Return `yes` where the condition holds, else `no`."""
        arms = [arm for arm in (yes, no) if isinstance(arm, (np.ndarray, np.generic))]
        kind = arms[0].dtype if arms else np.dtype(self.float_type)
        return np.where(condition, np.asarray(yes, kind), np.asarray(no, kind))[()]

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a * b + c``; rounded once in 32 bits, closely enough in 64."""
        if self.width == 64:
            exact = np.longdouble(a) * np.longdouble(b) + np.longdouble(c)
            return self.floating(exact)
        return self.floating(np.float64(a) * np.float64(b) + np.float64(c))

    def fabs(self, x: Any) -> Any:
        """Return the magnitude."""
        return np.abs(x)

    def sqrt(self, x: Any) -> Any:
        """Return the square root."""
        return np.sqrt(x)

    def floor(self, x: Any) -> Any:
        """Round towards minus infinity."""
        return np.floor(x)

    def ceil(self, x: Any) -> Any:
        """Round towards plus infinity."""
        return np.ceil(x)

    def trunc(self, x: Any) -> Any:
        """Round towards zero."""
        return np.trunc(x)

    def rint(self, x: Any) -> Any:
        """Round to nearest, ties to even."""
        return np.rint(x)

    def copysign(self, magnitude: Any, sign: Any) -> Any:
        """Return the magnitude with the sign of another number."""
        return np.copysign(self.floating(magnitude), sign)

    def bits(self, x: Any) -> Any:
        """Return the bits of a float as an integer."""
        return x.view(self.int_type)

    def from_bits(self, bits: Any) -> Any:
        """Return the float that has these bits."""
        return self.int_type(bits).view(self.float_type) if np.ndim(bits) == 0 else bits.view(
            self.float_type
        )

    def to_float(self, integer: Any) -> Any:
        """Convert a signed integer."""
        return self.floating(integer)

    def to_double(self, x: Any) -> tuple[PlainMachine, Any]:
        """Return the 64-bit machine, and the value there."""
        wide = PlainMachine(64)
        return wide, wide.floating(x)

    def from_double(self, x: Any) -> Any:
        """Round a value of the 64-bit machine to this one."""
        return self.floating(x)

    def to_narrow_int(self, x: Any) -> Any:
        """Cut an integer of the 64-bit machine to this machine's width."""
        return np.asarray(x).astype(self.int_type)[()]

    def lookup(self, table: tuple[float, ...], index: Any) -> Any:
        """Return element `index` of a constant table of doubles."""
        return np.asarray(table)[index]


def limits(width: int) -> Limits:
    """Return the constants of a width."""
    return _LIMITS[width]
