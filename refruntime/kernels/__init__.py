"""Kernels: one file a family, its CPU and GPU halves side by side; `cuda/` holds the CUDA sources.

State
-----
None here. `launch` owns the threads, `jit` the compiled CUDA modules, `_native` the machine code.

Invariants
----------
* A kernel writes into memory that it is given, and knows nothing of operators or gradients.
* Importing a kernel module compiles nothing.
"""
