"""Small timing models of kernels, drawn at random, for tests of what theory says about them."""

import random
from collections.abc import Callable
from typing import Any

import inferq as iq
from inferq.timing import (
    ChunkPart,
    DecodePart,
    ExchangeRoof,
    ExpertsRoof,
    LinearPart,
    StateRoof,
    WindowRoof,
)


def random_table(chance: random.Random, unit_s: float = 1.0) -> iq.TimingTable:
    """A small table of times that mostly rise; some fall, and some lie on a few points only."""

    def rising(count: int, step_s: float) -> list[float]:
        found, at = [], unit_s * chance.choice([0.0, step_s])
        for _ in range(count):
            found.append(at)
            at = max(0.0, at + unit_s * step_s * chance.choice([-0.3, 0.2, 1, 1, 2, 5]))
        return found

    def points(first: int, most: int) -> list[int]:
        inner = chance.sample(range(first + 1, most), chance.choice([0, 1, 3]))
        return sorted([first, *inner, most])

    sizes, chunks, contexts, counts, means = (
        points(*ends) for ends in ((1, 40), (1, 20), (0, 24), (1, 20), (0, 24))
    )
    base_s = unit_s * chance.choice([0.3, 1.0])
    of_chunk, of_decode = rising(len(contexts), 0.05), rising(len(means), 0.03)
    chunk_s = [[n + m for m in of_chunk] for n in rising(len(chunks), 0.1)]
    shared_s = chance.choice([0.0, 0.5, 1.0]) * min(min(row) for row in chunk_s)
    return iq.TimingTable(
        linear=LinearPart(sizes, [base_s + one for one in rising(len(sizes), 0.3)]),
        chunk=ChunkPart(chunks, contexts, chunk_s, shared_s=shared_s),
        decode=DecodePart(
            counts,
            means,
            [
                [n + m * count for m in of_decode]
                for n, count in zip(rising(len(counts), 0.1), counts, strict=True)
            ],
        ),
    )


def random_roofline(chance: random.Random, unit_s: float = 1.0) -> iq.Roofline:
    def pick(times: list[float]) -> float:
        return unit_s * chance.choice(times)

    return iq.Roofline.of_seconds(
        linear_flops_s_per_token=pick([0.02, 0.1]),
        linear_weight_s=pick([0.2, 1.0]),
        linear_activation_s_per_token=pick([0, 0.01, 0.05]),
        chunk_compute_s_per_pair=pick([0, 0.001, 0.01]),
        chunk_memory_s_per_token=pick([0, 0.005, 0.05]),
        decode_compute_s_per_token=pick([0, 0.001]),
        decode_memory_s_per_token=pick([0, 0.005]),
        all_reduce_latency_s=pick([0, 0.1]),
        all_reduce_s_per_token=pick([0, 0.01]),
        base_s=pick([0, 0.3]),
        **(optional_parts(chance, pick) if chance.random() < 0.5 else {}),
    )


def optional_parts(chance: random.Random, pick: Callable[[list[float]], float]) -> dict[str, Any]:
    """Experts, windows, states and exchanges at random."""

    def experts() -> ExpertsRoof:
        count = chance.choice([2, 8])
        return ExpertsRoof(
            experts=count,
            active=chance.randint(1, count),
            ranks=chance.choice([1, 3]),
            s_per_token=pick([0, 0.02]),
            weight_s=pick([0.2, 1.0]),
            base_s=pick([0, 0.1]),
        )

    def window() -> WindowRoof:
        return WindowRoof(
            tokens=chance.choice([1, 5, 12]),
            restarts=chance.random() < 0.5,
            chunk_compute_s_per_pair=pick([0, 0.001, 0.01]),
            chunk_memory_s_per_token=pick([0, 0.005, 0.05]),
            decode_compute_s_per_token=pick([0, 0.001]),
            decode_memory_s_per_token=pick([0, 0.005]),
        )

    states = StateRoof(
        s_per_decode=pick([0, 0.01]), s_per_chunk=pick([0, 0.05]), s_per_chunk_token=pick([0, 0.01])
    )
    return {
        "chunk_compute_s_per_context_token": pick([0, 0.01]),
        "experts": [experts() for _ in range(chance.choice([0, 1, 2]))],
        "windows": [window() for _ in range(chance.choice([0, 1, 2]))],
        "states": chance.choice([None, states]),
        "exchange": chance.choice(
            [None, ExchangeRoof(latency_s=pick([0, 0.1]), s_per_token=pick([0, 0.01]))]
        ),
    }
