"""What does a prefix cache cost, by the request and by the block?

    python benches/cached_replay.py mooncake_conversation.parquet

The trace of Mooncake, as it was recorded, through one replica that keeps up with it: `VllmV1` with a budget
of 8,192 tokens, and iterations of 6 ms, 8 µs for each token above 200 and a little for attention. Timed is
the processor time of `iq.simulate` over a frame in memory, one thread: the hashes of all rows, the run, and
its results. Block operations are what `result.block_operations` counts: blocks hit, cached and evicted.
"""

import statistics
import sys
import time
from typing import Literal

import inferq as iq

REPETITIONS = 9
TIMING = iq.PiecewiseLinear(
    base=0.006,
    per_token=8e-6,
    knee=200,
    per_context_token=4e-9,
    per_prefill_square=130e-12,
    per_chunk_context=260e-12,
)
CACHES: tuple[Literal["blocks", "radix"] | None, ...] = (None, "blocks", "radix")


def main() -> None:
    trace = iq.read_trace(sys.argv[1])
    requests = trace.frame.height
    cases = [
        iq.KvCache(tokens=tokens, block=block, prefix_cache=cache)
        for block in (512, 16)
        for tokens in (None, 3_000_000)
        for cache in CACHES
    ]
    costs_s: dict[iq.KvCache, list[float]] = {kv: [] for kv in cases}
    operations = {}
    for _ in range(REPETITIONS):
        for kv in cases:
            scheduler = iq.VllmV1(token_budget=8192, max_seqs=256, async_scheduling=False)
            engine = iq.Engine(timing=TIMING, scheduler=scheduler, kv=kv)
            began_s = time.process_time()
            result = iq.simulate(trace, engine, threads=1)
            costs_s[kv].append(time.process_time() - began_s)
            told = result.block_operations
            operations[kv] = sum(told.row(0)[1:]) if told.height else 0
    for kv, cost_s in costs_s.items():
        rate, done = [requests / seconds for seconds in cost_s], operations[kv]
        print(
            f"block {kv.block:3}, {kv.tokens or 'no limit':>9}, {kv.prefix_cache or 'no cache':8} "
            f"{statistics.median(rate):9,.0f} requests/s ({min(rate):,.0f} to {max(rate):,.0f}), "
            f"{done:10,} block operations, {done / statistics.median(cost_s) / 1e6:5.1f} million/s"
        )


if __name__ == "__main__":
    main()
