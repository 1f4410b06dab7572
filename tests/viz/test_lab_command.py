"""``refruntime lab report``."""

from __future__ import annotations

from pathlib import Path

import pytest

from refruntime.cli import main

DATA = Path(__file__).parent / "data" / "gpt13_tight_end.pickle.gz"


def test_a_recording_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    conf = "expandable_segments:True"
    assert main(["lab", "report", str(DATA), str(out), "--conf", conf]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    page = out.read_text()
    assert "<title>" in page and conf in page and "as recorded" in page
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page


def test_the_page_lies_in_the_current_folder_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "report", str(DATA)]) == 0
    assert (tmp_path / f"{DATA.name}.html").exists()


def test_what_is_no_recording_gets_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("not a recording")
    assert main(["lab", "report", str(path)]) == 2
    assert main(["lab", "report", str(DATA), "--device", "7"]) == 2
    complaints = capsys.readouterr().err.strip().splitlines()
    assert len(complaints) == 2 and all(line.startswith("refruntime lab: ") for line in complaints)
