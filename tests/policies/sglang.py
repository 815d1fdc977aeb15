"""Sglang: prompts before decodes, by longest prefix or arrival; its reference is `reference_sglang.py`."""

from __future__ import annotations

import random

import inferq as iq

from ..policy import NO_COUNT, Described, Policy


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "Sglang",
        "policy": rng.choice(["fcfs", "lpm"]),
        "chunk_tokens": rng.choice([None, 16, 64]),
        "max_prefill_tokens": rng.choice([16, 64, 16384]),
        "max_seqs": rng.choice([1, 4, 12]),
        "mixed": rng.choice([False, False, True]),
        "conservativeness": rng.choice([0.1, 0.3, 1.0]),
        "ignore_eos": rng.choice([True, False]),
        "overlap": rng.choice([True, False]),
    }


DESCRIBED = {
    "kind": "Sglang",
    "policy": "fcfs",
    "chunk_tokens": 8192,
    "max_prefill_tokens": 16384,
    "max_seqs": 2048,
    "mixed": False,
    "conservativeness": 1.0,
    "ignore_eos": False,
    "overlap": True,
}
CHANGED = {
    "policy": "lpm",
    "chunk_tokens": 64,
    "max_seqs": 8,
    "mixed": True,
    "conservativeness": 0.3,
    "ignore_eos": True,
    "overlap": False,
}
POLICY = Policy(
    examples=[
        (iq.Sglang(), DESCRIBED),
        (iq.Sglang(**CHANGED), {**DESCRIBED, **CHANGED}),
        (iq.Sglang(chunk_tokens=None), {**DESCRIBED, "chunk_tokens": None}),
    ],
    wrong={
        "policy": ["lof", None, 1],
        "chunk_tokens": [bad for bad in NO_COUNT if bad not in (None, 0)],
        "max_prefill_tokens": NO_COUNT,
        "max_seqs": NO_COUNT,
        "mixed": [1, "yes", None],
        "conservativeness": [-0.1, float("inf"), float("nan"), True, "1", None],
        "ignore_eos": [1, "yes", None],
        "overlap": [1, "yes", None],
    },
    errors=[
        (
            {"mixed": True, "chunk_tokens": 64, "max_seqs": 64},
            r"^chunk_tokens: must be larger than max_seqs \(64\) .*got 64",
        ),
        ({"policy": "lof"}, "^policy: .*fcfs.*lpm"),
        ({"conservativeness": -0.1}, "^conservativeness: must be finite and non-negative, got -0.1"),
        ({"max_prefill_tokens": 0}, "^max_prefill_tokens: must be from 1 .*got 0"),
        ({"max_seqs": 0}, "^max_seqs: must be from 1 .*got 0"),
    ],
    toml={'policy = "lpm"\nchunk_tokens = 64': iq.Sglang(policy="lpm", chunk_tokens=64)},
    variants={"Sglang": draw},
    rule=None,
    on_real_traces={"sglang": iq.Sglang(max_seqs=256)},
)
