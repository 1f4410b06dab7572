from __future__ import annotations

import gzip
import json
import pickle
import random
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.alloc.settings import AllocatorSettings, AllocatorSettingsError
from refruntime.alloc.settings_text import (
    INTERVALS,
    KEYS,
    LARGEST,
    MENDS,
    MIB,
    MOST_DIVISIONS,
    UNLIMITED,
    Reserve,
)
from refruntime.errors import ArgumentTypeError
from tests.alloc.oracle import settings_texts

DATA = Path(__file__).parent / "data" / "settings"
DEFAULT = AllocatorSettings()
EACH_TIME = (
    "max_split_size",
    "max_non_split_rounding",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
)
BOOLEANS = [each.name for each in fields(DEFAULT) if type(getattr(DEFAULT, each.name)) is bool]
CONVERSIONS: dict[str, Any] = dict.fromkeys(BOOLEANS, bool) | {"roundup_power2_divisions": tuple}


def _apply(settings: AllocatorSettings, text: str) -> tuple[AllocatorSettings, str | None]:
    """The settings that the allocator goes on with, and what PyTorch would have raised."""
    try:
        return settings.updated(text), None
    except AllocatorSettingsError as error:
        return error.kept, error.torch_class.__name__


def _recorded() -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    with gzip.open(DATA / "parsed.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            text, error, changes = json.loads(line)
            yield text, error, {k: CONVERSIONS.get(k, lambda x: x)(v) for k, v in changes.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_recorded_text_is_read_as_pytorch_read_it() -> None:
    ours, real, accepted = DEFAULT, DEFAULT, 0
    for text, error, changes in _recorded():
        ours, raised = _apply(ours, text)
        real = replace(real, last_text=text, **changes)
        assert raised == error, text
        assert ours == real, text
        accepted += error is None
    assert 1000 < accepted < 3000


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.text(alphabet=st.characters(codec="utf-8")) | st.integers().map(
    lambda seed: settings_texts.text(random.Random(seed))
))  # fmt: skip
def test_any_text_gives_settings_or_the_one_error_and_reads_the_same_twice(text: str) -> None:
    once, first = _apply(DEFAULT, text)
    assert once.last_text == text
    assert _apply(once, text) == (once, first)
    hash(once)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.permutations([
    "max_split_size_mb:64", "large_segment_size_mb:32", "max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.5", "expandable_segments:True", "mend_gc_without_fraction:True",
    "roundup_power2_divisions:[1:2,>:4]", "per_process_memory_fraction:0.5",
    "pinned_num_register_threads:8",
]))  # fmt: skip
def test_the_order_of_different_keys_does_not_matter(entries: list[str]) -> None:
    straight = DEFAULT.updated(",".join(sorted(entries)))
    assert replace(DEFAULT.updated(",".join(entries)), last_text="") == replace(
        straight, last_text=""
    )


def test_each_key_sets_its_field() -> None:
    text = (
        "backend:native,large_segment_size_mb:32,max_split_size_mb:64,max_non_split_rounding_mb:40,"
        "garbage_collection_threshold:0.5,roundup_power2_divisions:[4:2,8:4,>:8],"
        "expandable_segments:True,release_lock_on_cudamalloc:True,"
        "graph_capture_record_stream_reuse:True,per_process_memory_fraction:0.25,"
        "throw_on_cudamalloc_oom:True,pinned_use_cuda_host_register:True,"
        "pinned_num_register_threads:8,pinned_use_background_threads:True,"
        "pinned_reserve_segment_size_mb:3,pinned_free_catch_all:True,"
        "pinned_max_round_threshold_mb:4,pinned_max_cached_size_mb:5"
    )
    assert DEFAULT.updated(text) == AllocatorSettings(
        large_segment_size=32 * MIB, max_split_size=64 * MIB, max_non_split_rounding=40 * MIB,
        garbage_collection_threshold=0.5,
        roundup_power2_divisions=(2, 2, 2, 4) + (8,) * (INTERVALS - 4),
        expandable_segments=True, release_lock_on_cudamalloc=True,
        graph_capture_record_stream_reuse=True, per_process_memory_fraction=0.25,
        throw_on_cudamalloc_oom=True, pinned_use_cuda_host_register=True,
        pinned_num_register_threads=8, pinned_use_background_threads=True,
        pinned_reserve_segment_size=3 * MIB, pinned_free_catch_all=True,
        pinned_max_round_threshold=4 * MIB, pinned_max_cached_size=5 * MIB, last_text=text,
    )  # fmt: skip


