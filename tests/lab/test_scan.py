"""The compiled readers give what Python's own give, piece by piece, and refuse the rest."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refruntime.errors import ArgumentValueError
from refruntime.lab.readers import json_scan, pickle_scan, source
from refruntime.lab.readers.scan import scan
from refruntime.lab.readers.source import Source

names = st.sampled_from(["action", "size", "name", "filename", "frames", "x"]) | st.text()
frames = st.fixed_dictionaries(
    {"name": st.text(), "filename": st.text(), "line": st.integers(0, 9)}
)
leaves = (
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text() | frames
    | st.lists(frames)
)  # fmt: skip


def nested(inner):
    return st.recursive(
        inner,
        lambda part: st.lists(part, max_size=5) | st.dictionaries(names, part, max_size=5),
        max_leaves=30,
    )


def load(path, kernel):
    with Source(path) as opened:
        arena = scan(opened, kernel)
    return arena.value(arena.root())


def plain(value):
    """Turn tuples into lists: pairs of integers are read as tuples, whatever they were."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@given(value=nested(leaves | st.floats(allow_nan=False)), protocol=st.integers(2, 5))
def test_a_pickle_of_plain_data_reads_as_it_was_written(value, protocol, tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "x"
    path.write_bytes(pickle.dumps(value, protocol))
    assert plain(load(path, pickle_scan.scan_pickle)) == plain(value)


# Numbers as settings have them; longer ones are read to within two units of the last place.
@given(value=nested(leaves | st.integers(-(10**9), 10**9).map(lambda n: n / 1000)))
def test_json_reads_as_it_was_written(value, tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "x"
    path.write_text(json.dumps(value))
    assert plain(load(path, json_scan.scan_json)) == plain(value)


@pytest.mark.parametrize(
    "text",
    ['"\\u00e4\\n\\ud83d\\ude00\\\\"', "1.5e3", "-0.25", "-9223372036854775798", " [ 1 , 2 ]\n"],
)
def test_json_tokens(text, tmp_path):
    path = tmp_path / "x"
    path.write_text(text)
    assert plain(load(path, json_scan.scan_json)) == json.loads(text)


def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch):
    data = pickle.dumps(
        {
            "device_traces": [
                [{"action": "alloc", "size": i, "s": "x" * (i % 50)} for i in range(300)]
            ]
        }
    )
    path = tmp_path / "x"
    path.write_bytes(data)
    expected = load(path, pickle_scan.scan_pickle)
    for piece in (1, 7, 64, 1000):
        monkeypatch.setattr(source, "PIECE", piece)
        assert load(path, pickle_scan.scan_pickle) == expected == pickle.loads(data)


def test_shared_and_growing_containers_are_followed(tmp_path):
    shared = [1]
    path = tmp_path / "x"
    value = {"a": shared, "b": shared, "c": list(range(2500)), "d": (1, 2, 3), "e": ()}
    path.write_bytes(pickle.dumps(value, 2))
    assert plain(load(path, pickle_scan.scan_pickle)) == plain(value)


def test_a_frame_keeps_its_name_file_and_line(tmp_path):
    path = tmp_path / "x"
    frame = {"name": "f", "filename": "a.py", "line": 3}
    path.write_bytes(pickle.dumps([[{**frame, "fx_node_op": "call"}, frame] * 1200], 4))
    assert load(path, pickle_scan.scan_pickle) == [[frame] * 2400]


def test_every_cut_of_a_file_is_one_clear_error(tmp_path):
    data = pickle.dumps({"segments": [{"address": 1 << 40, "name": "x" * 300, "f": 1.5}]}, 4)
    path = tmp_path / "x"
    for end in range(2, len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(ArgumentValueError, match=str(path)):
            load(path, pickle_scan.scan_pickle)


def test_every_cut_of_json_is_one_clear_error(tmp_path):
    text = json.dumps({"segments": [{"address": 1 << 40, "name": 'x"\n', "f": 1.5, "g": True}]})
    path = tmp_path / "x"
    for end in range(1, len(text)):
        path.write_text(text[:end])
        with pytest.raises(ArgumentValueError, match=str(path)):
            load(path, json_scan.scan_json)


class Bomb:
    """Makes a folder when it is unpickled by a reader that believes files."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_in_a_pickle_is_refused_and_not_run(protocol, tmp_path):
    path, proof = tmp_path / "x", tmp_path / "proof"
    path.write_bytes(pickle.dumps({"segments": [Bomb(str(proof))]}, protocol))
    with pytest.raises(ArgumentValueError, match="class or function"):
        load(path, pickle_scan.scan_pickle)
    assert not proof.exists()


@given(data=st.binary(max_size=200), protocol=st.sampled_from([b"\x80\x02", b"\x80\x04", b""]))
def test_no_bytes_do_more_than_fail(data, protocol, tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "x"
    path.write_bytes(protocol + data)
    for kernel in (pickle_scan.scan_pickle, json_scan.scan_json):
        with contextlib.suppress(ArgumentValueError):
            load(path, kernel)


def test_a_small_file_cannot_claim_much_memory(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x80\x04" + b"]r\xff\xff\xff\x7f.")
    with pytest.raises(ArgumentValueError, match="damaged"):
        load(path, pickle_scan.scan_pickle)
    path.write_bytes(b"\x80\x04" + b"(" * (3 << 20) + b".")
    with pytest.raises(ArgumentValueError, match="nested"):
        load(path, pickle_scan.scan_pickle)


def test_protocols_zero_and_one_are_named(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x80\x01}.")
    with pytest.raises(ArgumentValueError, match="protocol 0 or 1"):
        load(path, pickle_scan.scan_pickle)


def test_the_opcodes_that_writers_use_are_all_read():
    used = {
        op.code
        for protocol in (2, 3, 4, 5)
        for op, _, _ in pickletools.genops(pickle.dumps([{"a": (1, 2)}, 1.5, None, True], protocol))
    }
    assert used <= set("\x80\x95]}q\x94(eusaX\x8cK\x86GN\x88.h)t\x85\x87")
