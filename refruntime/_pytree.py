"""Nested containers taken apart into their leaves, and put together again.

Invariants
----------
* Lists, tuples, named tuples, dictionaries (in their own order), ordered and default dictionaries
  and deques are containers; everything else, None too, is a leaf.
* ``tree_unflatten(*tree_flatten(tree))`` equals the tree.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from refruntime.errors import ArgumentTypeError, ArgumentValueError

__all__ = [
    "TreeSpec", "tree_all", "tree_any", "tree_broadcast", "tree_flatten", "tree_leaves",
    "tree_map", "tree_map_", "tree_map_only", "tree_structure", "tree_unflatten",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """The shape of a tree without its leaves.

    Parameters
    ----------
    type : type or None
        The container's class; None for a leaf.
    context : object
        What the class needs besides the children: keys, or a default factory too.
    children_specs : list of TreeSpec
        The shapes of the children.
    """

    type: Any
    context: Any
    children_specs: tuple[TreeSpec, ...]

    @property
    def num_leaves(self) -> int:
        """How many leaves such a tree has."""
        return 1 if self.type is None else sum(spec.num_leaves for spec in self.children_specs)

    def is_leaf(self) -> bool:
        """Whether it is a leaf."""
        return self.type is None


_LEAF = TreeSpec(None, None, ())


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def _opened(tree: Any) -> tuple[list[Any], Any] | None:
    """Return the children of a container and its context; None for a leaf."""
    kind = type(tree)
    if kind in (list, tuple) or _is_namedtuple(kind):
        return list(tree), None
    if kind in (dict, OrderedDict):
        return list(tree.values()), tuple(tree)
    if kind is defaultdict:
        return list(tree.values()), (tree.default_factory, tuple(tree))
    if kind is deque:
        return list(tree), tree.maxlen
    return None


def _closed(kind: type, context: Any, children: list[Any]) -> Any:
    if kind in (list, tuple):
        return kind(children)
    if _is_namedtuple(kind):
        return kind(*children)
    if kind is deque:
        return deque(children, context)
    if kind is defaultdict:
        factory, keys = context
        return defaultdict(factory, zip(keys, children, strict=True))
    return kind(zip(context, children, strict=True))


def tree_flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a tree in order, and its shape.

    Parameters
    ----------
    tree : object
        Nested containers.
    is_leaf : callable, optional
        Says of a container that it counts as a leaf.
    """
    opened = None if is_leaf is not None and is_leaf(tree) else _opened(tree)
    if opened is None:
        return [tree], _LEAF
    leaves: list[Any] = []
    specs = []
    for child in opened[0]:
        found, spec = tree_flatten(child, is_leaf)
        leaves += found
        specs.append(spec)
    return leaves, TreeSpec(type(tree), opened[1], tuple(specs))


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Return the tree of a shape with the given leaves."""
    if not isinstance(treespec, TreeSpec):
        raise ArgumentTypeError(
            "tree_unflatten", expected="a TreeSpec", got=type(treespec).__name__
        )
    values = list(leaves)
    if len(values) != treespec.num_leaves:
        raise ArgumentValueError(
            "tree_unflatten", expected=f"{treespec.num_leaves} leaves", got=str(len(values))
        )
    return _built(iter(values), treespec)


def _built(values: Any, spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(values)
    children = [_built(values, child) for child in spec.children_specs]
    return _closed(spec.type, spec.context, children)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves of a tree in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """Return the shape of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(
    func: Callable[..., Any], tree: Any, *rests: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:  # fmt: skip
    """Return a tree of what a function makes of the leaves, side by side in several trees."""
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [leaves, *(_matching(spec, rest) for rest in rests)]
    return tree_unflatten(map(func, *columns), spec)


def _matching(spec: TreeSpec, tree: Any) -> list[Any]:
    """Return the parts of a tree that stand where the leaves of a shape are."""
    if spec.type is None:
        return [tree]
    opened = _opened(tree)
    if opened is None or len(opened[0]) != len(spec.children_specs):
        raise ArgumentValueError(
            "tree_map", what="the trees have different shapes",
            expected=f"a {spec.type.__name__} of {len(spec.children_specs)}",
            got=type(tree).__name__,
        )  # fmt: skip
    pairs = zip(spec.children_specs, opened[0], strict=True)
    return [part for child, value in pairs for part in _matching(child, value)]


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Call a function on the leaves for its effect; returns the tree."""
    tree_map(func, tree, *rests)
    return tree


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree in which the leaves of some types (or that pass a test) are replaced."""
    chosen = kind if not isinstance(kind, (type, tuple)) else lambda leaf: isinstance(leaf, kind)
    return tree_map(lambda leaf: func(leaf) if chosen(leaf) else leaf, tree)


def tree_all(test: Callable[[Any], bool], tree: Any) -> bool:
    """Whether all leaves pass a test."""
    return all(test(leaf) for leaf in tree_leaves(tree))


def tree_any(test: Callable[[Any], bool], tree: Any) -> bool:
    """Whether any leaf passes a test."""
    return any(test(leaf) for leaf in tree_leaves(tree))


def tree_broadcast(prefix: Any, tree: Any) -> list[Any] | None:
    """Return for each leaf of a tree the leaf of `prefix` that stands for it.

    A leaf of `prefix` stands for all leaves below its place; None is returned if a container of
    `prefix` does not match the container of the tree.
    """
    opened = _opened(prefix)
    if opened is None:
        return [prefix] * len(tree_leaves(tree))
    other = _opened(tree)
    if other is None or type(prefix) is not type(tree) or len(opened[0]) != len(other[0]):
        return None
    if isinstance(prefix, dict) and opened[1] != other[1]:
        return None
    found: list[Any] = []
    for part, child in zip(opened[0], other[0], strict=True):
        leaves = tree_broadcast(part, child)
        if leaves is None:
            return None
        found += leaves
    return found