def test_four_fields_start_afresh_with_every_text_and_the_others_stay() -> None:
    full = DEFAULT.updated(
        "large_segment_size_mb:32,max_split_size_mb:64,max_non_split_rounding_mb:40,"
        "garbage_collection_threshold:0.5,roundup_power2_divisions:4,expandable_segments:True"
    )
    empty = full.updated("")
    for name in EACH_TIME[:1] + EACH_TIME[2:]:
        assert getattr(empty, name) == getattr(DEFAULT, name) != getattr(full, name)
    assert empty.max_non_split_rounding == empty.large_segment_size == 32 * MIB
    assert empty.expandable_segments


def test_the_large_segment_size_counts_before_the_keys_that_precede_it() -> None:
    with pytest.raises(AllocatorSettingsError, match="at least 64"):
        DEFAULT.updated("max_split_size_mb:32,large_segment_size_mb:64")
    settings = DEFAULT.updated("max_split_size_mb:12,large_segment_size_mb:11")
    assert settings.max_split_size == 12 * MIB


def test_the_last_of_two_equal_keys_wins() -> None:
    text = "max_split_size_mb:30,expandable_segments:True"
    settings = DEFAULT.updated(f"{text},max_split_size_mb:40,expandable_segments:False")
    assert (settings.max_split_size, settings.expandable_segments) == (40 * MIB, False)


@pytest.mark.parametrize(
    ("text", "size"),
    [("-1", LARGEST), ("25.5", 25 * MIB), ("+30", 30 * MIB), ("0030", 30 * MIB), ("30MB", 30 * MIB),
     (" 3 0 ,", 30 * MIB), (str(2**64 - 1), LARGEST), (str(-(2**64) + 30), 30 * MIB)],
)  # fmt: skip
def test_a_size_is_the_integer_that_its_token_starts_with(text: str, size: int) -> None:
    assert DEFAULT.updated(f"max_split_size_mb:{text}").max_split_size == size


@pytest.mark.parametrize(
    ("text", "key", "torch_class"),
    [
        ("max_split_size_mb:19", "max_split_size_mb", ValueError),
        ("max_split_size_mb:1.5", "max_split_size_mb", ValueError),
        ("max_split_size_mb:x", "max_split_size_mb", ValueError),
        ("max_split_size_mb:18446744073709551616", "max_split_size_mb", IndexError),
        ("max_split_size_mb", "max_split_size_mb", RuntimeError),
        ("large_segment_size_mb:10", "large_segment_size_mb", ValueError),
        ("max_non_split_rounding_mb:19", "max_non_split_rounding_mb", ValueError),
        ("garbage_collection_threshold:1.0", "garbage_collection_threshold", ValueError),
        ("garbage_collection_threshold:0", "garbage_collection_threshold", ValueError),
        ("garbage_collection_threshold:1e-400", "garbage_collection_threshold", IndexError),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold", ValueError),
        ("per_process_memory_fraction:1.01", "per_process_memory_fraction", ValueError),
        ("expandable_segments:true", "expandable_segments", ValueError),
        ("roundup_power2_divisions:0", "roundup_power2_divisions", ValueError),
        ("roundup_power2_divisions:3", "roundup_power2_divisions", ValueError),
        ("roundup_power2_divisions:[3:2]", "roundup_power2_divisions", ValueError),
        ("roundup_power2_divisions:[4:3]", "roundup_power2_divisions", ValueError),
        ("roundup_power2_divisions:[4:2", "roundup_power2_divisions", RuntimeError),
        ("pinned_num_register_threads:256", "pinned_num_register_threads", ValueError),
        ("pinned_num_register_threads:3", "pinned_num_register_threads", ValueError),
        ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb", ValueError),
        ("backend:x", "backend", ValueError),
        ("backend:cudaMallocAsync", "backend", RuntimeError),
        ("expandable_segments_handle_type:posix_fd", "expandable_segments_handle_type", ValueError),
        (",", ",", ValueError),
    ],
)
def test_a_rejection_names_the_key_and_is_what_pytorch_raises(
    text: str, key: str, torch_class: type[Exception]
) -> None:
    with pytest.raises(torch_class) as caught:
        DEFAULT.updated(text)
    error = caught.value
    assert isinstance(error, AllocatorSettingsError)
    assert (error.key, error.torch_class) == (key, torch_class)
    assert all(part in str(error) for part in (key, error.rule, error.value))


