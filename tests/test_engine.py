"""Descriptions of engines: fields, errors, and the round trip through JSON."""

import dataclasses
import json
import math
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import inferq as iq
from inferq.description import field_names
from inferq.timing import TIMING_MODELS, TimingModel

from .refusals import refused
from .timing_models import NO_SECONDS, TIMINGS, drawn_timing, each_time, read

TIMING = iq.Constant(1.0)
KV = iq.KvCache(tokens=1000)
SWAP = iq.Swap(per_token=2e-7, base=0.001)

EXAMPLES = [drawn_timing(random.Random(kind), kind) for kind in TIMINGS]
MODELS = [read(described) for described in EXAMPLES]
DESCRIPTIONS = [
    *zip(MODELS, EXAMPLES, strict=True),
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
    again = pickle.loads(pickle.dumps(made))
    assert again == made and hash(again) == hash(made)
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


@pytest.mark.parametrize("timing", MODELS)
@pytest.mark.parametrize(
    "scheduler", [iq.Sarathi(order="spf"), iq.VllmV1(policy="priority"), iq.VllmV0(preemption=SWAP)]
)
@pytest.mark.parametrize("kv", [KV, iq.KvCache.unlimited()])
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_an_engine_is_read_back_from_its_description(
    timing: Any, scheduler: Any, kv: Any, first_token: Any
) -> None:
    engine = iq.Engine(timing=timing, scheduler=scheduler, kv=kv, first_token=first_token)
    assert iq.Engine.from_json(engine.to_json()) == engine
    assert iq.Engine.from_json(json.loads(json.dumps(engine.to_json()))) == engine


def test_every_timing_model_has_its_entry() -> None:
    assert {type(model) for model in MODELS} == set(TIMING_MODELS)


def test_numpy_scalars_become_plain_numbers() -> None:
    kv = iq.KvCache(tokens=np.int64(1000), block=np.uint8(4))
    assert (type(kv.tokens), type(kv.block)) == (int, int)
    assert iq.Constant(np.float64(0.5)).to_json() == {"kind": "Constant", "seconds": 0.5}
    assert kv == iq.KvCache(tokens=1000, block=4)


def test_parameters_are_keywords() -> None:
    kinds: list[type[Any]] = [
        iq.Sarathi,
        iq.VllmV0,
        iq.VllmV1,
        iq.KvCache,
        iq.research.MemoryLinear,
        iq.research.TiledGemm,
    ]
    for make in kinds:
        with pytest.raises(TypeError):
            make(512)


WHOLE = {"timing": TIMING, "scheduler": iq.Sarathi(), "kv": KV}


def fields(model: TimingModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in field_names(type(model))}


def maker(kind: type[TimingModel]) -> Callable[..., TimingModel]:
    """The constructor that accepts all fields."""
    return iq.Roofline.of_seconds if kind is iq.Roofline else kind


WRONG: list[tuple[Callable[..., Any], dict[str, Any], str, Sequence[Any]]] = [
    *[
        (
            maker(type(model)),
            fields(model),
            field,
            TIMINGS[type(model).__name__].counts.get(field, NO_SECONDS),
        )
        for model in MODELS
        for field in fields(model)
    ],
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
    kind: Callable[..., Any], others: dict[str, Any], field: str, wrong: Sequence[Any]
) -> None:
    for bad in wrong:
        with pytest.raises(iq.ConfigError, match=field.replace("_", ".")):  # or the path within the part
            kind(**{**others, field: bad})
            pytest.fail(f"{bad!r} is accepted")


@pytest.mark.parametrize("model", MODELS)
def test_a_timing_model_is_created_from_its_fields(model: TimingModel) -> None:
    assert maker(type(model))(**fields(model)) == model


@pytest.mark.parametrize("timing", [read(each_time(described, lambda _: 0)) for described in EXAMPLES])
def test_an_iteration_that_takes_no_time_stops_the_run(timing: Any) -> None:
    engine = iq.Engine(timing=timing, scheduler=iq.Sarathi(), kv=KV)
    with pytest.raises(iq.SimulationError, match="length 0"):
        iq.simulate({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}, engine)


ENGINE: dict[str, Any] = {
    "timing": {"kind": "Constant", "seconds": 1.0},
    "scheduler": {"kind": "Sarathi"},
    "kv": {"tokens": 1000},
}


def test_missing_fields_have_their_defaults() -> None:
    assert iq.Engine.from_json(ENGINE) == iq.Engine(timing=TIMING, scheduler=iq.Sarathi(), kv=KV)


def test_a_description_can_have_an_unlimited_cache() -> None:
    assert iq.Engine.from_json({**ENGINE, "kv": "unlimited"}).kv == iq.KvCache.unlimited()


@refused(
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
)
def test_a_wrong_description_is_an_error_at_its_path(change: dict[str, Any]) -> None:
    iq.Engine.from_json({**ENGINE, **change})


@pytest.mark.parametrize("part", ["timing", "scheduler", "kv"])
def test_a_description_without_a_part_is_an_error(part: str) -> None:
    with pytest.raises(iq.ConfigError, match=rf"engine\.{part}: missing"):
        iq.Engine.from_json({name: value for name, value in ENGINE.items() if name != part})


@pytest.mark.parametrize("nothing", [None, [], "engine"])
def test_a_description_that_is_not_a_table_is_an_error(nothing: Any) -> None:
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
