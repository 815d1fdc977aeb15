"""Do eight replicas serve eight times what one serves, and does memory alone say how much? nie2026 section 5.

    python docs/studies/replicas.py             # prints the tables

A slot lasts b̄ seconds whatever is in it; memory is the only limit: M = 131,000 tokens on each replica, chunks
of ŝ = 512. Prompt and output lengths are independent, discrete and uniform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
import show

import inferq as iq

MEMORY_TOKENS, CHUNK = 131_000, 512
REPLICAS = 8
SEEDS, STUDENT_99 = 8, 3.4995
"""Independent seeds, and within how many standard errors of Student's t 99 % of their means lie."""
WARM_UP_S = 200.0
"""From here on a run is measured: several lives of a request (a mean of 30 s) after the memory was filled."""


@dataclass(frozen=True)
class Setting:
    """Longest prompt and output, the paper's slot in seconds, and the rates that it prints."""

    prompt: int
    output: int
    slot_s: float
    printed_theory: float
    printed_gpu: float


SHORTEST = 10
SETTINGS = {
    "1:1": Setting(1600, 1600, 0.0372, 3.263, 3.387),
    "2:1": Setting(2133, 1066, 0.0430, 3.956, 3.650),
    "1:2": Setting(1066, 2133, 0.0337, 2.902, 2.969),
}
PRINTED_EIGHT_THEORY, PRINTED_EIGHT_GPU = 25.808, 26.710


def lifetime_memory(setting: Setting, whole_chunks: bool) -> float:
    """E[g], tokens times slots that a request occupies in its life, nie2026 section 4.

    The paper's g takes the number of chunks s/ŝ as a real number. With `whole_chunks` the last chunk is what
    is left of the prompt and takes a slot of its own, as it does in an engine: the sum of min(j·ŝ, s) over
    j = 1 … ⌈s/ŝ⌉. Decodes hold s + 1 … s + o.
    """
    s = np.arange(SHORTEST, setting.prompt + 1)
    o = np.arange(SHORTEST, setting.output + 1)
    if whole_chunks:
        full = (s - 1) // CHUNK
        prefill = CHUNK * full * (full + 1) / 2 + s
    else:
        prefill = (1 + s / CHUNK) * s / 2
    return float(prefill.mean() + s.mean() * o.mean() + (o * (o + 1) / 2).mean())


def theory_rate(setting: Setting, whole_chunks: bool = False) -> float:
    """μ = M / (b̄·E[g]) requests a second, nie2026 (1): no policy serves more."""
    return MEMORY_TOKENS / (setting.slot_s * lifetime_memory(setting, whole_chunks))


def least_share(setting: Setting) -> float:
    """1 − δ: a replica with a backlog uses at least so much of its memory, nie2026 Theorem 4.2."""
    return 1 - (setting.prompt + setting.output) / MEMORY_TOKENS


def overloaded(setting: Setting, replicas: int, requests: int, seed: int) -> iq.Result:
    """5 requests a second for each replica, λ = 40 for eight of them, as in section 5.3."""
    engine = iq.Engine(
        timing=iq.Constant(setting.slot_s),
        scheduler=iq.SlotGreedy(chunk=CHUNK),
        kv=iq.KvCache(tokens=MEMORY_TOKENS, block=1),
        first_token="decode",
    )
    workload = iq.Workload.law(
        requests=requests * replicas,
        arrivals=iq.Poisson(5.0 * replicas),
        prompt=iq.Uniform(SHORTEST, setting.prompt),
        output=iq.Uniform(SHORTEST, setting.output),
    )
    return iq.simulate(workload, iq.Cluster(engine, replicas=replicas, router=iq.RoundRobin()), seed=seed)


def processing_rate(result: iq.Result, start_s: float, end_s: float) -> float:
    """Requests that finish in a window, per second."""
    inside = result.requests["finish_s"].is_between(start_s, end_s, closed="right")
    return inside.sum() / (end_s - start_s)


def rates(ratio: str, replicas: int, requests: int = 400_000) -> list[float]:
    """The rate of each seed, from `WARM_UP_S` to the last arrival: there is a backlog all the while.

    What requests occupy in their lives has a coefficient of variation of 0.8, so a rate that was measured
    over n of them is known to 0.8/√n; hence so many, over all replicas.
    """
    found = []
    for seed in range(1, SEEDS + 1):
        result = overloaded(SETTINGS[ratio], replicas, requests // replicas, seed)
        last_s = result.requests["arrival_s"].max()
        assert isinstance(last_s, float)
        found.append(processing_rate(result, WARM_UP_S, last_s))
    return found


def papers_window(ratio: str, replicas: int) -> float:
    """As the paper measures: from the 1,001st arrival to the last but 1,000, of 7,000 for each replica."""
    result = overloaded(SETTINGS[ratio], replicas, 7_000, seed=1)
    arrival_s = result.requests["arrival_s"]
    return processing_rate(result, arrival_s[1000], arrival_s[-1001])


def half_width(values: list[float]) -> float:
    """Of the interval of 99 % over the seeds."""
    return STUDENT_99 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def table() -> pl.DataFrame:
    """One replica under each ratio of lengths, and eight under the first."""
    rows = []
    for ratio, replicas in [*((ratio, 1) for ratio in SETTINGS), ("1:1", REPLICAS)]:
        setting, found = SETTINGS[ratio], rates(ratio, replicas)
        whole = replicas * theory_rate(setting, whole_chunks=True)
        rows.append(
            {
                "lengths": ratio,
                "replicas": replicas,
                "μ of the formula": replicas * theory_rate(setting),
                "μ, whole chunks": whole,
                "printed μ": setting.printed_theory if replicas == 1 else PRINTED_EIGHT_THEORY,
                "printed, GPU": setting.printed_gpu if replicas == 1 else PRINTED_EIGHT_GPU,
                "found": f"{np.mean(found):.3f} ± {half_width(found):.3f}",
                "of μ, whole chunks": float(np.mean(found)) / whole,
                "found in the paper's window": papers_window(ratio, replicas),
            }
        )
    return pl.DataFrame(rows)


if __name__ == "__main__":
    exact = ["μ of the formula", "μ, whole chunks", "printed μ", "printed, GPU", "of μ, whole chunks"]
    print(show.table(table(), **dict.fromkeys([*exact, "found in the paper's window"], 3)))
