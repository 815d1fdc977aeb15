"""What an installed wheel must give on every machine: `python -m tests.smoke` in its environment.

It needs this checkout, the wheel and pytest, and no compiler. Three things must hold: the replay that
`make demo` runs; the kept results of 200 scenarios, bit for bit; and in 2,000 small random ones
(`--scenarios`) the law that stretches of identical iterations give what single iterations give. Left out
are theory and fits: they are computed in floating point by the linear algebra of the machine, and differ
in the twelfth digit.
"""

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import inferq as iq
from inferq.cli import app

from .agreement import frame
from .kept_results import FILE, SCENARIOS, TRACES, results
from .random_scenarios import KINDS, scenario

COMPUTED = {"theory", "observed", "fit"}


def demo() -> None:
    """What `make demo` prints, readable: a library that lays tables out may be too old for that."""
    options = ["--scheduler", "sarathi", "--timing", "a100"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        app(["replay", str(TRACES / "azure_2023.csv"), *options], standalone_mode=False)
    print(printed.getvalue())
    assert "completed" in printed.getvalue() and "p99" in printed.getvalue()


def different_from_kept() -> list[str]:
    """The tables that are not bit for bit the kept ones."""
    every = json.loads(FILE.with_name("results.json").read_text(encoding="utf-8"))
    different = []
    for number in range(len(SCENARIOS)):
        kept, now = every[str(number)], results(number)
        names = (kept.keys() | now.keys()) - COMPUTED
        different += [
            f"scenario {number}: {name}" for name in sorted(names) if kept.get(name) != now.get(name)
        ]
    return different


def lawless(count: int) -> list[str]:
    """The scenarios in which stretches do not give what single iterations give."""
    broken = []
    for number in range(count):
        seed, kind = number // len(KINDS), KINDS[number % len(KINDS)]
        described, rows, horizon_s = scenario(kind, seed)
        workload, engine = iq.Workload(frame(rows)), iq.Engine.from_json(described)
        whole = iq.simulate(workload, engine, horizon_s=horizon_s)
        single = iq.simulate(workload, engine, horizon_s=horizon_s, stepping=True)
        same = whole.requests.equals(single.requests) and whole.itl.equals(single.itl)
        totals = ("iterations", "in_system_as", "sojourn_as", "end_s")
        if not same or any(whole.totals[total] != single.totals[total] for total in totals):
            broken.append(f"{kind} {seed}: stretches differ from single iterations")
    return broken


def main() -> None:
    asked = argparse.ArgumentParser(prog="tests.smoke", description=__doc__)
    asked.add_argument("--scenarios", type=int, default=2000, help="random scenarios of the law")
    scenarios = asked.parse_args().scenarios
    assert iq.__file__ is not None and find_spec("inferq._core") is not None
    checkout = Path(__file__).parent.parent / "python"
    if checkout in Path(iq.__file__).parents:
        sys.exit(f"this is the checkout's inferq and not the wheel's: {iq.__file__}")

    demo()
    found = different_from_kept() + lawless(scenarios)
    if found:
        sys.exit("\n".join(found))
    print(f"{len(SCENARIOS)} kept results are equal, and the law holds in {scenarios} scenarios")


if __name__ == "__main__":
    main()
