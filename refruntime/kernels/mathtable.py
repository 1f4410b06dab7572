"""The functions that scalar bodies may call, and what each is on each target.

State
-----
`TABLE` maps a name to its `Function`; `ALIASES` other spellings to names; `CONSTANTS` names of
numbers. Operators are functions of the table too (``a + b`` is ``add``).

Invariants
----------
* A template has ``{0} {1} {2}`` for its arguments, which are names or literals, ``{C}`` for the
  type that the step computes in, and ``{w}`` for its bits; an argument may appear more than once.
* A function without a template for a kind of dtype does not exist there: using it is an error when
  the kernel is made, never a wrong result.
* Truth values and numbers are told apart: ``takes`` and ``gives`` have ``n`` for a number of the
  step's type and ``b`` for a truth value, and the emitters convert between them.
* The templates of `numba.cuda` (target ``device``) are the CPU's but for `DEVICE`.
* CPU templates name functions of `intrinsics` and `scalarmath`; for speed and accuracy see there.
  CUDA templates name CUDA's own, whose float and double forms overload, and `cuda/pointwise.cuh`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Parameters
    ----------
    name : str
        As bodies spell it.
    takes, gives : str
        A letter each argument, and one for the result.
    cpu, cuda : str
        Templates for floating-point steps.
    cpu_int, cuda_int : str
        Templates for integer steps.
    cpu_unsigned : str
        The template for unsigned steps where it differs.
    fails_if : str
        A condition, the same on both targets, under which an integer step divides by zero.
    """

    name: str
    takes: str
    gives: str
    cpu: str = ""
    cuda: str = ""
    cpu_int: str = ""
    cuda_int: str = ""
    cpu_unsigned: str = ""
    fails_if: str = ""

    def template(self, target: str, kind: str) -> str:
        """Return the template for ``"cpu"``, ``"cuda"`` or ``"device"`` and a dtype kind, or ""."""
        if target == "device":
            return DEVICE.get(self.name, self.cpu) if kind == "f" else INTEGER_DEVICE.get(
                self.name, self.cpu_int
            )
        if kind == "f":
            return self.cpu if target == "cpu" else self.cuda
        if target == "cuda":
            return self.cuda_int
        return self.cpu_unsigned if kind in "ub" and self.cpu_unsigned else self.cpu_int


TABLE: dict[str, Function] = {}


def _add(function: Function) -> None:
    TABLE[function.name] = function


def _operator(name: str, symbol: str, *, floats: bool = True, ints: bool = True) -> None:
    text = f"{{0}} {symbol} {{1}}"
    cast = f"{{C}}({text})"
    # Signed overflow is undefined in C++: what can overflow goes through an unsigned type.
    wraps = f"wrapping_{name}({{0}}, {{1}})" if name in ("add", "sub", "mul") else cast
    _add(
        Function(name, "nn", "n", text if floats else "", text if floats else "",
                 cast if ints else "", wraps if ints else "")
    )  # fmt: skip


def _comparison(name: str, symbol: str) -> None:
    text = f"{{0}} {symbol} {{1}}"
    _add(Function(name, "nn", "b", text, text, text, text))


def _elementary(name: str, arity: int = 1, cuda: str = "") -> None:
    """Add a floating-point function: ours in `vectormath`, CUDA's own."""
    args = ", ".join(f"{{{i}}}" for i in range(arity))
    _add(Function(name, "n" * arity, "n", f"{name}_f{{w}}({args})", f"{cuda or name}({args})"))


_operator("add", "+")
_operator("sub", "-")
_operator("mul", "*")
_operator("div", "/", ints=False)
_operator("bitand", "&", floats=False)
_operator("bitor", "|", floats=False)
_operator("bitxor", "^", floats=False)
_add(Function("neg", "n", "n", "-{0}", "-{0}", "{C}(-{0})", "wrapping_sub({C}(0), {0})"))
_add(Function("bitnot", "n", "n", "", "", "{C}(~{0})", "{C}(~{0})"))
_add(Function("shl", "nn", "n", "", "", "{C}(shl_int({0}, {1}, {w}))",
              "shift_left<{C}>({0}, {1})"))  # fmt: skip
_add(Function("shr", "nn", "n", "", "", "{C}(shr_int({0}, {1}, {w}))",
              "shift_right<{C}>({0}, {1})"))  # fmt: skip
_add(Function("floordiv", "nn", "n", "{C}(floordiv_float({0}, {1}))", "floor_divide({0}, {1})",
              "{C}(floordiv_signed({0}, {1}))", "floor_divide_int<{C}>({0}, {1})",
              "{C}(floordiv_unsigned({0}, {1}))", "{1} == 0"))  # fmt: skip
