"""Pictures of graphs: what they show, how they count bytes, and that both texts are well formed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

import refruntime as torch
from refruntime import nn
from refruntime.autograd import drawing

draw = torch.autograd.draw


@pytest.fixture
def picture():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    out = net(torch.randn(3, 4)).sum()
    return draw(out, params=dict(net.named_parameters()))


def test_every_node_and_edge_is_drawn(picture):
    dot = picture.dot
    assert dot.count("AddmmBackward0") == 2
    assert dot.count("TanhBackward0") == 1
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        assert f'"{name}\\n' in dot
    assert len(re.findall(r"n\d+ -> n\d+;", dot)) == len(picture.edges) == 7


def test_bytes_are_those_that_nodes_keep_each_once(picture):
    # x (3x4) and tanh's result (3x8), which the second product keeps too; leaves are not counted.
    assert picture.saved_bytes >= (12 + 24) * 4
    y = torch.randn(1000, requires_grad=True)
    z = y * 1
    shared = z.sin() + z.cos() + z.exp()
    one = draw(shared)
    # z twice (sin, cos) and exp's result.
    assert one.saved_bytes == 2 * 4000
    assert draw(y + 1).saved_bytes == 0
    assert "saves 3.9 KiB" in one.dot


def test_custom_functions_and_hooks_are_counted():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = torch.ones(100, requires_grad=True) * 2
    assert draw(Square.apply(x)).saved_bytes == 400
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        y = x.sin()
    assert draw(y).saved_bytes == 200


def test_both_layouts_are_well_formed(picture, monkeypatch, tmp_path):
    monkeypatch.setattr(drawing.shutil, "which", lambda name: None)
    root = ET.fromstring(picture.svg)
    boxes = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(boxes) == len(picture.boxes)
    tops = {float(box.get("y")) for box in boxes}
    assert len(tops) == len({box.rank for box in picture.boxes})
    for name in ("graph.svg", "graph.dot"):
        picture.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8")
    assert picture._repr_svg_() == picture.svg
    # A program that fails falls back to the plain layout.
    monkeypatch.setattr(drawing.shutil, "which", lambda name: "false")
    assert picture.svg.startswith("<svg")


def test_a_deep_graph_is_drawn_without_recursion():
    y = torch.ones(1, requires_grad=True)
    for _ in range(3000):
        y = y * 1
    found = draw(y)
    assert len(found.boxes) == 3001
    assert max(box.rank for box in found.boxes) == 3000


def test_what_has_no_graph_is_refused():
    with pytest.raises(RuntimeError, match="no output requires grad"):
        draw(torch.ones(2))
    with pytest.raises(TypeError, match="tensors"):
        draw([3])
