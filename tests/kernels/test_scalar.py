"""Scalar bodies: what the subset takes, what it refuses and how it says so, and graphs."""

from __future__ import annotations

import math

import pytest

from refruntime import _dtypes
from refruntime.errors import ArgumentValueError, DTypeError
from refruntime.kernels.emit_numba import flat_source
from refruntime.kernels.mathtable import exp
from refruntime.kernels.scalar import Body, Call, Const, GraphBuilder, Name, Ref, single

HALF = 0.5
LABEL = "not a number"


def curve(x, y, *, scale=2.0):
    """Docstrings are allowed."""
    inner = exp(-x * HALF) if x > 0 else y
    return inner * scale


def test_parses_a_function_with_module_constants():
    body = Body.parse(curve)
    assert body.operands == ("x", "y")
    assert body.immediates == ("scale",)
    ((name, expr),) = body.statements
    product = Call("mul", (Call("neg", (Name("x"),)), Const(0.5)))
    assert name == "inner"
    assert expr == Call(
        "where", (Call("gt", (Name("x"), Const(0))), Call("exp", (product,)), Name("y"))
    )
    assert body.results == (Call("mul", (Name("inner"), Name("scale"))),)


def test_same_source_gives_equal_bodies():
    assert Body.parse(curve) == Body.parse(curve)
    assert hash(Body.parse(curve)) == hash(Body.parse(curve))


def test_constants_of_different_types_differ():
    assert Const(1) != Const(True)
    assert Const(1) != Const(1.0)
    assert Const(0.0) != Const(-0.0)
    assert Const(math.nan) == Const(math.nan)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("x + y", "add"), ("x - y", "sub"), ("x * y", "mul"), ("x / y", "div"),
        ("x // y", "floordiv"), ("x % y", "remainder"), ("x ** y", "pow"), ("x & y", "bitand"),
        ("x | y", "bitor"), ("x ^ y", "bitxor"), ("x << y", "shl"), ("x >> y", "shr"),
        ("x < y", "lt"), ("x <= y", "le"), ("x > y", "gt"), ("x >= y", "ge"), ("x == y", "eq"),
        ("x != y", "ne"), ("x and y", "logical_and"), ("x or y", "logical_or"), ("-x", "neg"),
        ("~x", "bitnot"), ("not x", "logical_not"), ("x if y else x", "where"),
        ("max(x, y)", "maximum"), ("select(x, y, x)", "where"),
    ],
)  # fmt: skip
def test_every_operator_is_a_function_of_the_table(expression, function):
    body = Body.from_source(f"def f(x, y):\n    return {expression}")
    assert body.results[0].function == function


def test_chained_comparison_is_a_conjunction():
    body = Body.from_source("def f(x):\n    return 0 < x <= 1")
    assert [*body.functions()] == ["logical_and", "lt", "le"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["for i in x:", "    x = 1", "return x"], "only assignments"),
        (["x = 1"], "must end with return"),
        (["x[0] = 1", "return x"], "must be a name"),
        (["return x.real"], "Attribute is outside the subset"),
        (["return unknown(x)"], "'unknown' is not in the math table"),
        (["return exp(x, x)"], "exp takes 1 argument"),
        (["return exp(x=x)"], "by position"),
        (["return nothing + x"], "unknown name 'nothing'"),
        (["return 'text'"], "not a real number"),
        (["return 1j * x"], "not a real number"),
        (["return x @ x"], "operator MatMult"),
        (["return x in (1, 2)"], "outside the subset"),
        (["x += 1", "return x"], "only assignments"),
        (["return later", "later = x"], "must end with return"),
    ],
)
def test_leaving_the_subset_is_refused_with_the_line(lines, why):
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in lines)
    with pytest.raises(ArgumentValueError, match=r"f, line \d+: ") as caught:
        Body.from_source(source)
    assert why in str(caught.value)


def test_error_names_the_line_of_the_file():
    def wrong(x):
        y = x
        return LABEL + y

    line = wrong.__code__.co_firstlineno + 2
    with pytest.raises(ArgumentValueError, match=f"wrong, line {line}: unknown name 'LABEL'"):
        Body.parse(wrong)


@pytest.mark.parametrize("parameters", ["x, y=1", "*xs", "x, **rest"])
def test_operands_are_plain_parameters(parameters):
    with pytest.raises(ArgumentValueError, match="plain positional parameters"):
        Body.from_source(f"def f({parameters}):\n    return 1")


def test_graph_refuses_a_wrong_number_of_operands():
    builder = GraphBuilder()
    with pytest.raises(ArgumentValueError, match="2 operands and 1 immediates"):
        builder.apply(Body.parse(curve), (builder.input(),), compute=_dtypes.float32)


def test_graph_computes_half_types_in_float32():
    graph = single(Body.from_source("def f(x):\n    return x"), _dtypes.bfloat16, "a")
    assert graph.steps[0].compute is _dtypes.float32


def test_single_places_numbers_among_the_immediates():
    graph = single(Body.parse(curve), _dtypes.float32, "ai", "f")
    assert graph.inputs == 1
    assert graph.immediates == "if"
    assert graph.steps[0].operands == (Ref("input", 0), Ref("immediate", 0))


def test_long_fusions_have_short_names():
    body = Body.from_source("def f(x):\n    return x")
    builder = GraphBuilder()
    value = builder.input()
    for _ in range(9):
        value = builder.apply(body, (value,), compute=_dtypes.float32)
    assert builder.finish(value).name == "f_f_6_more_f"


@pytest.mark.parametrize(
    ("expression", "message"),
    [("x * 0.5", "constant 0.5"), ("exp(x)", "exp does not exist for int32"), ("x / x", "div")],
)
def test_float_parts_of_an_integer_step_are_refused(expression, message):
    graph = single(Body.from_source(f"def f(x):\n    return {expression}"), _dtypes.int32, "a")
    with pytest.raises(DTypeError, match=message):
        flat_source(graph, (_dtypes.int32,), (_dtypes.int32,))
