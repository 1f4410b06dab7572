"""Running the hooks of nodes and tensors, in the order of their registration."""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd.node import AccumulateGrad, Node


def run_tensor_hooks(node: Node, grads: list[Any]) -> None:
    """Pass each gradient through the hooks of the tensor that it is the gradient of."""
    if type(node) is AccumulateGrad:
        meta = node.variable.autograd
        if meta is not None and meta.hooks and grads[0] is not None:
            grads[0] = call_hooks(meta.hooks, grads[0])
    for number, hooks in (node.tensor_hooks or {}).items():
        if grads[number] is not None:
            grads[number] = call_hooks(hooks, grads[number])
    for number, reference in (node.retained_outputs or {}).items():
        tensor = reference()
        if tensor is not None and grads[number] is not None:
            kept = tensor.grad
            tensor.grad = ops.clone(grads[number]) if kept is None else kept + grads[number]


def call_hooks(hooks: dict[int, Any], gradient: TensorImpl) -> TensorImpl:
    """Pass a gradient through tensor hooks; a hook may replace it."""
    for hook in list(hooks.values()):
        result = hook(gradient)
        if result is not None:
            gradient = result
    return gradient


def run_pre_hooks(node: Node, grads: list[Any]) -> list[Any]:
    """Call the pre hooks of a node; each may replace all gradients."""
    assert node.pre_hooks is not None
    for hook in list(node.pre_hooks.values()):
        result = hook(tuple(grads))
        if result is not None:
            grads = list(result) if isinstance(result, (tuple, list)) else [result]
    return grads


def run_post_hooks(
    node: Node, results: tuple[Any, ...], outputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Call the post hooks of a node; each may replace the gradients of the operands."""
    assert node.post_hooks is not None
    for hook in list(node.post_hooks.values()):
        replaced = hook(results, outputs)
        if replaced is not None:
            results = tuple(replaced) if isinstance(replaced, (tuple, list)) else (replaced,)
    return results
