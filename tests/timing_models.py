"""All that the suites need to know of each built-in timing model, in one entry of `TIMINGS`.

A new one copies the shortest, `Constant`: how its fields are drawn, for examples as for random scenarios, and
its formula for the reference simulator.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import inferq as iq
from inferq.timing import TimingModel

from .policy import NO_COUNT, Described

Chunks = list[tuple[int, int]]  # tokens of each, and its context before
NO_SECONDS = (-0.001, float("nan"), float("inf"), 1e-19, True, "0.5", None, [0.5])


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A built-in timing model: its fields, and how long an iteration takes."""

    draw: Callable[[random.Random], Described]
    """All of its fields at random, in sizes that meet the requests of random scenarios and of the laws."""
    price: Callable[[Any, Chunks, list[int]], int]
    """Its formula, from the source and not from the Rust: attoseconds, by fields in attoseconds, of chunks
    and of the contexts of decodes before the iteration."""
    counts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What in it is no seconds, and what each must refuse."""


def drawn_timing(rng: random.Random, kind: str | None = None) -> Described:
    kind = kind or rng.choice(sorted(TIMINGS))
    return {"kind": kind, **TIMINGS[kind].draw(rng)}


def read(timing: Described) -> TimingModel:
    """The model that a description means."""
    return iq.Engine.from_json({"timing": timing, "scheduler": {"kind": "Sarathi"}, "kv": "unlimited"}).timing


def each_time(timing: Described, change: Callable[[float], Any]) -> Described:
    """A description of a model with every number of seconds changed."""
    kept = {"kind", *TIMINGS[timing["kind"]].counts}

    def changed(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {one: changed(inner, one) for one, inner in value.items()}
        if name in kept and not (isinstance(value, list) and value and isinstance(value[0], dict)):
            return value
        return [changed(one) for one in value] if isinstance(value, list) else change(value)

    return {name: changed(value, name) for name, value in timing.items()}


def ms(rng: random.Random, *usual: float) -> float:
    return rng.choice([*usual, rng.randint(1, 50) / 1000])


def us(rng: random.Random, *usual: float) -> float:
    return rng.choice([*usual, rng.randint(0, 100) / 1_000_000])


def draw_linear(rng: random.Random) -> Described:
    return {
        "base": ms(rng, 0.006),
        "per_token": us(rng, 3.2e-5),
        "knee": rng.choice([0, 20, 200, rng.randint(0, 100)]),
        "per_decode": us(rng, 0.0, 0.0, 1e-5),
        "per_context_token": us(rng, 0.0, 4e-8),
        "per_prefill_square": us(rng, 0.0, 6.5e-10),
        "per_chunk_context": us(rng, 0.0, 1.3e-9),
    }


def linear(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """li2025 (2.3) and (A.1); bari2025 for what a decode adds of itself."""
    tokens = sum(c for c, _ in chunks) + len(decodes)
    time: int = t["base"] + t["per_token"] * max(0, tokens - t["knee"])
    time += t["per_decode"] * len(decodes) + t["per_context_token"] * sum(decodes)
    return time + sum(c * (t["per_prefill_square"] * c + t["per_chunk_context"] * x) for c, x in chunks)


def by_memory(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """ao2025 (1)."""
    touched = sum(x + c for c, x in chunks) + sum(x + 1 for x in decodes)
    return int(t["base"] + t["per_kv_token"] * touched)


def mixed_solo(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """lin2026 (2), (3)."""
    return int(t["alpha"] + t["beta"] * sum(c for c, _ in chunks) if chunks else t["solo"])


def draw_tiles(rng: random.Random) -> Described:
    return {
        "rows": rng.choice([1, 4, 16]),
        "columns": rng.choice([2, 8]),
        "reduction": rng.choice([4, 16]),
        "width": 32,
        "linear_s_per_tile": 0.004,
        "other_s_per_token": rng.choice([0.0, 1e-5]),
        "gemm_s": 3.1e-6,
        "gemv_s": rng.choice([1.7e-6, 5e-5]),
        "layers": rng.choice([1, 3]),
    }


def tiled(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """bari2025 (7): tiles of the linear layers, then of each row's attention (5), (6), in every layer."""

    def tiles(size: int, side: str) -> int:  # begun ones count whole
        return int(-(-size // t[side]))

    def both(size: int, one: str, other: str) -> int:
        """A matrix of the model's width and this size, both ways."""
        return tiles(t["width"], one) * tiles(size, other) + tiles(t["width"], other) * tiles(size, one)

    tokens = sum(c for c, _ in chunks) + len(decodes)
    gemv = sum(both(x + 1, "rows", "columns") for x in decodes)
    gemm = sum(tiles(c, "columns") * both(x + c, "rows", "reduction") for c, x in chunks)
    time: int = t["linear_s_per_tile"] * tiles(tokens, "columns") + t["other_s_per_token"] * tokens
    return time + int(t["layers"] * (t["gemv_s"] * gemv + t["gemm_s"] * gemm))


def draw_roofline(rng: random.Random) -> Described:
    """Parts that cross from memory to computing within what runs, or do not."""
    return {
        "linear": {
            "flops_s_per_token": rng.choice([1e-5, 3.3e-4]),
            "weight_s": 0.004,
            "activation_s_per_token": 1.1e-6,
        },
        "chunk": {
            "compute_s_per_pair": rng.choice([1e-7, 3.1e-6]),
            "memory_s_per_token": rng.choice([1e-6, 6.4e-5]),
        },
        "decode": {"compute_s_per_token": 1e-7, "memory_s_per_token": rng.choice([1e-8, 1.7e-6])},
        "all_reduce": {"latency_s": rng.choice([0.0, 2e-5]), "s_per_token": 1e-6},
        "base_s": 0.0013,
        **(draw_optional_parts(rng) if rng.random() < 0.5 else {}),
    }


def draw_optional_parts(rng: random.Random) -> Described:
    """Experts, windows, states and exchanges, some of them absent."""

    def experts() -> Described:
        count = rng.choice([1, 4, 128])
        return {
            "experts": count,
            "active": rng.choice([1, count]),
            "ranks": rng.choice([1, 2]),
            "s_per_token": us(rng, 0.0),
            "weight_s": ms(rng, 0.004),
            "base_s": us(rng, 0.0),
        }

    def window() -> Described:
        return {
            "tokens": rng.choice([1, 16, 100, 1000]),
            "restarts": rng.choice([False, True]),
            "chunk": {"compute_s_per_pair": rng.choice([1e-7, 3.1e-6]), "memory_s_per_token": 6.4e-5},
            "decode": {"compute_s_per_token": 1e-7, "memory_s_per_token": rng.choice([1e-8, 1.7e-6])},
        }

    parts: Described = {
        "experts": [experts() for _ in range(rng.choice([0, 1, 2]))],
        "windows": [window() for _ in range(rng.choice([0, 1, 2]))],
        "states": {"s_per_decode": us(rng), "s_per_chunk": us(rng), "s_per_chunk_token": us(rng)},
        "exchange": {"latency_s": us(rng), "s_per_token": us(rng)},
    }
    return {name: part for name, part in parts.items() if part and rng.random() < 0.7}


def roofed(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """First principles: of each part the longer of computing and of reading or writing memory."""
    layers, chunk, decode = t["linear"], t["chunk"], t["decode"]
    tokens, pairs = sum(c for c, _ in chunks) + len(decodes), sum(c * x + c * (c + 1) // 2 for c, x in chunks)
    time: int = t["base_s"] + t["all_reduce"]["latency_s"] + t["all_reduce"]["s_per_token"] * tokens
    computing = layers["flops_s_per_token"] * tokens
    time += max(computing, layers["weight_s"] + layers["activation_s_per_token"] * tokens)
    reading = chunk["memory_s_per_token"] * sum(x + c for c, x in chunks)
    time += max(chunk["compute_s_per_pair"] * pairs, reading)
    attended = sum(x + 1 for x in decodes)
    time += int(max(decode["compute_s_per_token"], decode["memory_s_per_token"]) * attended)
    return time + int(optional_parts(t, chunks, decodes, tokens))


def optional_parts(t: Any, chunks: Chunks, decodes: list[int], tokens: int) -> int:
    """Experts, windows, states and exchanges; token by token where the core has closed forms."""
    time = t["chunk"].get("compute_s_per_context_token", 0) * sum(x for _, x in chunks)
    for part in t.get("experts", ()):
        unused = Fraction(part["experts"] - part["active"], part["experts"])
        share = 1 - unused ** (tokens * part.get("ranks", 1))
        units = int(share * 2**32 + Fraction(1, 2))  # the core reads whole 2⁻³² of the experts
        time += part["base_s"] + part["s_per_token"] * tokens + (part["weight_s"] * units >> 32)
    for window in t.get("windows", ()):
        w, restarts = window["tokens"], window["restarts"]
        pairs = sum(p % w + 1 if restarts else min(p + 1, w) for c, x in chunks for p in range(x, x + c))
        starts = [x // w * w if restarts else max(0, x + 1 - w) for _, x in chunks]
        read = sum(x + c - start for (c, x), start in zip(chunks, starts, strict=True))
        chunk, decode = window["chunk"], window["decode"]
        time += max(chunk["compute_s_per_pair"] * pairs, chunk["memory_s_per_token"] * read)
        each, full = max(decode.values()), w * len(decodes)
        attended = sum(x + 1 for x in decodes)
        is_beyond = restarts and attended > full
        time += each * ((full + len(decodes)) // 2 if is_beyond else min(attended, full))
    if states := t.get("states"):
        time += states["s_per_decode"] * len(decodes) + states["s_per_chunk"] * len(chunks)
        time += states["s_per_chunk_token"] * sum(c for c, _ in chunks)
    if exchange := t.get("exchange"):
        time += exchange["latency_s"] + exchange["s_per_token"] * tokens
    return int(time)


def draw_table(rng: random.Random) -> Described:
    """A table with short axes, with lines that rise and fall, and that end inside and outside what runs."""

    def axis(least: int, most: int) -> list[int]:
        return sorted(rng.sample(range(least, most), rng.choice([2, 3, 6])))

    def grid(rows: list[int], columns: list[int]) -> list[list[float]]:
        return [[rng.randint(0, rng.choice([0, 10**6, 2 * 10**7])) / 10**9 for _ in columns] for _ in rows]

    tokens = [1, *axis(2, rng.choice([12, 90, 700, 3000]))]
    seconds = [rng.randint(2 * 10**6, 12 * 10**6) / 10**9 for _ in tokens]
    seconds[-1] = max(seconds[-2:])  # an iteration of length 0 is an error
    chunk, context = axis(1, rng.choice([8, 60, 300, 2000])), axis(0, rng.choice([9, 60, 400, 20_000]))
    sequences, mean = axis(1, rng.choice([8, 20, 40])), axis(0, rng.choice([9, 60, 400, 20_000]))
    of_chunk = grid(chunk, context)
    shared_s = rng.choice([0.0, min(map(min, of_chunk))])
    return {
        "linear": {"tokens": tokens, "seconds": seconds},
        "chunk": {"chunk": chunk, "context": context, "seconds": of_chunk, "shared_s": shared_s},
        "decode": {"sequences": sequences, "mean_context": mean, "seconds": grid(sequences, mean)},
    }


def line(points: list[int], values: list[int], at: int, steps: int = 1) -> int:
    """The line from the last point not above `at` (or the first) on, never below 0; `at` is in steps.

    What a step adds is rounded towards 0; beyond the last point the last line goes on.
    """
    place = max(0, sum(point * steps <= at for point in points) - 1)
    last = min(place, len(points) - 2)
    rise, length = values[last + 1] - values[last], (points[last + 1] - points[last]) * steps
    slope = rise // length if rise >= 0 else -(-rise // length)
    return max(0, values[place] + slope * (at - points[place] * steps))


def tabled(t: Any, chunks: Chunks, decodes: list[int]) -> int:
    """Measured: linear layers by tokens, each chunk by (c, x), all decodes by (n, their contexts / n)."""

    def lattice(part: Described, row: str, column: str, at: tuple[int, int], steps: int) -> int:
        down = [line(part[row], list(values), at[0]) for values in zip(*part["seconds"], strict=True)]
        return line(part[column], down, at[1], steps)  # between the rows first, then along the columns

    time = line(t["linear"]["tokens"], t["linear"]["seconds"], sum(c for c, _ in chunks) + len(decodes))
    shared = t["chunk"]["shared_s"]
    own = {**t["chunk"], "seconds": [[time - shared for time in row] for row in t["chunk"]["seconds"]]}
    time += sum(lattice(own, "chunk", "context", chunk, 1) for chunk in chunks) + (shared if chunks else 0)
    if decodes:
        all_contexts = (len(decodes), sum(decodes))
        time += lattice(t["decode"], "sequences", "mean_context", all_contexts, len(decodes))
    return time


TIMINGS = {
    "Constant": Timing(
        draw=lambda rng: {"seconds": ms(rng, 0.01, 1.0)}, price=lambda t, chunks, decodes: t["seconds"]
    ),
    "PiecewiseLinear": Timing(
        draw=draw_linear, price=linear, counts={"knee": (-1, 1.5, 2**70, True, "8", None)}
    ),
    "MemoryLinear": Timing(
        draw=lambda rng: {"base": ms(rng, 0.01), "per_kv_token": us(rng, 1e-5)}, price=by_memory
    ),
    "MixedSolo": Timing(
        draw=lambda rng: {"alpha": ms(rng, 0.0174), "beta": us(rng, 6.2e-5), "solo": ms(rng, 0.022)},
        price=mixed_solo,
    ),
    "TiledGemm": Timing(
        draw=draw_tiles,
        price=tiled,
        counts={
            **dict.fromkeys(("width", "layers"), NO_COUNT),
            **dict.fromkeys(("rows", "columns", "reduction"), (*NO_COUNT, 48)),  # 48 is no divisor
        },
    ),
    "Roofline": Timing(
        draw=draw_roofline,
        price=roofed,
        counts={
            name: (-1, 1.5, "x")
            for name in ("experts", "active", "ranks", "tokens", "restarts", "windows", "states", "exchange")
        },
    ),
    "TimingTable": Timing(
        draw=draw_table,
        price=tabled,
        counts=dict.fromkeys(("tokens", "chunk", "context", "sequences", "mean_context"), NO_COUNT),
    ),
}
