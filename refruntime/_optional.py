"""The only importer of optional packages.

State
-----
Each attribute (``_optional.cupy``) is a `Package`: the module, imported when an attribute of it is
first used. A package that cannot be imported turns into a `Missing`, which says why.

Invariants
----------
* Importing this module, or naming a package, imports none of them.
* Using a package that is missing raises `OptionalDependencyError` with what to install; the reason
  of the first failure is kept, so each later use says the same.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from refruntime.errors import OptionalDependencyError


class Missing:
    """Stands for a package that is not there: any use raises, with the reason and the remedy.

    Parameters
    ----------
    reason : str
        Why the package cannot be used.
    extra : str
        What to install.
    """

    def __init__(self, reason: str, extra: str, package: str = "") -> None:
        self.__dict__.update(reason=reason, extra=extra, package=package)

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Missing({self.__dict__['package']}: {self.__dict__['reason']})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Protocol look-ups by copy, pickle or inspect must fail softly.
            raise AttributeError(name)
        raise OptionalDependencyError(
            self.package or "optional package",
            what=self.reason,
            expected=f"the package {self.package}" if self.package else "the package",
            got="no usable installation",
            remedy=f"install it with: pip install {self.extra}",
        )


class Package:
    """A package that is imported when it is first used.

    Parameters
    ----------
    module : str
        What to import.
    extra : str
        What to install, for the error.
    """

    def __init__(self, module: str, extra: str) -> None:
        self.__dict__.update(_module=module, _extra=extra, _loaded=None)

    def _load(self) -> ModuleType | Missing:
        loaded: ModuleType | Missing | None = self.__dict__["_loaded"]
        if loaded is None:
            try:
                loaded = importlib.import_module(self._module)
            except Exception as error:  # a broken driver or ABI raises much else than ImportError
                reason = f"{type(error).__name__}: {error}"
                loaded = Missing(reason, self._extra, self._module)
            self.__dict__["_loaded"] = loaded
        return loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __bool__(self) -> bool:
        """Whether the package can be imported (which this does)."""
        return not isinstance(self._load(), Missing)

    def __repr__(self) -> str:
        loaded = self.__dict__["_loaded"]
        state = "not imported yet" if loaded is None else repr(loaded)
        return f"Package({self.__dict__['_module']}: {state})"

    def installed(self) -> bool:
        """Say whether the package is there, without importing it (only its parents)."""
        try:
            return importlib.util.find_spec(self._module) is not None
        except (ImportError, AttributeError, ValueError):
            return False


# Attribute -> (module, what to install).
PACKAGES: dict[str, tuple[str, str]] = {
    "cupy": ("cupy", "'refruntime[cuda13]' (or cuda12)"),
    "cupy_nvrtc": ("cupy_backends.cuda.libs.nvrtc", "'refruntime[cuda13]' (or cuda12)"),
    "numba_cuda": ("numba.cuda", "'refruntime[cuda13]' (or cuda12)"),
    "cuda_driver": ("cuda.bindings.driver", "'refruntime[cuda13]' (or cuda12)"),
    "mpi4py": ("mpi4py", "'refruntime[dist]'"),
    "nccl": ("nccl.core", "'refruntime[dist]'"),
    "threadpoolctl": ("threadpoolctl", "threadpoolctl"),
    "tqdm": ("tqdm", "'refruntime[viz]'"),
    "matplotlib": ("matplotlib", "'refruntime[viz]'"),
    "PIL": ("PIL", "pillow"),
    "sklearn": ("sklearn", "scikit-learn"),
    "scipy": ("scipy", "scipy"),
    "psutil": ("psutil", "psutil"),
    "pynvml": ("pynvml", "nvidia-ml-py"),
    "opt_einsum": ("opt_einsum", "opt-einsum"),
    "hypothesis": ("hypothesis", "'refruntime[test]'"),
    "distributed": ("distributed", "'refruntime[lab]'"),
}

_packages: dict[str, Package] = {}


def __getattr__(name: str) -> Package:
    if name not in PACKAGES:
        raise AttributeError(
            f"module {__name__!r} has no optional package {name!r}; known: {', '.join(PACKAGES)}"
        )
    return _packages.setdefault(name, Package(*PACKAGES[name]))


def describe() -> list[dict[str, Any]]:
    """Return one row a package for ``refruntime info``: name, installed, what to install."""
    return [
        {"name": name, "installed": __getattr__(name).installed(), "extra": extra}
        for name, (_, extra) in PACKAGES.items()
    ]
