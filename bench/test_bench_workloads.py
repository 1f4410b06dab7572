"""pytest-benchmark over the workloads of `work.py`, in refruntime alone.

`compare.py` measures the same statements against PyTorch; these follow refruntime over time
(``--benchmark-save``, ``--benchmark-compare``). Each time includes one call of a Python function,
about 40 ns, which `compare.py` leaves out.
"""

from __future__ import annotations

import pytest

import refruntime
from bench.work import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_bench_workload(benchmark, name):
    item = WORKLOADS[name]
    names = item.setup(refruntime)
    exec(f"def statement():\n    {item.statement}", names)
    names["statement"]()  # compiles what the statement needs
    benchmark.group = item.group
    benchmark(names["statement"])
