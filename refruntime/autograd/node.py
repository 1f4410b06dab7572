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
* A node is numbered after the nodes of its operands.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from refruntime._impl import AutogradMeta, TensorImpl, TensorMeta, detached
from refruntime._ops.opdef import OpDef, ops
from refruntime.alloc.categories import ACTIVATION, SAVED
from refruntime.autograd import saved as saving
from refruntime.autograd.accumulate import LONE_OBJECT, accumulate
from refruntime.autograd.hooks import RemovableHandle
from refruntime.autograd.saved import PackedValue, modified
from refruntime.errors import AutogradError

Edge = tuple[Any, int]
NO_EDGE: Edge = (None, 0)

next_number = itertools.count().__next__


class Node:
    """A step of backward: gradients of its outputs in, gradients of its operands out."""

    # What most nodes never have stands on the class, and in the instance only when it is set.
    __slots__ = ("__dict__", "__weakref__", "next_functions", "output_metas", "sequence_nr")

    # Whether the step runs kernels of the runtime alone, so that any thread may run it.
    pure = False
    # Whether any of the hooks below is set.
    hooked = False
    pre_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    post_hooks: OrderedDict[int, Callable[..., Any]] | None = None
    # Hooks of the output tensors, by output number.
    tensor_hooks: dict[int, Any] | None = None
    # The output tensors (weak) that keep their gradient, by output number.
    retained_outputs: dict[int, Any] | None = None
    # The stream on which the forward ran, where there are streams.
    forward_stream: Any = None
    _metadata: dict[str, Any] | None = None
    # None in a node that has nothing to release.
    saved_values: Any = True

    # A node stands for the `AutogradMeta` of its output if it has one, which is no view: one record
    # less for each call. These are what it has then in common with that class.
    requires_grad = True
    output_nr = 0
    view_version = 0
    grad: Any = None
    hooks: Any = None
    post_accumulate_hooks: Any = None
    retains_grad = False
    accumulator: Any = None

    @property
    def grad_fn(self) -> Node:
        """The node itself: it made the tensor whose `AutogradMeta` it stands for."""
        return self

    def __init__(self, next_functions: tuple[Edge, ...]) -> None:
        self.next_functions = next_functions
        self.sequence_nr = next_number()
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

    def _sequence_nr(self) -> int:
        return self.sequence_nr

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands from those of the outputs (None: zero)."""
        raise NotImplementedError

    def apply_plain(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Do the same when nothing is recorded and no mode looks on: ops may have a shorter way."""
        return self.apply(grads)

    def release(self) -> None:
        """Drop what was saved."""

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run."""
        if self.post_hooks is None:
            self.post_hooks = OrderedDict()
            self.hooked = True
        return RemovableHandle.enter(self.post_hooks, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs."""
        if self.pre_hooks is None:
            self.pre_hooks = OrderedDict()
            self.hooked = True
        return RemovableHandle.enter(self.pre_hooks, hook)

    def register_tensor_hook(self, number: int, hook: Callable[..., Any]) -> RemovableHandle:
        """Pass the gradient of an output through ``hook(gradient)`` before the node runs."""
        if self.tensor_hooks is None:
            self.tensor_hooks = {}
            self.hooked = True
        return RemovableHandle.enter(self.tensor_hooks.setdefault(number, OrderedDict()), hook)

    def retain_output(self, number: int, tensor: TensorImpl) -> None:
        """Keep the gradient of an output in ``tensor.grad``, after all hooks have seen it."""
        if self.retained_outputs is None:
            self.retained_outputs = {}
            self.hooked = True
        self.retained_outputs[number] = weakref.ref(tensor)


