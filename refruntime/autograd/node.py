"""The nodes of the graph.

State
-----
A node has edges to the nodes of its operands (`next_functions`: pairs of node and output number;
None where no gradient is asked for), a sequence number (later nodes run first in backward), what it
saved, and hooks. `OpNode` has one subclass an op, made once, named as torch names it.

Invariants
----------
* Tensors hold nodes; nodes hold the nodes before them and saved values; no cycle exists.
* A leaf's `AccumulateGrad` holds the leaf; the leaf knows it through a weak reference, so that
  both die together and there is one for each leaf at a time.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, TensorMeta
from refruntime._ops.opdef import OpDef, ops
from refruntime.autograd.hooks import RemovableHandle
from refruntime.autograd.saved import SavedValue
from refruntime.errors import AutogradError

Edge = tuple[Any, int]
NO_EDGE: Edge = (None, 0)

_sequence = itertools.count().__next__


class Node:
    """A step of backward: gradients of its outputs in, gradients of its operands out."""

    # What most nodes never have stands on the class, and in the instance only when it is set.
    __slots__ = ("__dict__", "__weakref__", "next_functions", "output_metas", "sequence_nr")

    pre_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    post_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    # Hooks of the output tensors, by output number.
    tensor_hooks: dict[int, Any] | None = None
    _metadata: dict[str, Any] | None = None

    def __init__(self, next_functions: tuple[Edge, ...]) -> None:
        self.next_functions = next_functions
        self.sequence_nr = _sequence()
        self.output_metas: tuple[TensorMeta, ...] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary of the user's, kept with the node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def name(self) -> str:
        """Return the name of the node's class."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"

    def apply(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the operands from those of the outputs (None: zero)."""
        raise NotImplementedError

    def release(self) -> None:
        """Drop what was saved."""

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run."""
        if self.post_hooks is None:
            self.post_hooks = OrderedDict()
        return RemovableHandle.enter(self.post_hooks, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs."""
        if self.pre_hooks is None:
            self.pre_hooks = OrderedDict()
        return RemovableHandle.enter(self.pre_hooks, hook)


class AccumulateGrad(Node):
    """Adds what arrives to the gradient of a leaf."""

    __slots__ = ("variable",)

    next_functions = ()
    # It must run as soon as it can, before any op: gradients of leaves are then final early.
    sequence_nr = 1 << 62

    def __init__(self, variable: TensorImpl) -> None:
        self.variable = variable

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:  # type: ignore[override]
        """The meta of the leaf."""
        return (self.variable.meta,)

    def apply(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the operands from those of the outputs."""
        from refruntime.autograd.accumulate import accumulate

        if grads[0] is not None:
            accumulate(self.variable, grads[0])
        return ()


class OpNode(Node):
    """The node of a registered op; the subclass of an op knows its record."""

    __slots__ = ("metas", "needs", "params", "saved")

    op: OpDef

    def __init__(
        self,
        inputs: tuple[Any, ...],
        params: dict[str, Any],
        outputs: Any,
        edges: tuple[Edge, ...] | None = None,
    ) -> None:
        # Written out, without the base's constructor: every recorded op passes here.
        found, metas = [], []
        for value in inputs:
            if isinstance(value, TensorImpl):
                metas.append(value.meta)
                known = value.autograd
                wanted = known is not None and known.requires_grad and edges is None
                found.append(gradient_edge(value) if wanted else NO_EDGE)
            else:
                metas.append(value)
                found.append(NO_EDGE)
        self.next_functions = edges = edges or tuple(found)
        self.sequence_nr = _sequence()
        self.needs = tuple([edge[0] is not None for edge in edges])
        self.metas = tuple(metas)
        self.params = params
        self.saved: list[Any] | None = None
        if self.save_plan:
            self.saved = self._save_operands(inputs)
            if outputs is not None:
                self.save_outputs(outputs)

    def _save_operands(self, inputs: tuple[Any, ...]) -> list[Any]:
        saved: list[Any] = []
        for kind, index in self.save_plan:
            if kind == "in":
                saved.append(_keep(inputs[index]))
            elif kind == "rest":
                saved.append([_keep(value) for value in inputs[index:]])
            else:
                saved.append(None)
        return saved

    def save_outputs(self, outputs: Any) -> None:
        """Save what the record names of the outputs, once they are known."""
        for position, (kind, index) in enumerate(self.save_plan):
            if kind in ("out", "outs"):
                value = outputs if kind == "out" else outputs[index]
                assert self.saved is not None
                # An output without gradient has no history to give back.
                self.saved[position] = SavedValue(
                    value, index not in self.op.nondiff_outputs, index
                )

    save_plan: tuple[tuple[str, int], ...] = ()

    def apply(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the operands from those of the outputs."""
        vjp = self.op.vjp
        assert vjp is not None
        result = vjp(grads[0] if len(grads) == 1 else grads, self)
        return result if isinstance(result, tuple) else (result,)

    def release(self) -> None:
        """Drop what was saved."""
        if self.save_plan:
            self.saved = None

    def unpack(self, position: int) -> Any:
        """Return the saved value at a place of the record's ``saves``."""
        if self.saved is None:
            raise released(self)
        value = self.saved[position]
        if isinstance(value, list):
            return [v.unpack(self) if isinstance(v, SavedValue) else v for v in value]
        return value.unpack(self) if isinstance(value, SavedValue) else value

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are no slot and no saved value: the op's parameters.
        if name.startswith("_saved_"):
            return getattr(self, name[len("_saved_") :])
        try:
            return self.params[name]
        except KeyError:
            raise AttributeError(f"{self.name()} has no attribute {name!r}") from None


def _keep(value: Any) -> Any:
    return SavedValue(value) if isinstance(value, TensorImpl) else value


def _conjugate(value: Any) -> Any:
    if isinstance(value, TensorImpl):
        return ops.conj(value) if value.meta.dtype.is_complex else value
    return value.conjugate() if isinstance(value, complex) else value


def released(node: Node) -> AutogradError:
    """Return the error for a node whose saved values are gone."""
    return AutogradError(
        node.name(),
        what="Trying to backward through the graph a second time (or directly access saved "
        "tensors after they have already been freed)",
        expected="a graph whose saved values are alive",
        got="a graph that an earlier backward has used up",
        remedy="pass retain_graph=True to the first backward",
    )


def node_class(op: OpDef) -> type[OpNode]:
    """Return the node class of an op, made at the first use."""
    if op.node_class is None:
        op.node_class = _make_node_class(op)
    return op.node_class  # type: ignore[no-any-return]


def _make_node_class(op: OpDef) -> type[OpNode]:
    names = [name.lstrip("*") for name in op.inputs]
    plan = []
    namespace: dict[str, Any] = {"__slots__": (), "op": op, "__doc__": f"The node of {op.name}."}
    for position, name in enumerate(op.saves):
        plan.append(_save_step(op, names, name))
        namespace[name] = _saved_property(position, op.conjugates)
    namespace["save_plan"] = tuple(plan)
    return type(op.node_name, (OpNode,), namespace)


def _saved_property(position: int, conjugates: bool) -> property:
    """Return the property of a node class that unpacks a saved value."""

    def unpack(self: OpNode) -> Any:
        value = self.unpack(position)
        return _conjugate(value) if conjugates else value

    return property(unpack)


def _save_step(op: OpDef, names: list[str], name: str) -> tuple[str, int]:
    if name == "out":
        return "out", 0
    if name.startswith("out") and name[3:].isdigit():
        return "outs", int(name[3:])
    index = names.index(name)
    return ("rest" if op.inputs[index].startswith("*") else "in"), index


def gradient_edge(value: Any) -> Edge:
    """Return where the gradient of an operand goes: its node and output number, or no edge."""
    if not isinstance(value, TensorImpl):
        return NO_EDGE
    meta = value.autograd
    if meta is None or not meta.requires_grad:
        return NO_EDGE
    if value.base is not None and meta.view_version != value.counter.version:
        from refruntime.autograd.inplace import refresh_view

        refresh_view(value)
        meta = value.autograd
        assert meta is not None
    if meta.grad_fn is not None:
        return meta.grad_fn, meta.output_nr
    return accumulator(value, meta), 0


def accumulator(leaf: TensorImpl, meta: AutogradMeta) -> AccumulateGrad:
    """Return the node that accumulates into a leaf, the same one while anybody holds it."""
    node = None if meta.accumulator is None else meta.accumulator()
    if node is None:
        node = AccumulateGrad(leaf)
        meta.accumulator = weakref.ref(node)
    return node


def set_history(outputs: Any, node: Node, nondiff: tuple[int, ...] = ()) -> None:
    """Make `node` the history of the outputs of an op."""
    if isinstance(outputs, TensorImpl):
        node.output_metas = (outputs.meta,)
        outputs.autograd = AutogradMeta(True, node, 0, outputs.counter.version)
        return
    node.output_metas = tuple([output.meta for output in outputs])
    for number, output in enumerate(outputs):
        if number not in nondiff and is_differentiable(output.meta):
            output.autograd = AutogradMeta(True, node, number, output.counter.version)


def is_differentiable(meta: TensorMeta) -> bool:
    """Whether tensors of this dtype can carry a gradient."""
    return meta.dtype.is_floating_point or meta.dtype.is_complex
