"""All batching rules, one module a family; importing this one enters them."""

from __future__ import annotations

from refruntime.autograd.batching import draws, indexing, layers, products
from refruntime.autograd.batching.generic import RULES, Case, rule, run_batched

__all__ = ["RULES", "Case", "draws", "indexing", "layers", "products", "rule", "run_batched"]
