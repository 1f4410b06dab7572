"""Knobs: defaults, environment, checks, and values that last one block."""

import subprocess
import sys
from pathlib import Path

import pytest

from refruntime.config import KNOBS, Config, config


def test_every_knob_is_an_attribute_and_a_described_row():
    rows = {row["name"]: row for row in config.describe()}
    assert set(rows) == {knob.name for knob in KNOBS}
    for knob in KNOBS:
        assert rows[knob.name]["value"] == getattr(config, knob.name)
        assert rows[knob.name]["env"] == "REFRUNTIME_" + knob.name.upper()
        assert rows[knob.name]["meaning"]


def test_default_values_pass_their_own_checks():
    fresh = Config({})
    for knob in KNOBS:
        assert knob.check(knob.default(), "test") == getattr(fresh, knob.name)


def test_environment_sets_a_knob_and_is_reported_as_source():
    made = Config({"REFRUNTIME_NUM_THREADS": "3", "REFRUNTIME_PURE": "yes"})
    assert (made.num_threads, made.pure) == (3, True)
    sources = {row["name"]: row["source"] for row in made.describe()}
    assert sources["num_threads"] == "environment"
    assert sources["cache_dir"] == "default"


@pytest.mark.parametrize(
    ("name", "text"),
    [("NUM_THREADS", "many"), ("NUM_THREADS", "0"), ("PURE", "2"), ("HOST_CAPACITY_SHARE", "1.5")],
)
def test_environment_value_that_makes_no_sense_names_the_variable(name, text):
    with pytest.raises(ValueError, match=f"REFRUNTIME_{name}"):
        Config({f"REFRUNTIME_{name}": text})


def test_patch_restores_value_and_source_also_after_an_error():
    made = Config({})
    before = made.num_threads

    def fail_inside():
        with made.patch(num_threads=before + 5, pure=True) as inside:
            raise KeyError(inside.num_threads)

    with pytest.raises(KeyError, match=str(before + 5)):
        fail_inside()
    assert (made.num_threads, made.pure) == (before, False)
    assert {row["source"] for row in made.describe()} == {"default"}


def test_patch_with_a_bad_value_restores_what_it_had_set():
    made = Config({})
    with pytest.raises(TypeError, match="num_threads"), made.patch(pure=True, num_threads="two"):
        pass
    assert made.pure is False


@pytest.mark.parametrize(
    ("value", "error"), [("4", TypeError), (True, TypeError), (-1, ValueError)]
)
def test_setting_checks_type_and_range(value, error):
    made = Config({})
    with pytest.raises(error, match="num_threads"):
        made.num_threads = value


def test_unknown_knob_lists_the_known_ones():
    with pytest.raises(AttributeError, match="num_threads"):
        config.no_such_knob = 1


def test_ground_floor_imports_neither_numba_nor_ml_dtypes_nor_optional_packages():
    code = (
        "import sys; import refruntime.config, refruntime._dtypes, refruntime._device, "
        "refruntime._optional as o, refruntime._layout; o.cupy, o.tqdm; "
        "print([m for m in ('numba', 'ml_dtypes', 'cupy', 'tqdm') if m in sys.modules])"
    )
    # The package's own __init__ may import more, so this looks at the ground floor by itself.
    stub = (
        "import sys, types; p = types.ModuleType('refruntime'); p.__path__ = [sys.argv[1]]; "
        "sys.modules['refruntime'] = p; "
    )
    package = Path(sys.modules["refruntime.config"].__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", stub + code, package], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