def test_a_rejected_text_leaves_behind_what_stood_before_the_fault() -> None:
    text = (
        "max_split_size_mb:40,expandable_segments:True,max_non_split_rounding_mb:1,backend:native"
    )
    start = DEFAULT.updated("garbage_collection_threshold:0.5")
    with pytest.raises(AllocatorSettingsError) as caught:
        start.updated(text)
    expected = replace(DEFAULT, max_split_size=40 * MIB, expandable_segments=True, last_text=text)
    assert caught.value.kept == expected


def test_keys_of_cuda_count_only_once_the_shared_keys_are_accepted() -> None:
    _, error = kept = _apply(DEFAULT, "release_lock_on_cudamalloc:True,max_split_size_mb:1")
    assert error == "ValueError" and not kept[0].release_lock_on_cudamalloc
    kept = _apply(DEFAULT, "throw_on_cudamalloc_oom:2,max_split_size_mb:100")
    assert kept[0].max_split_size == 100 * MIB


def test_a_rejection_changes_nothing_where_that_is_mended() -> None:
    start = DEFAULT.updated("mend_settings_atomic:True,max_split_size_mb:64")
    kept, error = _apply(start, "max_split_size_mb:40,unknown:1")
    assert error == "ValueError"
    assert kept == replace(start, last_text="max_split_size_mb:40,unknown:1")


def test_an_error_survives_pickling() -> None:
    with pytest.raises(AllocatorSettingsError) as caught:
        DEFAULT.updated("max_split_size_mb:40,expandable_segments:yes")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kept) == (str(caught.value), caught.value.kept)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="int"):
        DEFAULT.updated(3)  # type: ignore[arg-type]


def test_every_flaw_has_a_key_of_its_own_and_one_key_mends_all() -> None:
    assert set(MENDS) == {name for name in BOOLEANS if name.startswith("mend_")}
    for name in MENDS:
        settings = DEFAULT.updated(f"{name}:True")
        assert [each for each in MENDS if getattr(settings, each)] == [name]
        assert not settings.mended
    assert DEFAULT.updated("mended:True").mended
    assert not any(getattr(DEFAULT.updated("mended:True,mended:False"), name) for name in MENDS)


def test_every_field_is_set_by_a_key_or_documented_as_none() -> None:
    named = {key.removesuffix("_mb") for key in KEYS} | {"pinned_reserve_segment_size"}
    assert {each.name for each in fields(DEFAULT)} - named == {"last_text", "uncached"}


def test_divisions_follow_the_interval_of_the_size() -> None:
    settings = DEFAULT.updated("roundup_power2_divisions:[1:1,2:2,4:4,32768:8]")
    sizes = [1, MIB - 1, MIB, 2 * MIB - 1, 2 * MIB, 4 * MIB, 8 * MIB, 32768 * MIB, 1 << 45]
    assert [settings.divisions_of(size) for size in sizes] == [1, 1, 1, 1, 2, 4, 0, 8, 8]


@given(st.integers(0, 18), st.sampled_from([0, 1, 2, 16]), st.integers(1, 1 << 40))
def test_the_first_interval_of_a_list_fills_those_below(
    start: int, divisions: int, size: int
) -> None:
    settings = DEFAULT.updated(f"roundup_power2_divisions:[{1 << start}:{divisions}]")
    below = size.bit_length() - 21 <= min(start, INTERVALS - 1) or start >= INTERVALS - 1
    assert settings.divisions_of(size) == (divisions if below else 0)


def test_huge_divisions_fit_a_signed_word() -> None:
    settings = DEFAULT.updated(f"roundup_power2_divisions:{1 << 63}")
    assert settings.divisions_of(1) == MOST_DIVISIONS


# --- reserves of expandable segments ----------------------------------------------------------
GIB = 1 << 30


def test_a_reserve_is_a_share_or_a_size_and_at_most_nine_eighths() -> None:
    assert DEFAULT.reserve_bytes(80 * GIB) == 90 * GIB
    for text, reserve in (("0.5", 40), ("40G", 40), ("2", 90), ("1e20G", 90), ("8g", 8)):
        assert (
            DEFAULT.updated(f"expandable_segments_reserve:{text}").reserve_bytes(80 * GIB)
            == reserve * GIB
        )


def test_a_class_of_streams_may_have_a_reserve_of_its_own() -> None:
    settings = DEFAULT.updated(
        "expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[serving:0.25,ads:8G]"
    )
    reserves = [
        settings.reserve_bytes(80 * GIB, name) // GIB for name in ("serving", "ads", "x", "")
    ]
    assert reserves == [20, 8, 40, 40]
    later = settings.updated("expandable_segments_reserve_by_class:[x:1G]")
    assert later.expandable_segments_reserve_by_class == (("x", Reserve(1.0, gib=True)),)
    assert later.expandable_segments_reserve == Reserve(0.5, gib=False)


