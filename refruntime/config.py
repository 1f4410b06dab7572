"""Every knob of the runtime, once: name, environment variable, default, and meaning.

State
-----
`config` holds the value of each knob as a plain attribute. Values come from the environment when
this module is imported, and can be set later, for good or within ``config.patch(...)``.

Invariants
----------
* `KNOBS` is the only list; ``refruntime info`` prints it, and the environment is read only here.
* A value that does not parse or does not make sense is refused with the knob's name, at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refruntime.errors import ArgumentTypeError, ArgumentValueError

PREFIX = "REFRUNTIME_"


def _available_cores() -> int:
    """Count the cores this process may use, which containers and taskset restrict."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _default_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "refruntime")


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _not_negative(value: Any) -> bool:
    return bool(value >= 0)


def _share(value: Any) -> bool:
    return bool(0 < value <= 1)


def _any(value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting.

    Parameters
    ----------
    name : str
        The attribute of `config`; the environment variable is the same in capitals, prefixed.
    kind : type
        ``int``, ``float``, ``bool`` or ``str``.
    default : callable
        Computes the value used when the environment says nothing.
    meaning : str
        One line for ``refruntime info``.
    accepts, rule : callable, str
        Which values make sense, as a predicate and in words.
    """

    name: str
    kind: type
    default: Callable[[], Any]
    meaning: str
    accepts: Callable[[Any], bool] = _any
    rule: str = "any value"

    @property
    def env(self) -> str:
        """The environment variable that sets the knob."""
        return PREFIX + self.name.upper()

    def check(self, value: Any, source: str) -> Any:
        """Return `value` as the knob's type, or raise."""
        integral = self.kind is float and isinstance(value, int) and not isinstance(value, bool)
        coerced = float(value) if integral else os.fspath(value) if self.kind is str else value
        if type(coerced) is not self.kind:
            raise ArgumentTypeError(
                source, expected=self.kind.__name__, got=f"{type(value).__name__} {value!r}",
                remedy=self.meaning,
            )  # fmt: skip
        if not self.accepts(coerced):
            raise ArgumentValueError(source, expected=self.rule, got=repr(value))
        return coerced

    def parse(self, text: str) -> Any:
        """Read the value of the environment variable."""
        try:
            value = _parse_bool(text) if self.kind is bool else self.kind(text)
        except ValueError:
            raise ArgumentValueError(
                self.env, expected=self.kind.__name__, got=repr(text), remedy=self.meaning
            ) from None
        return self.check(value, self.env)


def _parse_bool(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True,
             "0": False, "false": False, "no": False, "off": False, "": False}  # fmt: skip
    if text.strip().lower() not in words:
        raise ValueError(text)
    return words[text.strip().lower()]


KNOBS: tuple[Knob, ...] = (
    Knob("num_threads", int, _available_cores,
         "threads that share the work of one large CPU kernel", _positive, "at least 1"),
    Knob("backward_workers", int, _available_cores,
         "threads that may run the nodes of one backward call, the caller's included", _positive,
         "at least 1"),
    Knob("parallel_grain", int, lambda: 32768,
         "elements below which a CPU kernel is not split over threads", _positive, "at least 1"),
    Knob("cache_dir", str, _default_cache_dir,
         "directory of compiled kernels and generated sources"),
    Knob("pure", bool, lambda: False,
         "run CPU kernels as plain Python, slowly, so that a debugger can step through them"),
    Knob("alloc_compile_after", int, lambda: 512,
         "allocator calls before its core switches to compiled code", _not_negative, "at least 0"),
    Knob("host_capacity_share", float, lambda: 0.9,
         "share of RAM (or of the cgroup's limit) that CPU tensors may take", _share,
         "above 0, at most 1"),
)  # fmt: skip


class Config:
    """The values of all knobs, as attributes.

    Examples
    --------
    >>> with config.patch(num_threads=1):
    ...     pass
    """

    num_threads: int
    backward_workers: int
    parallel_grain: int
    cache_dir: str
    pure: bool
    alloc_compile_after: int
    host_capacity_share: float

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        environment = os.environ if environ is None else environ
        sources: dict[str, str] = {}
        object.__setattr__(self, "_sources", sources)
        for knob in KNOBS:
            text = environment.get(knob.env)
            value = knob.default() if text is None else knob.parse(text)
            self.__dict__[knob.name] = value
            sources[knob.name] = "default" if text is None else "environment"

    def __setattr__(self, name: str, value: Any) -> None:
        knob = _BY_NAME.get(name)
        if knob is None:
            raise AttributeError(f"config has no knob {name!r}; known: {', '.join(_BY_NAME)}")
        self.__dict__[name] = knob.check(value, f"config.{name}")
        self._sources[name] = "set"

    _sources: dict[str, str]

    @contextmanager
    def patch(self, **values: Any) -> Iterator[Config]:
        """Set knobs for the length of a ``with`` block."""
        before = {name: getattr(self, name) for name in values}
        sources = dict(self._sources)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            self.__dict__.update(before)
            self._sources.update(sources)

    def describe(self) -> list[dict[str, Any]]:
        """Return one row a knob: name, value, env, source, default, meaning."""
        return [
            {
                "name": knob.name,
                "value": getattr(self, knob.name),
                "env": knob.env,
                "source": self._sources[knob.name],
                "default": knob.default(),
                "meaning": knob.meaning,
            }
            for knob in KNOBS
        ]


_BY_NAME: dict[str, Knob] = {knob.name: knob for knob in KNOBS}

config = Config()
