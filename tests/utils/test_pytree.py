"""Trees come apart into leaves and together again."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.utils._pytree import (
    tree_all,
    tree_any,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

Pair = namedtuple("Pair", "a b")

TREES = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.builds(Pair, inner, inner),
    max_leaves=12,
)


@given(TREES)
def test_a_tree_is_its_leaves_and_its_shape(tree):
    leaves, spec = tree_flatten(tree)
    assert len(leaves) == spec.num_leaves
    again = tree_unflatten(leaves, spec)
    assert again == tree
    assert type(again) is type(tree)


def test_rarer_containers_keep_what_belongs_to_them():
    trees = (OrderedDict(b=1, a=2), defaultdict(list, x=1), deque([1, 2], 5))
    for tree in trees:
        again = tree_map(lambda leaf: leaf, tree)
        assert again == tree
        assert type(again) is type(tree)
    assert tree_map(str, trees[1]).default_factory is list
    assert tree_map(str, trees[2]).maxlen == 5


def test_functions_over_leaves():
    tree = {"a": [1, 2.0], "b": (3, None)}
    assert tree_leaves(tree) == [1, 2.0, 3, None]
    assert tree_map(lambda x, y: (x, y), [1, [2]], [3, [4]]) == [(1, 3), [(2, 4)]]
    assert tree_map(lambda x, y: (x, y), [1], [{"k": 2}]) == [(1, {"k": 2})]
    assert tree_map_only(int, lambda x: -x, tree) == {"a": [-1, 2.0], "b": (-3, None)}
    assert tree_leaves(tree, is_leaf=lambda x: isinstance(x, tuple)) == [1, 2.0, (3, None)]
    assert tree_any(lambda x: x is None, tree)
    assert not tree_all(lambda x: x is None, tree)


def test_trees_that_do_not_fit_are_refused():
    leaves, spec = tree_flatten([1, 2])
    with pytest.raises(ArgumentValueError):
        tree_unflatten(leaves[:1], spec)
    with pytest.raises(ArgumentTypeError):
        tree_unflatten(leaves, [1, 2])
    with pytest.raises(ArgumentValueError):
        tree_map(lambda x, y: x, [1, 2], [1])
