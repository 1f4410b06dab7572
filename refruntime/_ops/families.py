"""Loads every family of operators, so that the registry is complete."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import all modules of this folder; each registers its ops when imported."""
    import refruntime._ops as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