_add(Function("truncdiv", "nn", "n", "trunc_f{w}({0} / {1})", "trunc({0} / {1})",
              "{C}(truncdiv_signed({0}, {1}))", "trunc_divide_int<{C}>({0}, {1})",
              "{C}(floordiv_unsigned({0}, {1}))", "{1} == 0"))  # fmt: skip
_add(Function("remainder", "nn", "n",
              "{C}(remainder_float({0}, {1}))", "python_remainder({0}, {1})",
              "{C}(remainder_signed({0}, {1}))", "python_remainder_int<{C}>({0}, {1})",
              "{C}(remainder_unsigned({0}, {1}))", "{1} == 0"))  # fmt: skip
_add(Function("fmod", "nn", "n", "fmod_float({0}, {1})", "fmod({0}, {1})",
              "{C}(fmod_signed({0}, {1}))", "fmod_int<{C}>({0}, {1})",
              "{C}(remainder_unsigned({0}, {1}))", "{1} == 0"))  # fmt: skip
_add(Function("pow", "nn", "n", "math.pow({0}, {1})", "pow({0}, {1})",
              "{C}(pow_int({0}, {1}))", "pow_int<{C}>({0}, {1})"))  # fmt: skip
_add(Function("gcd", "nn", "n", "", "", "{C}(gcd_int({0}, {1}))", "gcd_int<{C}>({0}, {1})"))

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
for _name, _symbol in _COMPARISONS.items():
    _comparison(_name, _symbol)
_add(Function("logical_and", "bb", "b", *["{0} & {1}", "{0} & {1}"] * 2))
_add(Function("logical_or", "bb", "b", *["{0} | {1}", "{0} | {1}"] * 2))
_add(Function("logical_xor", "bb", "b", *["{0} ^ {1}", "{0} ^ {1}"] * 2))
_add(Function("logical_not", "b", "b", "not {0}", "!{0}", "not {0}", "!{0}"))
_add(Function("where", "bnn", "n", *["select({0}, {1}, {2})", "({0} ? {1} : {2})"] * 2))

_add(Function("abs", "n", "n", "fabs_f{w}({0})", "fabs({0})", "{C}(abs({0}))",
              "({0} < {C}(0) ? wrapping_sub({C}(0), {0}) : {0})", "{0}"))  # fmt: skip
for _name, _test in {"maximum": ">", "minimum": "<"}.items():
    _add(Function(_name, "nn", "n", f"{_name}_f{{w}}({{0}}, {{1}})", f"{_name}({{0}}, {{1}})",
                  f"select({{0}} {_test} {{1}}, {{0}}, {{1}})",
                  f"({{0}} {_test} {{1}} ? {{0}} : {{1}})"))  # fmt: skip
for _name, _cuda, _test in (("fmax", "larger_number", ">"), ("fmin", "smaller_number", "<")):
    _add(Function(_name, "nn", "n", f"{_name}_f{{w}}({{0}}, {{1}})", f"{_cuda}({{0}}, {{1}})",
                  f"select({{0}} {_test} {{1}}, {{0}}, {{1}})",
                  f"({{0}} {_test} {{1}} ? {{0}} : {{1}})"))  # fmt: skip

# Rounding leaves integers as they are.
for _name in ("floor", "ceil", "trunc"):
    _add(Function(_name, "n", "n", f"{_name}_f{{w}}({{0}})", f"{_name}({{0}})", "{0}", "{0}"))
_add(Function("round", "n", "n", "rint_f{w}({0})", "rint({0})", "{0}", "{0}"))
_add(Function("isnan", "n", "b", "{0} != {0}", "{0} != {0}", "False", "false"))
_add(Function("isinf", "n", "b", "fabs_f{w}({0}) == {C}(math.inf)", "fabs({0}) == {C}(INFINITE)",
              "False", "false"))  # fmt: skip
_add(Function("isfinite", "n", "b", "fabs_f{w}({0}) < {C}(math.inf)", "fabs({0}) < {C}(INFINITE)",
              "True", "true"))  # fmt: skip
_add(Function("signbit", "n", "b", "signbit_f{w}({0})", "copysign({C}(1), {0}) < {C}(0)",
              "{0} < 0", "{0} < 0"))  # fmt: skip
_add(Function("copysign", "nn", "n", "copysign_f{w}({0}, {1})", "copysign({0}, {1})"))

