"""Terminal output: no number is truncated at any width or in a pipe."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inferq.cli import app
from inferq.display import terminal
from inferq.display.document import Grid

NAMES = ("information_extraction_of_legal_documents", "chat")
NUMBERS = ("–", "8.6 ms", "71,262 s", "+2.51 %", "1,234,567.89")


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    texts, numbers = draw(st.integers(0, 3)), draw(st.integers(1, 9))
    name = st.sampled_from([*NAMES, "a router that spreads the load", "名前の長い階級", ""])
    lines = [
        [*(draw(name) for _ in range(texts)), *(draw(st.sampled_from(NUMBERS)) for _ in range(numbers))]
        for _ in range(draw(st.integers(1, 4)))
    ]
    header = [*["class"] * texts, *(f"column {place}" for place in range(numbers))]
    return Grid(title="", header=header, lines=lines, texts=texts)


@given(grids(), st.integers(30, 200))
def test_a_table_fits_and_holds_every_cell(grid: Grid, width: int):
    from rich.cells import cell_len

    drawn = terminal.table(grid, width)
    assert all(cell_len(line) <= width for line in drawn.splitlines())
    assert "…" not in drawn
    for place, head in enumerate(grid.header):
        cells = [line[place] for line in grid.lines]
        if place >= grid.texts:
            for cell in cells:
                assert drawn.count(cell) >= cells.count(cell)
            assert re.search(re.escape(head), drawn)
    # names are folded and not cut: their letters are all there
    letters = re.sub(r"[\s─]", "", drawn)
    for line in grid.lines:
        for name in line[: grid.texts]:
            assert set(re.sub(r"\s", "", name)) <= set(letters)


@given(st.text(alphabet="ab ,.-1230", min_size=1, max_size=300), st.integers(20, 120))
def test_sentences_are_broken_between_words_alone(text: str, width: int):
    told = terminal.wrapped(text, width)
    assert " ".join(" ".join(told).split()) == " ".join(text.split())
    assert all(len(line) <= width or " " not in line.strip() for line in told)


SCENARIO = """
[workload]
requests = 200
arrivals = { kind = "Poisson", rate = 4.0 }
prompt = { kind = "Geometric", mean = 200 }
output = { kind = "Geometric", mean = 40 }
[engine]
kv = { tokens = 40_000 }
[engine.timing]
kind = "Constant"
seconds = 0.02
[engine.scheduler]
kind = "%s"
[gate]
seeds = 2
tolerance = { ttft_p99 = "10%%", output_throughput = "1%%" }
"""
MEASURED = Path(__file__).parent / "measured"
COMMANDS = {
    "replay": ["replay", "long.csv", "--rate", "10", "--replicas", "3", "--prefix-cache", "blocks"],
    "simulate": ["simulate", "a_scenario_with_a_long_name.toml"],
    "sweep": [
        *("sweep", "b.toml", "--seeds", "2", "--set", "workload.arrivals.rate=4,8"),
        *("--set", "engine.scheduler.token_budget=256,512", "--set", "engine.scheduler.max_seqs=64,128"),
    ],
    "compare": ["compare", "b.toml", "a_scenario_with_a_long_name.toml", "--seeds", "2"],
    "theory": ["theory", "b.toml"],
    "capacity": ["capacity", "b.toml", "--slo", "ttft_p99=1", "--seeds", "2", "--precision", "0.3"],
    "gate": ["gate", "b.toml", "--baseline", "base.json"],
    "timing": ["timing", "show", "llama-3.1-8b", "h200"],
    "validate": [
        "validate",
        str(MEASURED / "runs.csv"),
        "--requests",
        str(MEASURED / "requests.csv"),
        "--only",
        "engine_version=0.15.1",
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("terminal")
    (made / "b.toml").write_text(SCENARIO % "Sarathi", encoding="utf-8")
    (made / "a_scenario_with_a_long_name.toml").write_text(SCENARIO % "VllmV1", encoding="utf-8")
    rows = [f"{place},{50 + place},{5 + place % 7},{NAMES[place % 2]}" for place in range(60)]
    text = "\n".join(["arrival_s,prompt_tokens,output_tokens,class", *rows])
    (made / "long.csv").write_text(text, encoding="utf-8")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(made)
    assert CliRunner().invoke(app, [*COMMANDS["gate"], "--update"]).exit_code == 0
    monkeypatch.undo()
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_cuts_a_number_in_a_pipe(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.__stdout__", None)  # which has a width where the tests run on a terminal
    words = {}
    for columns in (None, "60", "80", "120"):
        done = CliRunner().invoke(app, COMMANDS[command], env={"COLUMNS": columns})
        assert done.exit_code == 0, done.output
        words[columns] = told = done.stdout
        assert "…" not in re.sub(r"…[\w.-]+", "", told)  # the end of a long name stands behind one
        # the path of a file stays on one line
        lines = [line for line in told.splitlines() if len(line.split()) > 3]
        assert max(map(len, lines), default=0) <= int(columns or 80)
    assert words[None] == words["80"]
    every = numbers(words["120"])
    assert len(every) > 8 or command == "gate"
    assert all(every <= numbers(words[columns]) for columns in ("60", "80"))


def numbers(text: str) -> Counter[str]:
    """Separate numbers in a text with their counts."""
    return Counter(re.findall(r"(?<=\s)[+−]?\d[\d,.]*\b(?![-\w])", text))
