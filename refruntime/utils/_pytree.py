"""torch.utils._pytree: nested containers taken apart and put together; see `refruntime._pytree`."""

from __future__ import annotations

from refruntime._pytree import (
    TreeSpec,
    tree_all,
    tree_any,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

__all__ = [
    "TreeSpec", "tree_all", "tree_any", "tree_flatten", "tree_leaves", "tree_map", "tree_map_",
    "tree_map_only", "tree_structure", "tree_unflatten",
]  # fmt: skip
