"""What the loaded BLAS says of its threads."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from refruntime.kernels import blas


def test_the_library_of_numpy_is_found_where_it_is_openblas():
    np.ones((2, 2)) @ np.ones((2, 2))
    assert blas.threads() >= 1


def test_the_number_of_the_environment_is_read_back():
    # Asked in a process of its own, for the library reads its environment once.
    source = "import numpy; from refruntime.kernels import blas; print(blas.threads())"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
