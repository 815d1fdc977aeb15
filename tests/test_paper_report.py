"""Does the page of a paper hold everything, the same whenever it is written, and nothing from elsewhere?"""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

import inferq as iq
import inferq_papers as papers
from inferq.cli import app
from inferq_papers import pages
from inferq_papers.report import Chart, Report, Row, Section, Slip, Table

from .markup import Page

LONG = "The output lengths are **not given**; here they are `Uniform(1, 512)`, which is an assumption."


def chart() -> Any:
    import altair as alt

    data = pl.DataFrame({"time_s": [0, 1, 2, 3], "requests": [0, 3, 1, 2]})
    line = alt.Chart(data).mark_line(clip=True).encode(x="time_s:Q", y="requests:Q")
    return (line + line.mark_point()).properties(width=200, height=100)


ROWS = (
    Row(
        where="Table 1, 1:1",
        what="largest rate",
        unit="requests/s",
        paper=3.263,
        theory=3.26328,
        simulation=3.2581,
        half_width=0.0123,
    ),
    Row(where="Table 1, 8:1", what="largest rate", unit="requests/s", paper=3.385, theory=3.3, note=LONG),
    Row(where="Fig. 3", what="queue | at the end", unit="", simulation=12_000.0, note=LONG),
    Row(where="Fig. 4", what="<load>", unit="", theory=0.0, simulation=0.0, note="Their GPU is not ours."),
)
MADE = Report(
    name="nie2026",
    title="When is a cache large enough?",
    citation="Nie, Si and Zhou, *A framework* (2026)",
    setting="One GPU of M = 131,072 tokens.",
    quick=True,
    sections=(
        Section(
            title="Capacity & <more>",
            text="The largest rate is **μ**.",
            rows=ROWS,
            pictures=(
                Chart(title="The queue", caption="Bounded at λ = 1.", chart=chart),
                Chart(title="Again", caption="The *same*.", chart=chart),
            ),
            remarks=("**The theorem holds.** Within 0.2 %.", "Two\n\nparagraphs."),
        ),
        Section(
            title="Lengths",
            text="",
            tables=(
                Table(
                    title="Traces",
                    frame=pl.DataFrame({"trace": ["a", "b|c"], "n": [12_345, None], "mean": [1.23456, None]}),
                    decimals={"mean": 3},
                    note="Of the *whole* trace.",
                ),
            ),
        ),
    ),
    slips=(Slip(where="(7)", printed="v + 1", right="`v`, and M* and n*_j stay as they are"),),
)


def test_rows_are_one_frame_with_the_gap():
    frame = MADE.rows()
    names = "name section where what unit paper theory simulation half_width gap note"
    assert frame.columns == names.split()
    assert frame.height == 4
    assert frame["gap"].to_list() == [3.2581 / 3.26328 - 1, None, None, None]  # nothing is a share of 0
    assert frame["paper"].to_list() == [3.263, 3.385, None, None]
    empty = Report(name="x", title="", citation="", setting="", sections=(), slips=(), quick=False)
    assert empty.rows().schema == frame.schema


