"""The names under which programs know PyTorch, bound to refruntime's modules.

State
-----
One `TorchFinder` in ``sys.meta_path`` while installed, and the entries ``torch`` and ``torch.*`` of
``sys.modules``, each of which is the module object of the same name below refruntime.

Invariants
----------
* A module has one identity: ``torch.nn.functional is refruntime.nn.functional``. Nothing is
  executed twice, and no copy of a module is made.
* Modules are imported when a program asks for them, not at `install`.
* The real PyTorch is never replaced behind a program's back: `install` refuses when it is loaded.
* While installed, a name that refruntime lacks is an ordinary `ModuleNotFoundError` for that name,
  also when the real PyTorch lies on the path: below ``torch``, Python searches our folders only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from refruntime.errors import RefruntimeError

OURS = "refruntime"
THEIRS = "torch"


class TorchAlreadyImportedError(RefruntimeError, ImportError):
    """The real PyTorch is loaded in this process, so its names cannot be given to refruntime."""


def _our_name(name: str) -> str:
    """Translate ``torch.nn`` to ``refruntime.nn``."""
    return OURS + name.removeprefix(THEIRS)


def _is_theirs(name: str) -> bool:
    return name == THEIRS or name.startswith(THEIRS + ".")


class AliasLoader(Loader):
    """Loads a torch name by handing out refruntime's module of the same name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that already has, or now gets, refruntime's name."""
        module = importlib.import_module(_our_name(spec.name))
        # The import machinery is about to stamp the alias's spec on the module; keep its own.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; its code has run already."""
        alias = module.__spec__
        if alias is not None and alias.loader is self:
            module.__spec__ = alias.loader_state


class TorchFinder(MetaPathFinder):
    """Answers for ``torch`` and everything below it."""

    def __init__(self) -> None:
        self._loader = AliasLoader()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a torch name, or None for the names of others."""
        if not _is_theirs(fullname):
            return None
        package = _is_package(_our_name(fullname))
        return None if package is None else ModuleSpec(fullname, self._loader, is_package=package)


def _is_package(ours: str) -> bool | None:
    """Say whether one of our modules is a package; None when there is no such module."""
    if ours in sys.modules:  # also a module made by hand, which has no spec to find
        return hasattr(sys.modules[ours], "__path__")
    try:
        spec = importlib.util.find_spec(ours)
    except ModuleNotFoundError:  # its parent is missing
        return None
    return None if spec is None else spec.submodule_search_locations is not None


def _finder() -> TorchFinder | None:
    return next((f for f in sys.meta_path if isinstance(f, TorchFinder)), None)


def installed() -> bool:
    """Say whether torch's names stand for refruntime in this process."""
    return _finder() is not None


def install() -> ModuleType:
    """Make ``import torch`` mean refruntime from now on, submodules included.

    Returns
    -------
    module
        refruntime itself, which is also ``sys.modules["torch"]``.

    Raises
    ------
    TorchAlreadyImportedError
        When the real PyTorch has been imported by this process.

    Examples
    --------
    >>> import refruntime.compat
    >>> torch = refruntime.compat.install()
    >>> import torch.nn.functional as F
    """
    ours = importlib.import_module(OURS)
    present = sys.modules.get(THEIRS)
    if present is not None and present is not ours and not _is_shim(present):
        raise TorchAlreadyImportedError(
            "compat.install",
            expected="a process that has not imported PyTorch",
            got=f"PyTorch from {getattr(present, '__file__', 'an unknown place')}",
            remedy="call refruntime.compat.install() before anything imports torch, "
            "or start the program with `refruntime run`",
        )
    if _finder() is None:
        sys.meta_path.insert(0, TorchFinder())
    for name, module in list(sys.modules.items()):
        if name == OURS or name.startswith(OURS + "."):
            sys.modules[THEIRS + name.removeprefix(OURS)] = module
    return ours


def _is_shim(module: ModuleType) -> bool:
    """Say whether this is the stand-in that a child process finds on its path."""
    return bool(getattr(module, "__refruntime_shim__", False))


def uninstall() -> None:
    """Take torch's names back from refruntime; without `install` before, do nothing.

    References that a program holds stay valid: they are refruntime's own modules.
    """
    finder = _finder()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if _is_theirs(name)]:
        if sys.modules[name] is sys.modules.get(_our_name(name)):
            del sys.modules[name]