@pytest.mark.parametrize("text", ["abc", "G", "-1", "0", "inf", "nan", "12X", "1_0", "0x1"])
def test_a_reserve_that_makes_no_sense_is_ignored_with_a_warning(text: str) -> None:
    start = DEFAULT.updated("expandable_segments_reserve:0.5")
    with pytest.warns(UserWarning, match="ignored"):
        settings = start.updated(f"expandable_segments_reserve:{text}")
    assert settings.expandable_segments_reserve == Reserve(0.5, gib=False)
    with pytest.warns(UserWarning, match="ignored"):
        settings = start.updated(f"expandable_segments_reserve_by_class:[a:{text},b:1G]")
    assert dict(settings.expandable_segments_reserve_by_class) == {"b": Reserve(1.0, gib=True)}


# --- the environment --------------------------------------------------------------------------
CUDA, HIP, ANY = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def test_the_variable_of_cuda_wins_even_when_empty() -> None:
    environ = {CUDA: "max_split_size_mb:30", ANY: "expandable_segments:True"}
    settings = AllocatorSettings.from_environment(environ)
    assert (settings.max_split_size, settings.expandable_segments) == (30 * MIB, False)
    assert AllocatorSettings.from_environment({**environ, CUDA: ""}) == DEFAULT


def test_the_variable_of_hip_counts_for_shared_keys_only() -> None:
    settings = AllocatorSettings.from_environment({
        HIP: "max_split_size_mb:50,per_process_memory_fraction:0.5",
        ANY: "expandable_segments:True,throw_on_cudamalloc_oom:True",
    })  # fmt: skip
    assert (settings.max_split_size, settings.per_process_memory_fraction) == (50 * MIB, 1.0)
    assert (settings.expandable_segments, settings.throw_on_cudamalloc_oom) == (False, True)
    assert settings.last_text == "max_split_size_mb:50,per_process_memory_fraction:0.5"


def test_the_environment_chooses_the_backend_and_later_texts_confirm_it() -> None:
    settings = AllocatorSettings.from_environment({ANY: "backend:cudaMallocAsync"})
    assert (
        settings.backend == settings.updated("backend:cudaMallocAsync").backend == "cudaMallocAsync"
    )
    with pytest.raises(AllocatorSettingsError, match="as when the process started"):
        settings.updated("backend:native")
    assert AllocatorSettings.from_environment({HIP: "backend:cudaMallocAsync"}).backend == "native"


def test_a_bad_text_in_the_environment_is_an_error() -> None:
    for text in ("backend:foo", "max_split_size_mb:3", "release_lock_on_cudamalloc:3"):
        with pytest.raises(AllocatorSettingsError):
            AllocatorSettings.from_environment({ANY: text})


def test_no_caching_is_one_or_nothing() -> None:
    for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        assert AllocatorSettings.from_environment({name: "1"}).uncached
        assert not AllocatorSettings.from_environment({name: "0"}).uncached
        with pytest.warns(UserWarning, match="0 or 1"):
            assert not AllocatorSettings.from_environment({name: "True"}).uncached


# --- warnings ---------------------------------------------------------------------------------
def test_keys_without_effect_are_warned_about() -> None:
    other = AllocatorSettings(backend="cudaMallocAsync")
    with pytest.warns(UserWarning, match="ignores"):
        other.updated("backend:cudaMallocAsync,release_lock_on_cudamalloc:True")
    with pytest.warns(UserWarning, match="no effect"):
        DEFAULT.updated("pinned_max_cached_size_mb:10,pinned_max_round_threshold_mb:11")
    with warnings.catch_warnings(action="error"):
        other.updated("backend:cudaMallocAsync,max_split_size_mb:30")
        DEFAULT.updated("pinned_max_cached_size_mb:10")


# --- snapshots --------------------------------------------------------------------------------
def test_snapshots_show_what_pytorch_shows() -> None:
    recorded = json.loads((DATA / "snapshots.json").read_text(encoding="utf-8"))
    settings = DEFAULT
    for text, shown in recorded:
        settings, _ = _apply(settings, text)
        assert settings.as_snapshot() == shown
        assert [type(value) for value in settings.as_snapshot().values()] == [
            type(value) for value in shown.values()
        ]
        assert list(settings.as_snapshot()) == list(shown)


def test_unlimited_sizes_show_as_minus_one() -> None:
    shown = DEFAULT.as_snapshot()
    assert DEFAULT.max_split_size == UNLIMITED
    assert shown["max_split_size"] == shown["max_round_threshold"] == shown["max_cached_size"] == -1