def test_a_page_in_html_stands_alone():
    page = pages.html(MADE)
    held = Page(page)
    assert len(set(held.names)) == len(held.names)
    for link in held.links:
        assert link.startswith("#") and link[1:] in held.names, link
    for name in re.findall(r"url\(#([^)]*)\)", page):
        assert name in held.names
    assert not {"script", "link", "img", "iframe", "object"} & set(held.tags)
    without_names_of_spaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|@import|url\((?!#)", without_names_of_spaces)
    assert held.tags.count("svg") == 2
    assert "Capacity &amp; &lt;more&gt;" in page and "&lt;load&gt;" in page
    for text in ("3.263", "3.2633", "3.258 ± 0.012", "−0.16 %", "12,000", "12,345", "1.235", "whole"):
        assert text in page, text
    assert (
        page.count("<b>not given</b>") + page.count("<strong>not given</strong>") == 1
    )  # a note stands once
    assert "M* and n*_j stay" in page and "Where the paper slips" in page
    assert "--quick" in page


def test_pages_are_the_same_whenever_they_are_written(tmp_path: Path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        pages.write(MADE, folder / "page.html")
        pages.write(MADE, folder / "page.md")
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == ["page-1.svg", "page-2.svg", "page.html", "page.md"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_a_page_in_markdown_has_its_pictures_beside_it(tmp_path: Path):
    text = pages.markdown(MADE, tmp_path)
    for name in re.findall(r"\]\((.*?\.svg)\)", text):
        assert (tmp_path / name).read_text().startswith("<svg")
    assert text.startswith("# When is a cache large enough?\n\nNie, Si")
    lines = text.splitlines()
    assert "| where | what | paper | theory | simulation | gap | note |" in lines
    assert (
        "| Table 1, 1:1 | largest rate, requests/s | 3.263 | 3.2633 | 3.258 ± 0.012 | −0.16 % |  |" in lines
    )
    assert "| Fig. 3 | queue \\| at the end | – | – | 12,000 | – | 1 |" in lines
    assert f"1. {LONG}" in lines and "2. Their GPU is not ours." in lines
    assert "| b\\|c | – | – |" in lines
    assert "- Two" in lines and "  paragraphs." in lines
    widths = {line.replace("\\|", "").count("|") for line in lines if line.startswith("| ")}
    assert widths == {8, 4}  # seven columns, and three


def test_other_endings_are_refused(tmp_path: Path):
    with pytest.raises(iq.ConfigError, match=r"page\.pdf: must end in \.html or \.md"):
        pages.write(MADE, tmp_path / "page.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [
        (3.2632811, None, "3.2633"),
        (1234567.8, None, "1,234,568"),
        (0.00012345678, None, "0.00012346"),
        (1.5e-12, None, "1.5e-12"),
        (99.99961, 0.5, "100.00 ± 0.50"),
        (11.81, 0.0312, "11.810 ± 0.031"),
        (250.0, 12.3, "250 ± 12"),
        (5.0, 0.0, "5 ± 0"),
    ],
)
def test_numbers_show_what_is_known_of_them(value: float, half_width: float | None, text: str):
    assert pages.computed(value, half_width) == text


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})


@pytest.fixture
def nie2026(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A paper that is quickly reproduced, and what it was asked."""
    asked: list[dict[str, Any]] = []

    def report(*, quick: bool, traces: Path | None, tell: Callable[[str], None]) -> Report:
        asked.append({"quick": quick, "traces": traces})
        tell("simulating Table 1")
        return MADE

    monkeypatch.setattr(
        papers, "import_module", {"inferq_papers.nie2026": SimpleNamespace(report=report)}.get
    )
    monkeypatch.chdir(tmp_path)
    return asked


def test_the_command_prints_the_rows_and_writes_the_page(nie2026: list[dict[str, Any]], tmp_path: Path):
    done = ran("paper", "nie2026", "--quick", "--trace", ".")
    assert done.exit_code == 0, done.output
    assert nie2026 == [{"quick": True, "traces": Path()}]
    assert done.stderr == "simulating Table 1\n"
    lines = done.stdout.splitlines()
    assert lines[-1] == "written to nie2026.html"
    assert (tmp_path / "nie2026.html").read_text() == pages.html(MADE)
    assert any(
        re.search(r"Table 1, 1:1 +largest rate.* 3\.263 +3\.2633 +3\.258 ± 0\.012 +−0\.16 %", one)
        for one in lines
    )
    assert " ".join(done.stdout.split()).count("1. The output lengths are not given") == 1
    assert "(7): printed v + 1; correct: v, and M* and n*_j stay as they are" in " ".join(done.stdout.split())


def test_the_command_writes_markdown_into_new_folders(nie2026: list[dict[str, Any]], tmp_path: Path):
    assert ran("paper", "NIE2026", "--out", "docs/papers/page.md").exit_code == 0
    assert nie2026 == [{"quick": False, "traces": None}]
    names = sorted(path.name for path in (tmp_path / "docs" / "papers").iterdir())
    assert names == ["page-1.svg", "page-2.svg", "page.md"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nie206"], "paper: unknown name 'nie206'; did you mean nie2026?"),
        (
            ["vidur"],
            "paper: unknown name 'vidur'; known names: li2025, ao2025, bari2025, lin2026, nie2026, hardware",
        ),
        (["nie2026", "--out", "page.pdf"], "page.pdf: must end in .html or .md, got '.pdf'"),
        (["nie2026", "--out", "file/page.md"], "file"),
        (["nie2026", "--out", "folder.md"], "folder.md: Is a directory"),
        (["nie2026", "--trace", "absent"], "trace: must be a folder, got absent"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(
    nie2026: list[dict[str, Any]], tmp_path: Path, given: list[str], said: str
):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.md").mkdir()
    done = ran("paper", *given)
    assert done.exit_code == 2
    assert done.stderr.startswith("inferq: ") and done.stderr.count("\n") == 1
    assert said in done.stderr
    assert nie2026 == []


def test_a_page_that_is_there_is_kept_until_the_run_has_ended(nie2026: list[dict[str, Any]], tmp_path: Path):
    old = tmp_path / "page.html"
    old.write_text("old")
    assert papers.writable(old).read_text() == "old"
    assert papers.writable(tmp_path / "new.html").exists() is False


def test_every_paper_has_its_module():
    for name in papers.PAPERS:
        assert (Path(papers.__file__).parent / name / "__init__.py").exists(), name
