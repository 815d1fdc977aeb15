"""Descriptions of engines: what they say, what they refuse, and that they come back from what they say."""

import dataclasses
import json
import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import inferq as iq
from inferq.timing import TimingModel

TIMING = iq.Constant(1.0)
KV = iq.KvCache(tokens=1000)
SWAP = iq.Swap(per_token=2e-7, base=0.001)
TILES: dict[str, Any] = {"rows": 128, "columns": 256, "reduction": 32, "width": 4096, "layers": 32}
TILE_SECONDS = {"linear_s_per_tile": 1e-3, "other_s_per_token": 1e-6, "gemm_s": 1e-8, "gemv_s": 2e-8}
TILED = {**TILES, **TILE_SECONDS}

DESCRIPTIONS = [
    (iq.Constant(0.0455), {"kind": "Constant", "seconds": 0.0455}),
    (
        iq.PiecewiseLinear(base=0.006, per_token=32e-6, knee=200),
        {
            "kind": "PiecewiseLinear",
            "base": 0.006,
            "per_token": 32e-6,
            "knee": 200,
            "per_context_token": 0,
            "per_prefill_square": 0,
            "per_chunk_context": 0,
        },
    ),
    (
        iq.MemoryLinear(base=0.015, per_kv_token=2.6e-7),
        {"kind": "MemoryLinear", "base": 0.015, "per_kv_token": 2.6e-7},
    ),
    (
        iq.MixedSolo(alpha=0.02, beta=1e-4, solo=0.01),
        {"kind": "MixedSolo", "alpha": 0.02, "beta": 1e-4, "solo": 0.01},
    ),
    (
        iq.TiledGemm(**TILED),
        {
            "kind": "TiledGemm",
            "rows": 128,
            "columns": 256,
            "reduction": 32,
            "width": 4096,
            "linear_s_per_tile": 1e-3,
            "other_s_per_token": 1e-6,
            "gemm_s": 1e-8,
            "gemv_s": 2e-8,
            "layers": 32,
        },
    ),
    (iq.Recompute(), {"kind": "Recompute"}),
    (iq.KvCache(tokens=4096, block=1), {"tokens": 4096, "block": 1, "prefix_cache": None}),
    (iq.KvCache(tokens=64, prefix_cache="blocks"), {"tokens": 64, "block": 16, "prefix_cache": "blocks"}),
    (iq.KvCache.unlimited(), {"tokens": None, "block": 16, "prefix_cache": None}),
]


@pytest.mark.parametrize(("made", "described"), DESCRIPTIONS)
def test_a_description_is_json_with_every_field(made: Any, described: dict[str, Any]) -> None:
    assert made.to_json() == described
    assert json.loads(json.dumps(made.to_json())) == described