class AccumulateGrad(Node):
    """Adds what arrives to the gradient of a leaf."""

    __slots__ = ("variable",)

    next_functions = ()
    # It runs before any op: gradients of leaves are then final early.
    sequence_nr = 1 << 62

    def __init__(self, variable: TensorImpl) -> None:
        self.variable = variable

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:  # type: ignore[override]
        """The meta of the leaf."""
        return (self.variable.meta,)

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Add the gradient, which is taken out of the list, to that of the leaf."""
        if grads[0] is not None:
            accumulate(self.variable, grads)  # type: ignore[arg-type]
        return ()

    apply_plain = apply


class OpNode(Node):
    """The node of a registered op; the subclass of an op knows its record.

    `saved_values` has two entries for each name of the record's ``saves``: what was saved (a
    tensor, a number, a `PackedValue`, or a list of these for operands of any number), and the
    version of the tensor. `tagged` holds the storages whose bytes this node made SAVED, and what
    they were before.
    """

    __slots__ = ("metas", "params", "saved_values")

    pure = True
    tagged: tuple[tuple[Any, int], ...] | None = None
    op: OpDef
    # For each saved name: what it is, its place, and the operand whose gradient alone reads it.
    save_plan: tuple[tuple[str, int, int | None], ...] = ()
    saves_output = False
    # What the memory of the outputs is for.
    output_category = ACTIVATION
    # Whether the op takes any number of operands.
    variadic = False
    # See `record`.
    recorder: Any = None

    def __init__(
        self,
        inputs: tuple[Any, ...],
        params: dict[str, Any],
        outputs: Any,
        edges: tuple[Edge, ...] | None = None,
    ) -> None:
        self.next_functions = edges or tuple([gradient_edge(value) for value in inputs])
        self.sequence_nr = next_number()
        self.metas = tuple([v.meta if isinstance(v, TensorImpl) else v for v in inputs])
        self.params = params
        self.saved_values: Any = None
        if self.save_plan:
            self.saved_values = []
            for kind, index, reader in self.save_plan:
                if kind == "in":
                    wanted = reader is None or self.next_functions[reader][0] is not None
                    self._save(inputs[index] if wanted else None)
                elif kind == "rest":
                    self._save_rest(inputs[index:])
                else:
                    self.saved_values += (None, None)
            if outputs is not None:
                self.save_outputs(outputs)

    @property
    def needs(self) -> tuple[bool, ...]:
        """Whether a gradient is asked for, for each operand."""
        return tuple([edge[0] is not None for edge in self.next_functions])

    # -- saving ---------------------------------------------------------------------------------

    def _save(self, value: Any) -> None:
        if not isinstance(value, TensorImpl):
            self.saved_values += (value, None)
        elif saving.active and saving.hooks.stack:
            self.pure = False
            self.saved_values += (PackedValue(value), None)
        else:
            self.tag(value)
            self.saved_values += (value, value.counter.version)

    def _save_rest(self, values: tuple[Any, ...]) -> None:
        kept = []
        for value in values:
            self._save(value)
            kept.append((self.saved_values[-2], self.saved_values[-1]))
            del self.saved_values[-2:]
        self.saved_values += (kept, None)

    def tag(self, value: TensorImpl) -> None:
        """Say that the bytes of `value` are there for backward, if they are not a leaf's own."""
        storage = value.storage
        category = storage.category
        if category in saving.RETAG and not _is_differentiated_leaf(value):
            storage.tag(SAVED)
            self.tagged = (*(self.tagged or ()), (storage, category))

    def save_outputs(self, outputs: Any) -> None:
        """Save what the record names of the outputs, once they are known."""
        for position, (kind, index, _) in enumerate(self.save_plan):
            if kind in ("out", "outs"):
                value = outputs if kind == "out" else outputs[index]
                # An output without gradient has no history to give back.
                self.save_output(position, value, index, index not in self.op.nondiff_outputs)

    def save_output(self, position: int, value: TensorImpl, number: int, history: bool) -> None:
        """Save an output without its history, which would be a cycle through this node."""
        if saving.active and saving.hooks.stack:
            self.pure = False
            self.saved_values[2 * position] = PackedValue(value, history, number)
            return
        storage = value.storage
        if storage.category == SAVED and self.saves_output:
            self.tagged = (*(self.tagged or ()), (storage, ACTIVATION))
        else:
            self.tag(value)
        self.saved_values[2 * position] = detached(value)
        self.saved_values[2 * position + 1] = value.counter.version

    def release(self) -> None:
        """Drop what was saved."""
        if self.saved_values is not None:
            self.saved_values = None
            if self.tagged is not None:
                self._untag()

    def _untag(self) -> None:
        """Give the bytes that outlive this node the category back that they had."""
        tagged, self.tagged = self.tagged, None
        for storage, category in tagged or ():
            if sys.getrefcount(storage) > LONE_OBJECT and storage.category == SAVED:
                storage.tag(category)

    # -- running --------------------------------------------------------------------------------

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands from those of the outputs."""
        return apply_rule(self, grads)

    apply_plain = apply

    def unpack(self, position: int) -> Any:
        """Return the saved value at a place of the record's ``saves``."""
        if self.saved_values is None:
            raise released(self)
        value, version = self.saved_values[2 * position], self.saved_values[2 * position + 1]
        if type(value) is list:
            return [self._unpacked(*pair) for pair in value]
        value = self._unpacked(value, version)
        kind, number, _ = self.save_plan[position]
        if kind in ("in", "rest") or type(self.saved_values[2 * position]) is PackedValue:
            return value
        if number in self.op.nondiff_outputs:
            return value
        output = detached(value)
        output.autograd = AutogradMeta(True, self, number, value.counter.version)
        return output

    def _unpacked(self, value: Any, version: int | None) -> Any:
        if version is None:
            return value.unpack(self) if type(value) is PackedValue else value
        if value.counter.version != version:
            raise modified(value, version, self)
        return value

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are no slot and no saved value: the op's parameters.
        if name.startswith("_saved_"):
            name = name[len("_saved_") :]
            return getattr(self, "input" if name == "self" else name)
        try:
            return self.params[name]
        except KeyError:
            raise AttributeError(f"{self.name()} has no attribute {name!r}") from None


