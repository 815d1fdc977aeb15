"""What `benches/budget/budget.py` reads of callgrind, and when it asks for another ceiling."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from budget import budget

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILE = """\
# callgrind format
positions: instr
events: Ir Dr I1mr Bc Bcm Bi Bim
summary: 1300 40 26 90 13

ob=/lib/program
fl=???
fn=core::run
0x1000 100
0x103c 100 20 26 90 13
cob=/lib/libc.so
cfn=memcpy
calls=100 0x1000
0x1040 1000 20
fn=core::cold
0x1080 19

ob=/lib/libc.so
fn=memcpy
0x1000 20
0x1004 980

totals: 1300 40 26 90 13
"""


def test_a_profile_has_totals_and_what_each_instruction_ran():
    profile = budget.Profile.of(PROFILE)
    assert profile.totals == {"Ir": 1300, "Dr": 40, "I1mr": 26, "Bc": 90, "Bcm": 13, "Bi": 0, "Bim": 0}
    # What a call took is not what the instruction ran.
    assert profile.executions == {
        ("/lib/program", 0x1000): 100,
        ("/lib/program", 0x103C): 100,
        ("/lib/program", 0x1080): 19,
        ("/lib/libc.so", 0x1000): 20,
        ("/lib/libc.so", 0x1004): 980,
    }


def test_figures_are_by_the_request_and_hot_lines_are_counted_once():
    """Of 100 requests a line is hot from 20 executions on: here one of the program, and one of libc."""
    assert budget.figures(budget.Profile.of(PROFILE), 100) == {
        "instructions": 13.0,
        "l1i_misses": 0.26,
        "mispredictions": 0.13,
        "hot_kib": 2 * 64 / 1024,
    }


KEPT = {"instructions": 1020.0, "l1i_misses": 40.0, "stretches": 2.041, "checksum": "ab"}
"""Of 1,000 instructions, no miss, 2 stretches."""


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        ("instructions", 1020.0, None),
        ("instructions", 1020.1, "1,020.1 instructions a request, and the ceiling is 1,020.0"),
        ("instructions", 951.0, None),
        # A few more of nearly none are no change.
        ("l1i_misses", 39.9, None),
        ("l1i_misses", 40.1, "40.10 L1I misses a request"),
        ("l1i_misses", 0.0, None),
        ("stretches", 2.05, "2.0500 stretches a request"),
        ("mispredictions", 3.0, "no ceiling for mispredictions"),
    ],
)
def test_a_figure_beyond_its_ceiling_is_wrong(figure: str, value: float, said: str | None):
    wrong = budget.judged("W1", budget.Measured({figure: value}, "ab"), KEPT)
    assert [said in sentence for sentence in wrong if said] == [True] * len(wrong) == [True] * bool(said)
    assert all(sentence.startswith("W1: ") for sentence in wrong)


@pytest.mark.parametrize(("value", "is_asked"), [(1020.1, False), (951.0, False), (949.0, True)])
def test_five_percent_below_a_lower_ceiling_is_asked_for_and_nothing_is_wrong(value: float, is_asked: bool):
    measured = budget.Measured({"instructions": value}, "ab")
    sentences = budget.asked("W1", measured, KEPT)
    assert ["stands for 1,000.0. Lower it" in sentence for sentence in sentences] == [True] * is_asked
    assert value > KEPT["instructions"] or budget.judged("W1", measured, KEPT) == []


def test_a_changed_result_is_wrong_whatever_it_costs():
    wrong = budget.judged("W1", budget.Measured({"instructions": 1000.0}, "cd"), KEPT)
    assert len(wrong) == 1 and "checksum is cd, and ab was kept" in wrong[0]


def test_a_case_without_ceilings_is_wrong():
    assert len(budget.judged("W1", budget.Measured({}, "ab"), None)) == 1


def after(figures: dict[str, float], checksum: str, **asked: bool) -> dict[str, Any]:
    return budget.renewed(
        {"rustc": "1.0", "W1": KEPT, "W3": KEPT},
        {"W1": budget.Measured(figures, checksum)},
        **({"keep": False, "keep_checksums": False} | asked),
    )


@pytest.mark.parametrize(("measured", "ceiling"), [(1100.0, 1122.0), (900.0, 918.0), (1015.0, 1020.0)])
def test_a_ceiling_is_renewed_where_it_does_not_hold_or_is_too_high(measured: float, ceiling: float):
    """Elsewhere it stays, or a hundred steps of 1 % would never meet it."""
    kept = after({"instructions": measured}, "ab", keep=True)
    assert kept == {"rustc": "1.0", "W1": KEPT | {"instructions": ceiling}, "W3": KEPT}


def test_a_kept_ceiling_holds():
    for name in budget.FIGURES:
        for value in (0.3, 2.0, 47.11, 5644.04):
            if name in ("instructions", "python"):
                value *= 1000
            ceiling = budget.ceiling(name, value)
            assert value <= ceiling and not budget.is_too_high(name, value, ceiling)


def test_checksums_are_renewed_only_where_that_is_asked_for():
    assert after({}, "cd", keep=True)["W1"]["checksum"] == "ab"
    assert after({}, "cd", keep_checksums=True)["W1"]["checksum"] == "cd"
    assert budget.renewed({}, {"W1": budget.Measured({}, "cd")}, keep=True, keep_checksums=False) == {
        "W1": {"checksum": "cd"}
    }


def test_what_is_written_is_what_is_read():
    kept = {"rustc": "1.95.0", "W1 0.9, table": KEPT, "W3": {"hot_kib": 31.63}}
    assert tomllib.loads(budget.toml(kept)) == kept


def test_cases_are_chosen_by_name_or_by_a_part_of_it():
    cases = ["W1 0.9", "W1 0.9, table", "W3 0.9"]
    assert budget.chosen(cases, []) == cases
    assert budget.chosen(cases, ["W1 0.9"]) == ["W1 0.9"]
    assert budget.chosen(cases, ["W3", "table"]) == ["W1 0.9, table", "W3 0.9"]
    with pytest.raises(SystemExit, match="no case is called like 'W2'"):
        budget.chosen(cases, ["W2"])


def test_a_run_fails_where_results_are_not_those_that_were_kept(tmp_path: Path):
    """A program in place of the core, without valgrind: only checksums and stretches are held."""
    said = json.dumps({"case": "W1", "requests": 2, "iterations": 9, "stretches": 4, "checksum": "cd"})
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = --list ] && echo 'W1 0.9' || echo '{said}'\n")
    program.chmod(0o755)
    command = [sys.executable, budget.__file__, "--program", str(program), "W1 0.9"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "NO INSTRUCTIONS ARE COUNTED" in done.stdout
    assert "W1 0.9: results are not what they were" in done.stderr