@pytest.mark.parametrize("made", [made for made, _ in DESCRIPTIONS])
def test_a_description_is_a_frozen_value(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(dataclasses.replace(made))
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


@pytest.mark.parametrize("timing", [made for made, _ in DESCRIPTIONS if isinstance(made, TimingModel)])
@pytest.mark.parametrize(
    "scheduler", [iq.Sarathi(order="spf"), iq.VllmV1(policy="priority"), iq.VllmV0(preemption=SWAP)]
)
@pytest.mark.parametrize("kv", [KV, iq.KvCache.unlimited()])
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_an_engine_comes_back_from_its_description(
    timing: Any, scheduler: Any, kv: Any, first_token: Any
) -> None:
    engine = iq.Engine(timing=timing, scheduler=scheduler, kv=kv, first_token=first_token)
    assert iq.Engine.from_json(engine.to_json()) == engine
    assert iq.Engine.from_json(json.loads(json.dumps(engine.to_json()))) == engine


def test_numpy_scalars_become_plain_numbers() -> None:
    kv = iq.KvCache(tokens=np.int64(1000), block=np.uint8(4))
    assert (type(kv.tokens), type(kv.block)) == (int, int)
    assert iq.Constant(np.float64(0.5)).to_json() == {"kind": "Constant", "seconds": 0.5}
    assert kv == iq.KvCache(tokens=1000, block=4)


def test_parameters_are_keywords() -> None:
    kinds: list[type[Any]] = [iq.Sarathi, iq.VllmV0, iq.VllmV1, iq.KvCache, iq.MemoryLinear, iq.TiledGemm]
    for make in kinds:
        with pytest.raises(TypeError):
            make(512)


NO_SECONDS = [-0.001, math.nan, math.inf, 1e-19, True, "0.5", None, [0.5]]
LINEAR = {"base": 0.01, "per_token": 1e-5}
NO_TILES = [0, -1, 1.5, 2**70, True, "8", None]
SQUARES = ("per_context_token", "per_prefill_square", "per_chunk_context")
MEMORY = {"base": 0.01, "per_kv_token": 1e-7}
MIXED = {"alpha": 0.01, "beta": 1e-4, "solo": 0.01}
WHOLE = {"timing": TIMING, "scheduler": iq.Sarathi(), "kv": KV}
WRONG: list[tuple[type[Any], dict[str, Any], str, list[Any]]] = [
    (iq.Constant, {}, "seconds", NO_SECONDS),
    *[(iq.PiecewiseLinear, LINEAR, field, NO_SECONDS) for field in (*LINEAR, *SQUARES)],
    (iq.PiecewiseLinear, LINEAR, "knee", [-1, 1.5, True, "8", None]),
    *[(iq.MemoryLinear, MEMORY, field, NO_SECONDS) for field in MEMORY],
    *[(iq.MixedSolo, MIXED, field, NO_SECONDS) for field in MIXED],
    *[(iq.TiledGemm, TILED, field, NO_SECONDS) for field in TILE_SECONDS],
    *[(iq.TiledGemm, TILED, field, NO_TILES) for field in TILES],
    *[(iq.TiledGemm, TILED, field, [48]) for field in ("rows", "columns", "reduction")],
    *[(iq.Swap, {"per_token": 1e-7, "base": 0.001}, field, NO_SECONDS) for field in ("per_token", "base")],
    (iq.KvCache, {}, "tokens", [0, -16, 15, 1.5, 2**70, "all", math.inf]),
    (iq.KvCache, {"tokens": 100}, "block", [0, -1, 1.5, None]),
    (iq.KvCache, {"tokens": 100}, "prefix_cache", ["lru", 1]),
    (iq.Engine, WHOLE, "timing", [1.0]),
    (iq.Engine, WHOLE, "scheduler", ["Sarathi", iq.Sarathi]),
    (iq.Engine, WHOLE, "kv", [1000, None]),
    (iq.Engine, WHOLE, "first_token", ["Prefill", "", None, 0]),
]


@pytest.mark.parametrize(("kind", "others", "field", "wrong"), WRONG)
def test_a_wrong_field_is_named(
    kind: type[Any], others: dict[str, Any], field: str, wrong: list[Any]
) -> None:
    for bad in wrong:
        with pytest.raises(iq.ConfigError, match=field):
            kind(**{**others, field: bad})
            pytest.fail(f"{bad!r} is accepted")


@pytest.mark.parametrize(
    "timing",
    [
        iq.Constant(0),
        iq.PiecewiseLinear(base=0, per_token=0.001, knee=100),
        iq.MemoryLinear(base=0, per_kv_token=0),
        iq.MixedSolo(alpha=0, beta=0, solo=1),
        iq.TiledGemm(**TILES, **dict.fromkeys(TILE_SECONDS, 0)),
    ],
)
def test_an_iteration_that_takes_no_time_stops_the_run(timing: Any) -> None:
    engine = iq.Engine(timing=timing, scheduler=iq.Sarathi(), kv=KV)
    with pytest.raises(iq.SimulationError, match="length 0"):
        iq.simulate({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}, engine)


ENGINE: dict[str, Any] = {
    "timing": {"kind": "Constant", "seconds": 1.0},
    "scheduler": {"kind": "Sarathi"},
    "kv": {"tokens": 1000},
}


def test_what_a_description_leaves_out_has_its_default() -> None:
    assert iq.Engine.from_json(ENGINE) == iq.Engine(timing=TIMING, scheduler=iq.Sarathi(), kv=KV)


def test_a_description_can_ask_for_an_unlimited_cache() -> None:
    assert iq.Engine.from_json({**ENGINE, "kv": "unlimited"}).kv == iq.KvCache.unlimited()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timing": {"kind": "Constnt", "seconds": 1}}, r"engine\.timing\.kind: .*did you mean .?Constant"),
        ({"timing": {"seconds": 1}}, r"engine\.timing\.kind: missing"),
        ({"timing": {"kind": "Constant"}}, r"engine\.timing\.seconds: missing"),
        ({"timing": {"kind": ["Constant"]}}, r"engine\.timing\.kind"),
        ({"timing": {"kind": "Constant", "seconds": -1}}, r"engine\.timing\.seconds: "),
        ({"timing": 1.0}, r"engine\.timing"),
        ({"scheduler": "Sarati"}, r"engine\.scheduler"),
        ({"scheduler": {"kind": "VllmV2"}}, r"engine\.scheduler\.kind: .*did you mean .?VllmV"),
        (
            {"scheduler": {"kind": "Sarathi", "max_seq": 4}},
            r"engine\.scheduler: .*max_seq.*did you mean .?max_seqs",
        ),
        ({"scheduler": {"kind": "Sarathi", "token_budget": 0}}, r"engine\.scheduler\.token_budget: "),
        ({"kv": {}}, r"engine\.kv\.tokens: missing"),
        ({"kv": {"tokens": 1000, "blocks": 16}}, r"engine\.kv: .*blocks.*did you mean .?block"),
        ({"kv": "endless"}, r"engine\.kv"),
        ({"first_tokens": "prefill"}, r"engine: .*first_tokens.*did you mean .?first_token"),
        ({"first_token": "prefil"}, r"engine\.first_token: .*'prefill'"),
    ],
)
def test_a_wrong_description_is_an_error_at_its_path(change: dict[str, Any], said: str) -> None:
    with pytest.raises(iq.ConfigError, match=said):
        iq.Engine.from_json({**ENGINE, **change})


@pytest.mark.parametrize("part", ["timing", "scheduler", "kv"])
def test_a_description_without_a_part_is_an_error(part: str) -> None:
    with pytest.raises(iq.ConfigError, match=rf"engine\.{part}: missing"):
        iq.Engine.from_json({name: value for name, value in ENGINE.items() if name != part})


@pytest.mark.parametrize("nothing", [None, [], "engine"])
def test_a_description_that_is_no_table_is_an_error(nothing: Any) -> None:
    with pytest.raises(iq.ConfigError, match="engine"):
        iq.Engine.from_json(nothing)


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"polars", "numpy", "typer", "rich", "inferq._core"}
    code = f"import sys, inferq; print({heavy!r} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_every_public_name_is_there() -> None:
    for name in iq.__all__:
        assert getattr(iq, name) is not None
        assert name in dir(iq)
    with pytest.raises(AttributeError, match="Sarathy"):
        getattr(iq, "Sarathy")  # noqa: B009
