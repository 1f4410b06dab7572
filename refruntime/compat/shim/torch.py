"""Stands on the path of the child processes of a program started by ``refruntime run``.

A child that Python starts afresh (multiprocessing's spawn, ``subprocess``) knows nothing of the
parent's import hook. Its ``import torch`` finds this file, which installs the hook; from then on
``torch`` is refruntime there too.
"""

from __future__ import annotations

__refruntime_shim__ = True

from refruntime.compat.names import install

install()