for _name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "asinh",
    "acosh", "atanh", "atan", "asin", "acos", "erf", "erfc", "sqrt", "rsqrt",
):  # fmt: skip
    _elementary(_name)
_elementary("erfinv")
_elementary("atan2", 2)
_elementary("sigmoid", 1, "sigmoid")
for _name in ("sin", "cos", "tan"):
    _add(Function(_name, "n", "n", f"{_name}_f{{w}}({{0}})", f"{_name}({{0}})"))
_add(Function("hypot", "nn", "n", "math.hypot({0}, {1})", "hypot({0}, {1})"))
_add(Function("lgamma", "n", "n", "lgamma_float({0})", "lgamma({0})"))
_add(Function("digamma", "n", "n", "{C}(digamma({0}))", "{C}(digamma({0}))"))
_add(Function("zeta", "nn", "n", "{C}(hurwitz_zeta({0}, {1}))", "{C}(hurwitz_zeta({0}, {1}))"))
_add(Function("i0e", "n", "n", "{C}(bessel_i0e({0}))", "{C}(bessel_i0e({0}))"))
_add(Function("i1e", "n", "n", "{C}(bessel_i1e({0}))", "{C}(bessel_i1e({0}))"))
_add(Function("erfcx", "n", "n", "{C}(scaled_erfc({0}))", "{C}(scaled_erfc({0}))"))
_add(Function("nextafter", "nn", "n", "next_after_f{w}({0}, {1})", "nextafter({0}, {1})"))

# What `numba.cuda` calls these, where that is not what the CPU's table says.
DEVICE: dict[str, str] = {
    **{
        name: f"{{C}}(math.{name}({{0}}))"
        for name in (
            "exp", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "asinh",
            "acosh", "atanh", "atan", "asin", "acos", "erf", "erfc", "sqrt", "sin", "cos", "tan",
            "floor", "ceil", "lgamma",
        )
    },
    **{
        name: f"{{C}}(math.{name}({{0}}, {{1}}))"
        for name in ("atan2", "hypot", "fmod", "copysign")
    },
    "exp2": "{C}(math.pow({C}(2), {0}))",
    "rsqrt": "{C}(1) / {C}(math.sqrt({0}))",
    "sigmoid": "{C}(1) / ({C}(1) + {C}(math.exp(-{0})))",
    "abs": "{C}(math.fabs({0}))",
    "round": "{C}(round({0}))",
    "floordiv": "{0} // {1}",
    "trunc": "{C}(math.copysign(math.floor(math.fabs({0})), {0}))",
    "truncdiv": "{C}(math.copysign(math.floor(math.fabs({0} / {1})), {0} / {1}))",
    "remainder": "{0} % {1}",
    "where": "{1} if {0} else {2}",
    "maximum": "{0} if {0} != {0} or {0} > {1} else {1}",
    "minimum": "{0} if {0} != {0} or {0} < {1} else {1}",
    "fmax": "{0} if {1} != {1} or {0} > {1} else {1}",
    "fmin": "{0} if {1} != {1} or {0} < {1} else {1}",
    "isinf": "math.isinf({0})",
    "isfinite": "math.isfinite({0})",
    "signbit": "math.copysign({C}(1), {0}) < {C}(0)",
    "erfinv": "", "digamma": "", "zeta": "", "i0e": "", "i1e": "", "erfcx": "",
    "nextafter": "",
}  # fmt: skip
INTEGER_DEVICE: dict[str, str] = {
    "floordiv": "{C}({0} // {1})",
    "remainder": "{C}({0} % {1})",
    "where": "{1} if {0} else {2}",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
    "fmax": "max({0}, {1})",
    "fmin": "min({0}, {1})",
    "truncdiv": "", "fmod": "", "pow": "", "gcd": "", "shl": "", "shr": "",
}  # fmt: skip

ALIASES = {
    "bool": "truth", "max": "maximum", "min": "minimum", "select": "where", "floor_div": "floordiv",
}  # fmt: skip
_add(Function("truth", "b", "b", *["{0}"] * 4))

CONSTANTS: dict[str, float] = {"pi": math.pi, "inf": math.inf, "nan": math.nan, "e": math.e}


def find(name: str) -> Function | None:
    """Return the function that bodies call by this name, or None."""
    return TABLE.get(ALIASES.get(name, name))


def __getattr__(name: str) -> Any:
    # Bodies import what they call from here, so that readers and linters find every name.
    found = find(name)
    if found is None:
        raise AttributeError(f"the math table has no function {name!r}")
    return found
