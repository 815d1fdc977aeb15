"""Runs a scheduler written in Python three times, 64 running, and prints how many iterations each time.

`budget.py` counts the instructions of the second and the third run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import python_policy

import inferq as iq

RUNNING = 64
ITERATIONS = (20, 100, 600)

POLICIES = {
    "Crossing": lambda: python_policy.Crossing(RUNNING),
    "ShortestFirst": lambda: python_policy.ShortestFirst(RUNNING),
}


def main() -> None:
    for iterations in ITERATIONS:
        scheduler = POLICIES[sys.argv[1]]()
        engine = iq.Engine(timing=iq.Constant(0.01), scheduler=scheduler, kv=iq.KvCache.unlimited())
        result = iq.simulate(python_policy.same(RUNNING, iterations), engine)
        print(result.totals["iterations"])


if __name__ == "__main__":
    main()
