"""What does a request cost the core, in instructions, and is it within its budget?

    python benches/budget/budget.py                 # all cases
    python benches/budget/budget.py "W1 0.9" radix  # these, or those whose names contain it
    python benches/budget/budget.py --keep          # writes what was measured into ceilings.toml

Builds `inferq-budget` as the core is released, runs each case under callgrind, and holds what one request
costs against `ceilings.toml`: instructions, misses of a first-level instruction cache of 32 KiB, mispredicted
branches, stretches, and hot code, the 64-byte lines of which an instruction is executed at least 0.2 times a
request. These counts are the same in every run. Beyond a ceiling is an error. So is a checksum of all results
that is not the one that was kept: nothing gets faster by being wrong. A ceiling is told, to be lowered, where
5 % less was measured than it stands for. Without valgrind only checksums and stretches are held.

With `--python` an iteration that a policy written in Python plans is counted as well: the border, and Python.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
CEILINGS = FOLDER / "ceilings.toml"

ABOVE, BELOW = 1.02, 0.95
"""A ceiling is so much above what was measured, and must come down when the figure falls so far."""

LINE_BYTES, HOT = 64, 0.2


@dataclass(frozen=True)
class Figure:
    """What is counted."""

    unit: str
    slack: float
    """Added to each ceiling: so much moves where functions come to lie elsewhere and nothing else changed."""
    digits: int
    layout: float = 0.0
    """The share of it that moves, up or down, for the same reason; seen between builds of equal code."""


FIGURES = {
    "instructions": Figure("instructions a request", 0.0, 1),
    "l1i_misses": Figure("L1I misses a request", 40.0, 2, 0.3),
    "mispredictions": Figure("mispredictions a request", 5.0, 2, 0.15),
    "hot_kib": Figure("KiB of hot code", 0.5, 2, 0.08),
    "stretches": Figure("stretches a request", 0.001, 4),
    "python": Figure("instructions an iteration", 0.0, 1),
}

CALLGRIND = (
    "valgrind",
    "--tool=callgrind",
    "--dump-instr=yes",
    "--dump-line=no",
    "--compress-pos=no",
    "--compress-strings=no",
)
CACHES = ("--cache-sim=yes", "--branch-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=524288,8,64")
TIMED, BORDER_CALL = "inferq_budget::timed*", "_core::run::__pyfunction_simulate"

BORDER = {
    "Python, least plan (an iteration)": "Crossing",
    "Python, shortest first (an iteration)": "ShortestFirst",
}
"""Schedulers of `benches/python_policy.py`, 64 running."""


@dataclass
class Profile:
    """What callgrind counted, in all and by instruction."""

    totals: dict[str, int] = field(default_factory=dict)
    executions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By object and address."""

    @classmethod
    def of(cls, text: str) -> Profile:
        """Reads the format of `--dump-instr=yes` with neither names nor positions compressed."""
        profile, events, of_object, is_call = cls(), [], "", False
        for line in text.splitlines():
            if line.startswith("0x"):
                address, *counts = line.split()
                # The line after `calls=` has what the callee took, which stands under its own name too.
                if not is_call:
                    profile.executions[of_object, int(address, 16)] += int(counts[events.index("Ir")])
                is_call = False
            elif line.startswith("calls="):
                is_call = True
            elif line.startswith("ob="):
                of_object = line.removeprefix("ob=")
            elif line.startswith("events:"):
                events = line.split()[1:]
            elif line.startswith(("summary:", "totals:")):
                counts = line.split()[1:]
                # Trailing zeros are left out.
                profile.totals = dict.fromkeys(events, 0) | dict(zip(events, map(int, counts), strict=False))
        return profile

    def hot_kib(self, requests: int) -> float:
        """The lines of code that are executed at least `HOT` times a request."""
        at_least = HOT * requests
        lines = {
            (of, address // LINE_BYTES)
            for (of, address), times in self.executions.items()
            if times >= at_least
        }
        return len(lines) * LINE_BYTES / 1024


@dataclass
class Measured:
    """A case, measured."""

    figures: dict[str, float]
    checksum: str | None = None


def figures(profile: Profile, requests: int) -> dict[str, float]:
    """What a request costs."""
    totals = profile.totals
    return {
        "instructions": totals["Ir"] / requests,
        "l1i_misses": totals["I1mr"] / requests,
        "mispredictions": (totals["Bcm"] + totals["Bim"]) / requests,
        "hot_kib": profile.hot_kib(requests),
    }


def ceiling(name: str, value: float) -> float:
    """The ceiling that stands for a figure."""
    scale = 10 ** FIGURES[name].digits
    above = ABOVE + FIGURES[name].layout
    return math.ceil(round((value * above + FIGURES[name].slack) * scale, 6)) / scale


def stood_for(name: str, ceiling: float) -> float:
    """The figure that a ceiling stands for."""
    return (ceiling - FIGURES[name].slack) / (ABOVE + FIGURES[name].layout)


def is_too_high(name: str, value: float, ceiling: float) -> bool:
    """Is a figure so far below what its ceiling stands for that this must come down?"""
    figure = FIGURES[name]
    return value < stood_for(name, ceiling) * (BELOW - figure.layout) - figure.slack


def judged(case: str, measured: Measured, kept: dict[str, Any] | None) -> list[str]:
    """What is wrong with a case, in a sentence each."""
    if kept is None:
        return [f"{case}: has no ceilings. Write them: make budget KEEP=1"]
    wrong = []
    if measured.checksum != kept.get("checksum"):
        wrong.append(
            f"{case}: results are not what they were: their checksum is {measured.checksum}, "
            f"and {kept.get('checksum')} was kept. If that is meant, CHANGELOG.md lists it, and "
            "budget.py --keep-checksums keeps the new one."
        )
    for name, value in measured.figures.items():
        figure = FIGURES[name]
        unit, digits = figure.unit, figure.digits
        if name not in kept:
            wrong.append(f"{case}: no ceiling for {unit}. Write it: make budget KEEP=1")
        elif value > kept[name]:
            wrong.append(
                f"{case}: {value:,.{digits}f} {unit}, and the ceiling is {kept[name]:,.{digits}f}. Make it "
                "cheaper, or raise the ceiling in the same commit and say why: make budget KEEP=1"
            )
    return wrong


def asked(case: str, measured: Measured, kept: dict[str, Any] | None) -> list[str]:
    """The ceilings of a case that are to be lowered, in a sentence each."""
    return [
        f"{case}: {value:,.{FIGURES[name].digits}f} {FIGURES[name].unit}, and the ceiling of "
        f"{kept[name]:,.{FIGURES[name].digits}f} stands for "
        f"{stood_for(name, kept[name]):,.{FIGURES[name].digits}f}. Lower it, so that the gain stays: "
        "make budget KEEP=1"
        for name, value in measured.figures.items()
        if kept and name in kept and is_too_high(name, value, kept[name])
    ]


def renewed(
    kept: dict[str, Any], measured: dict[str, Measured], *, keep: bool, keep_checksums: bool
) -> dict[str, Any]:
    """The ceilings after a run; a case that was not measured stays as it is.

    A ceiling that holds and is not too high stays too, so that many small steps up meet it. A checksum that
    was kept changes only where that is asked for.
    """
    after = {case: dict(table) if isinstance(table, dict) else table for case, table in kept.items()}
    for case, found in measured.items():
        table = after.setdefault(case, {})
        for name, value in found.figures.items() if keep else ():
            if name not in table or value > table[name] or is_too_high(name, value, table[name]):
                table[name] = ceiling(name, value)
        if found.checksum is not None and (keep_checksums or (keep and "checksum" not in table)):
            table["checksum"] = found.checksum
    return after


def toml(ceilings: dict[str, Any]) -> str:
    """The file of ceilings."""
    lines = [
        "# What a request may cost (benches/README.md): 2 % above what was measured. `make budget KEEP=1`",
        "# writes it, but for the checksums of all results, which stay. The tools of the measurement:",
    ]
    for key in [key for key, value in ceilings.items() if isinstance(value, str)]:
        lines.append(f'{key} = "{ceilings[key]}"')
    for case, table in ceilings.items():
        if isinstance(table, dict):
            lines += ["", f'["{case}"]']
            lines += [
                f'{name} = "{value}"'
                if isinstance(value, str)
                else f"{name} = {value:.{FIGURES[name].digits}f}"
                for name, value in table.items()
            ]
    return "\n".join(lines) + "\n"


def table(measured: dict[str, Measured], kept: dict[str, Any]) -> str:
    """Figures, a case on each line; `since`: the instructions beside those that their ceiling stands for."""
    columns = ["instructions", "l1i_misses", "mispredictions", "hot_kib", "stretches"]
    rows = [["", "instr.", "since", "L1I misses", "mispred.", "hot KiB", "stretches", "checksum"]]
    for case, found in measured.items():
        before = kept.get(case, {})
        cells = {
            name: f"{value:,.{0 if name == 'instructions' else min(FIGURES[name].digits, 2)}f}"
            for name, value in found.figures.items()
        }
        counted = "python" if "python" in cells else "instructions"
        since = ""
        if counted in cells and counted in before:
            since = f"{found.figures[counted] / stood_for(counted, before[counted]) - 1:+.1%}"
        of_case = [cells.get(counted, ""), since, *(cells.get(name, "") for name in columns[1:])]
        is_same = "same" if found.checksum == before.get("checksum") else "CHANGED"
        rows.append([case, *of_case, is_same if found.checksum and before else ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def tools(python: Path | None) -> dict[str, str]:
    """On what the figures depend beside the source: what compiled, what counted, what the core calls."""

    def version(*command: str) -> str:
        told = printed([*command])
        found = re.search(r"\d+\.\d+(\.\d+)?", told)
        return found[0] if found else told.strip()

    versions = {
        "rustc": version("rustc", "--version"),
        "valgrind": version("valgrind", "--version"),
        "libc": " ".join(platform.libc_ver()),
    }
    if python:
        told = "import numpy, platform; print(platform.python_version(), 'numpy', numpy.__version__)"
        versions["python"] = printed([str(python), "-c", told]).strip()
    return versions


def built() -> Path:
    """The program, as the core is released."""
    command = ["cargo", "build", "--locked", "--release", "--package", "inferq-budget"]
    command += ["--message-format", "json-render-diagnostics"]
    told = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True, check=True).stdout
    messages = map(json.loads, told.splitlines())
    return next(Path(message["executable"]) for message in messages if message.get("executable"))


def printed(command: list[str], **environment: str) -> str:
    """What a program prints; what it complains of is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def run(program: Path, case: str, *, counts: bool) -> Measured:
    """Runs a case, under callgrind if its instructions are to be counted."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        under = (*CALLGRIND, *CACHES, f"--toggle-collect={TIMED}", f"--callgrind-out-file={out}", "--quiet")
        command = [*(under if counts else ()), str(program), case]
        told = json.loads(printed(command))
        found = figures(Profile.of(out.read_text()), told["requests"]) if counts else {}
    found["stretches"] = told["stretches"] / told["requests"]
    return Measured(found, told["checksum"])


def run_border(python: Path, policy: str) -> Measured:
    """What an iteration costs that a scheduler written in Python plans.

    Three runs in one process: one for everything that is loaded when it is first used, then a short and a
    long one, whose difference has neither the first nor the last plan in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        under = (
            *CALLGRIND,
            f"--toggle-collect={BORDER_CALL}",
            f"--dump-after={BORDER_CALL}",
            f"--callgrind-out-file={out}",
            "--quiet",
        )
        command = [*under, str(python), str(FOLDER / "border.py"), policy]
        told = printed(command, PYTHONHASHSEED="0", POLARS_MAX_THREADS="1")
        iterations = [int(line) for line in told.split()]
        counted = [Profile.of(Path(f"{out}.{part}").read_text()).totals["Ir"] for part in (1, 2, 3)]
    return Measured({"python": (counted[2] - counted[1]) / (iterations[2] - iterations[1])})


def chosen(cases: list[str], words: list[str]) -> list[str]:
    """The cases of these names, and those whose names contain a word that is none."""
    whole = [word for word in words if word in cases]
    parts = [word for word in words if word not in cases]
    for word in parts:
        if not any(word in case for case in cases):
            raise SystemExit(f"no case is called like {word!r}; there are: {'; '.join(cases)}")
    return [case for case in cases if not words or case in whole or any(part in case for part in parts)]


def main() -> None:
    """Measure, compare, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="names of cases, or parts of them; all if none"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the ceilings that do not hold or are too high"
    )
    parser.add_argument(
        "--keep-checksums", action="store_true", help="write the checksums of changed results"
    )
    parser.add_argument(
        "--python", type=Path, help="an interpreter with inferq as released: policies in Python too"
    )
    parser.add_argument("--program", type=Path, help="a program that is built already")
    arguments = parser.parse_args()

    counts = shutil.which("valgrind") is not None and platform.machine() == "x86_64"
    if not counts:
        print(
            "NO INSTRUCTIONS ARE COUNTED, only checksums are held: to count takes valgrind, on x86-64 "
            "(apt-get install valgrind)"
        )
    program = arguments.program or built()
    listed = [*printed([str(program), "--list"]).splitlines(), *BORDER]
    kept = tomllib.loads(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else {}
    here = tools(arguments.python) if counts else {}
    cases = chosen(listed, arguments.cases)
    python = here.get("python")
    if python is None or not (arguments.keep or python == kept.get("python")):
        cases = [case for case in cases if case not in BORDER]
        here_is = f"here is {python}" if python else "--python names no interpreter, or nothing is counted"
        print(f"Policies in Python are left out: {here_is}; their ceilings are of {kept.get('python')}.")

    def measure(case: str) -> Measured:
        if case in BORDER:
            return run_border(arguments.python, BORDER[case])
        return run(program, case, counts=counts)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        measured = dict(zip(cases, pool.map(measure, cases), strict=True))
    print(table(measured, kept))
    if arguments.keep or arguments.keep_checksums:
        kept = renewed(kept, measured, keep=arguments.keep, keep_checksums=arguments.keep_checksums)
        if arguments.keep and counts and not arguments.cases:
            kept |= here
        CEILINGS.write_text(toml(kept), encoding="utf-8")
    wrong = [sentence for case in cases for sentence in judged(case, measured[case], kept.get(case))]
    wrong += [
        f"{case}: has ceilings, and there is no such case"
        for case, limits in kept.items()
        if isinstance(limits, dict) and case not in listed
    ]
    others = [
        f"{tool} {version}, not {kept.get(tool)}"
        for tool, version in here.items()
        if version != kept.get(tool)
    ]
    if wrong and others:
        wrong.append(f"The ceilings were taken with other tools. Here is {'; '.join(others)}.")
    asks = [sentence for case in cases for sentence in asked(case, measured[case], kept.get(case))]
    for sentence in [*wrong, *asks]:
        print(sentence, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
