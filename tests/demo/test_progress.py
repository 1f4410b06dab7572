"""The progress bar."""

from __future__ import annotations

import io

from refruntime.demo import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_plain_bar_fills_one_line_and_clears_it():
    file = Terminal()
    bar = progress.PlainBar(4, "epoch 1", file)
    bar.update()
    assert file.getvalue() == "\repoch 1 [######..................] 1/4"
    bar.update(3)
    assert file.getvalue().endswith("[########################] 4/4")
    bar.close()
    assert file.getvalue().endswith("\r")
    assert "\n" not in file.getvalue()


def test_nothing_is_drawn_into_a_file():
    file = io.StringIO()
    bar = progress.bar(3, "epoch 1", file)
    bar.update()
    bar.close()
    assert file.getvalue() == ""


def test_tqdm_is_used_when_it_is_there_and_the_plain_bar_else(monkeypatch):
    from refruntime import _optional

    monkeypatch.setattr(progress._optional, "tqdm", None, raising=False)
    assert isinstance(progress.bar(3, "x", Terminal()), progress.PlainBar)
    assert _optional is progress._optional