def _is_differentiated_leaf(value: TensorImpl) -> bool:
    meta = value.autograd
    return meta is not None and meta.requires_grad and meta.grad_fn is None


def apply_rule(node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """Run the derivative rule of an op; without any gradient there is nothing to run."""
    if len(grads) == 1:
        if grads[0] is None:
            return (None,) * len(node.next_functions)
        result = node.op.vjp(grads[0], node)
    elif all(gradient is None for gradient in grads):
        return (None,) * len(node.next_functions)
    else:
        result = node.op.vjp(tuple(grads), node)
    return result if isinstance(result, tuple) else (result,)


class Masked:
    """A node of an op as its rule sees it when some operands are not asked for in this call."""

    __slots__ = ("_node", "needs")

    def __init__(self, node: OpNode, needs: tuple[bool, ...]) -> None:
        self._node = node
        self.needs = needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def apply(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the operands that are asked for, and perhaps of others."""
        return apply_rule(self, grads)


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
    if any(kind == "out" for kind, _, _ in plan):
        namespace.update(saves_output=True, output_category=SAVED)
    namespace["variadic"] = any(name.startswith("*") for name in op.inputs)
    plain = _plain_rule(op.name)
    if plain is not None and not op.conjugates:
        namespace["apply_plain"] = plain
    return type(op.node_name, (OpNode,), namespace)


# What `rules` gives as the shorter way of common ops, by name; filled at the first recorded call.
plain_rules: dict[str, Callable[[Any, Sequence[Any]], Sequence[Any]]] = {}


def _plain_rule(name: str) -> Callable[[Any, Sequence[Any]], Sequence[Any]] | None:
    if not plain_rules:
        from refruntime.autograd import rules

        rules.install()
    return plain_rules.get(name)


def _saved_property(position: int, conjugates: bool) -> property:
    """Return the property of a node class that unpacks a saved value."""

    def unpack(self: OpNode) -> Any:
        value = self.unpack(position)
        return _conjugate(value) if conjugates else value

    return property(unpack)


# Operands that are read for the gradient of one other operand alone: they are not saved when that
# one is not asked for. So a product with a constant keeps the constant and nothing else.
_READERS: dict[str, dict[str, str]] = {
    "mul": {"input": "other", "other": "input"},
    "div": {"input": "other"},
    "mm": {"input": "mat2", "mat2": "input"},
    "mv": {"input": "vec", "vec": "input"},
    "addmm": {"mat1": "mat2", "mat2": "mat1"},
    "linear": {"input": "weight"},
    "convolution": {"input": "weight", "weight": "input"},
}


def _save_step(op: OpDef, names: list[str], name: str) -> tuple[str, int, int | None]:
    if name == "out":
        return "out", 0, None
    if name.startswith("out") and name[3:].isdigit():
        return "outs", int(name[3:]), None
    index = names.index(name)
    reader = _READERS.get(op.name, {}).get(name)
    kind = "rest" if op.inputs[index].startswith("*") else "in"
    return kind, index, None if reader is None else names.index(reader)


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
