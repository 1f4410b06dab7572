"""Optional packages: imported on use, and explained when missing."""

import copy

import pytest

from refruntime import _optional
from refruntime._optional import Missing, Package
from refruntime.errors import OptionalDependencyError


def test_package_is_imported_when_an_attribute_is_used():
    package = Package("json", "json")
    assert "not imported yet" in repr(package)
    assert package.dumps([1]) == "[1]"
    assert "not imported yet" not in repr(package)


def test_missing_package_says_why_and_what_to_install():
    package = Package("no_such_package_at_all", "'refruntime[viz]'")
    with pytest.raises(OptionalDependencyError, match="No module named") as caught:
        package.anything()
    assert "pip install 'refruntime[viz]'" in str(caught.value)
    assert not package
    assert not package.installed()


def test_package_that_breaks_while_importing_keeps_its_reason(tmp_path, monkeypatch):
    (tmp_path / "broken_package_here.py").write_text("raise OSError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = Package("broken_package_here", "nothing")
    for _ in range(2):
        with pytest.raises(OptionalDependencyError, match="OSError: no driver"):
            _ = package.attribute


def test_protocol_lookups_on_a_missing_package_fail_softly():
    missing = Missing("why", "what", "name")
    assert not hasattr(missing, "__array__")
    assert not missing
    assert isinstance(copy.copy(missing), Missing)


def test_unknown_name_is_an_attribute_error_with_the_known_ones():
    with pytest.raises(AttributeError, match="cupy"):
        _ = _optional.not_a_package


def test_describe_lists_every_package_without_importing():
    rows = _optional.describe()
    assert {row["name"] for row in rows} == set(_optional.PACKAGES)
    assert all(isinstance(row["installed"], bool) for row in rows)
