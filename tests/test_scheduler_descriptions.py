"""Descriptions of schedulers: what they say, what they refuse, and that they come back from what they say."""

import dataclasses
import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferq as iq
from inferq.scenario import read_scenario
from inferq.scheduler import SCHEDULERS

K_FCFS: dict[str, Any] = {"token_budget": 64, "k_prefill": 2, "k_decode": 16}
RAD: dict[str, Any] = {"rows": 128, "columns": 256, "reduction": 32, "requests_per_cycle": 1000}
NESTED: dict[str, Any] = {"segments": [0, 2], "thresholds": [3, 3]}
PRIORITY: dict[str, Any] = {"order": ["urgent", "batch"], "inner": iq.Sarathi()}
SARATHI = {
    "kind": "Sarathi",
    "token_budget": 512,
    "max_seqs": 128,
    "order": "fcfs",
    "watermark": 0.01,
    "preemption": {"kind": "Recompute"},
}
SLAI = {
    "kind": "Slai",
    "token_budget": 512,
    "max_active": 128,
    "max_decodes": 128,
    "offset": 10,
    "order": "spf",
    "class_first": None,
}
OFFSET = {"kind": "DynamicOffset", "low": 5, "high": 10, "kv_share": 0.96}
SGLANG = {
    "kind": "Sglang",
    "policy": "fcfs",
    "chunk_tokens": 8192,
    "max_prefill_tokens": 16384,
    "max_seqs": 2048,
    "mixed": False,
    "conservativeness": 1.0,
    "ignore_eos": False,
}
SAME = iq.ByKey(len)  # a built-in function can be pickled

DESCRIBED: list[tuple[Any, dict[str, Any]]] = [
    (iq.Sarathi(), SARATHI),
    *[(iq.Sarathi(order=order), {**SARATHI, "order": order}) for order in ("spf", "srf", "lpf")],
    (iq.Sglang(), SGLANG),
    (
        iq.Sglang(
            policy="lpm", chunk_tokens=64, max_seqs=8, mixed=True, conservativeness=0.3, ignore_eos=True
        ),
        {
            **SGLANG,
            "policy": "lpm",
            "chunk_tokens": 64,
            "max_seqs": 8,
            "mixed": True,
            "conservativeness": 0.3,
            "ignore_eos": True,
        },
    ),
    (iq.Sglang(chunk_tokens=None), {**SGLANG, "chunk_tokens": None}),
    (
        iq.Orca(),
        {"kind": "Orca", "max_seqs": 128, "max_model_len": 8192, "token_budget": None, "chunked": False},
    ),
    (
        iq.Orca(max_seqs=8, max_model_len=100, token_budget=64, chunked=True),
        {"kind": "Orca", "max_seqs": 8, "max_model_len": 100, "token_budget": 64, "chunked": True},
    ),
    (
        iq.FasterTransformer(free="batch"),
        {"kind": "FasterTransformer", "max_seqs": 128, "max_model_len": 8192, "free": "batch"},
    ),
    (iq.KFcfs(**K_FCFS), {"kind": "KFcfs", **K_FCFS}),
    (iq.Rad(**RAD), {"kind": "Rad", **RAD}),
    (iq.RadPhased(**RAD), {"kind": "RadPhased", **RAD}),
    (iq.Slai(), SLAI),
    (iq.Slai(offset=2.5, class_first="paid"), {**SLAI, "offset": 2.5, "class_first": "paid"}),
    (iq.Slai(offset=iq.DynamicOffset()), {**SLAI, "offset": OFFSET}),
    (iq.Wait(thresholds=4), {"kind": "Wait", "thresholds": 4, "max_seqs": None}),
    (
        iq.Wait(thresholds={"code": 2, "chat": 4}, max_seqs=64),
        {"kind": "Wait", "thresholds": {"chat": 4, "code": 2}, "max_seqs": 64},
    ),
    (iq.NestedWait(**NESTED), {"kind": "NestedWait", **NESTED, "prompt_groups": []}),
    (
        iq.NestedWait(segments=(5,), thresholds=(2,), prompt_groups=range(100, 300, 100)),
        {"kind": "NestedWait", "segments": [5], "thresholds": [2], "prompt_groups": [100, 200]},
    ),
    (iq.SlotGreedy(), {"kind": "SlotGreedy", "chunk": 512}),
    (iq.ClassPriority(**PRIORITY), {"kind": "ClassPriority", "order": ["urgent", "batch"], "inner": SARATHI}),
    (
        iq.ClassPriority(order=["a"], inner=iq.KFcfs(**K_FCFS)),
        {"kind": "ClassPriority", "order": ["a"], "inner": {"kind": "KFcfs", **K_FCFS}},
    ),
]
MADE = [made for made, _ in DESCRIBED]


def engine(scheduler: Any) -> iq.Engine:
    return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())


def table(scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """The description of an engine with this scheduler."""
    return {"timing": {"kind": "Constant", "seconds": 1.0}, "scheduler": scheduler, "kv": "unlimited"}


def test_every_scheduler_is_among_these_or_the_engines() -> None:
    assert {type(made) for made in MADE} | {iq.VllmV0, iq.VllmV1} == set(SCHEDULERS)


@pytest.mark.parametrize(("made", "described"), DESCRIBED)
def test_a_scheduler_is_described_in_json_with_every_field(made: Any, described: dict[str, Any]) -> None:
    assert made.to_json() == described
    assert json.loads(json.dumps(made.to_json())) == described


@pytest.mark.parametrize("made", [*MADE, iq.DynamicOffset(), SAME, iq.Sarathi(order=SAME)])
def test_a_scheduler_is_a_frozen_value(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(dataclasses.replace(made))
    assert dataclasses.replace(made) == made
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


@pytest.mark.parametrize("made", MADE)
def test_an_engine_comes_back_from_its_description(made: Any) -> None:
    described = engine(made).to_json()
    assert iq.Engine.from_json(described) == engine(made)
    assert iq.Engine.from_json(json.loads(json.dumps(described))) == engine(made)


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (iq.KFcfs, K_FCFS),
        (iq.Rad, RAD),
        (iq.RadPhased, RAD),
        (iq.Wait, {"thresholds": 2}),
        (iq.NestedWait, NESTED),
        (iq.ClassPriority, {"order": ["a"], "inner": {"kind": "Sarathi"}}),
    ],
)
def test_what_has_no_default_must_be_given(kind: type[Any], needed: dict[str, Any]) -> None:
    for field in needed:
        others = {name: value for name, value in needed.items() if name != field}
        with pytest.raises(TypeError, match=field):
            kind(**others)
        with pytest.raises(iq.ConfigError, match=rf"engine\.scheduler\.{field}: missing"):
            iq.Engine.from_json(table({"kind": kind.__name__, **others}))


def test_parameters_are_keywords() -> None:
    kinds: list[type[Any]] = [kind for kind in SCHEDULERS if kind is not iq.ClassPriority]
    for make in [*kinds, iq.DynamicOffset]:
        with pytest.raises(TypeError, match="positional"):
            make(512)


def test_what_numpy_gives_becomes_plain() -> None:
    nested = iq.NestedWait(segments=np.array([0, 2]), thresholds=[np.int64(3), np.uint8(3)])
    assert nested == iq.NestedWait(**NESTED)
    assert [type(one) for one in (*nested.segments, *nested.thresholds)] == [int] * 4
    wait = iq.Wait(thresholds={np.str_("chat"): np.int32(4)})
    assert wait == iq.Wait(thresholds={"chat": 4})
    assert json.dumps(wait.to_json()["thresholds"]) == '{"chat": 4}'
    assert iq.Slai(offset=np.float32(2.5)).to_json()["offset"] == 2.5
    assert json.dumps(iq.ClassPriority(order=np.array(["a", "b"]), inner=iq.Sarathi()).to_json()["order"])


def test_a_description_keeps_what_it_was_made_with() -> None:
    thresholds, segments = {"chat": 4, "code": 2}, [0, 2]
    wait = iq.Wait(thresholds=thresholds)
    nested = iq.NestedWait(segments=segments, thresholds=[3, 3])
    thresholds["chat"] = segments[0] = 1
    assert wait.thresholds == {"chat": 4, "code": 2}
    assert list(nested.segments) == [0, 2]
    described = wait.to_json()
    described["thresholds"]["chat"] = 1
    assert wait.to_json()["thresholds"]["chat"] == 4
    with pytest.raises(TypeError):
        wait.thresholds["chat"] = 1


def test_tables_are_equal_in_any_order() -> None:
    one, other = iq.Wait(thresholds={"a": 1, "b": 2}), iq.Wait(thresholds={"b": 2, "a": 1})
    assert one == other and hash(one) == hash(other)
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert one != iq.Wait(thresholds={"a": 1, "b": 3})
    assert repr(one) == "Wait(thresholds={'a': 1, 'b': 2}, max_seqs=None)"


NO_COUNT = [0, -1, 2.5, 2**70, True, "8", None, [8], math.nan]
NO_LIST = [None, 1, "0", {"a": 0}, {0, 2}, np.array(3), np.array([[0, 2]])]
BAD_FIELDS: list[tuple[type[Any], dict[str, Any], str, Any]] = [
    *[(iq.Sarathi, {}, "order", bad) for bad in ["ljf", "ByKey", len, None, {}]],
    *[(iq.Orca, {}, field, bad) for field in ("max_seqs", "max_model_len") for bad in NO_COUNT],
    *[(iq.Orca, {}, "token_budget", bad) for bad in NO_COUNT if bad is not None],
    (iq.Orca, {"chunked": True}, "token_budget", None),
    *[(iq.Orca, {"token_budget": 8}, "chunked", bad) for bad in [1, "yes", None]],
    *[(iq.FasterTransformer, {}, field, bad) for field in ("max_seqs", "max_model_len") for bad in NO_COUNT],
    *[(iq.FasterTransformer, {}, "free", bad) for bad in ["all", "Each", None, True]],
    *[(iq.KFcfs, K_FCFS, field, bad) for field in K_FCFS for bad in NO_COUNT],
    *[(kind, RAD, field, bad) for kind in (iq.Rad, iq.RadPhased) for field in RAD for bad in NO_COUNT],
    *[
        (iq.Slai, {}, field, bad)
        for field in ("token_budget", "max_active", "max_decodes")
        for bad in NO_COUNT
    ],
    *[(iq.Slai, {}, "offset", bad) for bad in [0, -1, -0.5, math.nan, math.inf, True, "10", None, OFFSET]],
    *[(iq.Slai, {}, "order", bad) for bad in ["ljf", None, len]],
    *[(iq.Slai, {}, "class_first", bad) for bad in [1, ["paid"], True]],
    *[
        (iq.DynamicOffset, {}, field, bad)
        for field in ("low", "high", "kv_share")
        for bad in [-1, math.nan, math.inf, True, "5", None]
    ],
    (iq.DynamicOffset, {}, "kv_share", 1.01),
    *[(iq.Wait, {}, "thresholds", bad) for bad in [0, -1, 2.5, True, "4", None, [4], {}]],
    *[(iq.Wait, {}, "thresholds", {"chat": bad}) for bad in [0, -1, 2.5, True, "4", None]],
    (iq.Wait, {}, "thresholds", {3: 4}),
    *[(iq.Wait, {"thresholds": 2}, "max_seqs", bad) for bad in [0, -1, 2.5, "8"]],
    *[(iq.NestedWait, NESTED, field, bad) for field in NESTED for bad in [*NO_LIST, []]],
    *[(iq.NestedWait, NESTED, "prompt_groups", bad) for bad in NO_LIST],
    *[
        (iq.NestedWait, NESTED, "segments", bad)
        for bad in [[2, 0], [1, 1], [-1, 2], [0, 1.5], [0], [0, 1, 2]]
    ],
    *[(iq.NestedWait, NESTED, "thresholds", bad) for bad in [[3], [3, 0], [3, -1], [3, 3, 3], [3, True]]],
    *[(iq.NestedWait, NESTED, "prompt_groups", bad) for bad in [[5, 5], [9, 5], [-1]]],
    *[(iq.SlotGreedy, {}, "chunk", bad) for bad in NO_COUNT],
    *[(iq.ClassPriority, PRIORITY, "order", bad) for bad in [*NO_LIST, [], [1], ["a", "a"], ["a", None]]],
    *[
        (iq.ClassPriority, PRIORITY, "inner", bad)
        for bad in [
            None,
            "Sarathi",
            iq.Sarathi,
            iq.Constant(1.0),
            iq.VllmV0(),
            iq.Wait(thresholds=2),
            iq.Orca(),
        ]
    ],
]


@pytest.mark.parametrize(("kind", "others", "field", "bad"), BAD_FIELDS)
def test_a_wrong_field_is_named(kind: type[Any], others: dict[str, Any], field: str, bad: Any) -> None:
    with pytest.raises(iq.ConfigError, match=field):
        kind(**{**others, field: bad})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: iq.NestedWait(segments=[0, "x"], thresholds=[3, 3]), r"^segments\[1\]: .*whole number.*'x'"),
        (lambda: iq.NestedWait(segments="02", thresholds=[3, 3]), "^segments: .*list of whole numbers.*'02'"),
        (lambda: iq.Wait(thresholds={"chat": 1.5}), r"^thresholds\.chat: .*whole number.*1\.5"),
        (lambda: iq.Wait(thresholds={3: 4}), "^thresholds: .*name 3 .*text"),
        (lambda: iq.Wait(thresholds="4"), "^thresholds: .*whole number.* or .*table"),
        (lambda: iq.ClassPriority(order="ab", inner=iq.Sarathi()), "^order: .*list of texts.*'ab'"),
        (lambda: iq.ClassPriority(order=["a", 1], inner=iq.Sarathi()), r"^order\[1\]: .*text"),
        (lambda: iq.ClassPriority(order=["a"], inner=iq.VllmV0()), "^inner: .*Sarathi.*KFcfs.*Orca.*VllmV1"),
        (lambda: iq.Slai(offset="10"), r"^offset: .*number or DynamicOffset"),
        (lambda: iq.Sarathi(order=len), "^order: .*'fcfs'.*ByKey"),
        (lambda: iq.ByKey("prompt_tokens"), "^key: .*function.*'prompt_tokens'"),
    ],
)
def test_an_error_names_the_place_and_what_may_stand_there(make: Any, said: str) -> None:
    with pytest.raises(iq.ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ({"kind": "Wait", "thresholds": {"chat": "4"}}, r"^engine\.scheduler\.thresholds\.chat: "),
        ({"kind": "NestedWait", **NESTED, "segments": [0, 1.5]}, r"^engine\.scheduler\.segments\[1\]: "),
        (
            {"kind": "Slai", "offset": {"kind": "Dynamic"}},
            r"^engine\.scheduler\.offset\.kind: .*DynamicOffset",
        ),
        (
            {"kind": "Slai", "offset": {"kind": "DynamicOffset", "lo": 1}},
            r"^engine\.scheduler\.offset: .*'lo'",
        ),
        (
            {"kind": "Slai", "offset": {"kind": "DynamicOffset", "low": "x"}},
            r"^engine\.scheduler\.offset\.low: ",
        ),
        (
            {"kind": "ClassPriority", "order": ["a"], "inner": "Sarati"},
            r"^engine\.scheduler\.inner: .*Sarathi",
        ),
        (
            {"kind": "ClassPriority", "order": ["a"], "inner": {"kind": "Sarath"}},
            r"^engine\.scheduler\.inner\.kind: .*did you mean Sarathi",
        ),
        (
            {"kind": "ClassPriority", "order": ["a"], "inner": {"kind": "KFcfs", "token_budget": 8}},
            r"^engine\.scheduler\.inner\.k_prefill: missing",
        ),
        (
            {"kind": "ClassPriority", "order": ["a"], "inner": {"kind": "Sarathi", "max_seqs": "x"}},
            r"^engine\.scheduler\.inner\.max_seqs: ",
        ),
    ],
)
def test_a_wrong_description_is_an_error_at_its_path(scheduler: dict[str, Any], said: str) -> None:
    with pytest.raises(iq.ConfigError, match=said):
        iq.Engine.from_json(table(scheduler))


@pytest.mark.parametrize(
    "made",
    [
        iq.Sarathi(order=SAME),
        iq.Slai(order=SAME),
        iq.ClassPriority(order=["default"], inner=iq.Sarathi(order=SAME)),
    ],
)
def test_a_key_function_is_described_by_its_kind_and_cannot_be_read_back(made: Any) -> None:
    described = json.loads(json.dumps(engine(made).to_json()))
    assert described["scheduler"].get("inner", described["scheduler"])["order"] == "ByKey"
    with pytest.raises(iq.ConfigError, match=r"engine\.scheduler\..*order: .*cannot be read back"):
        iq.Engine.from_json(described)


def test_a_key_function_alone_is_described_by_its_kind() -> None:
    assert SAME.to_json() == "ByKey"
    with pytest.raises(iq.ConfigError, match="cannot be read back"):
        iq.Engine.from_json(table({"kind": "Sarathi", "order": SAME.to_json()}))


TOML = """
[workload]
requests = 50
arrivals = { kind = "Poisson", rate = 5 }
prompt = { kind = "Uniform", low = 10, high = 50 }
output = { kind = "Geometric", mean = 8 }

[engine.timing]
kind = "Constant"
seconds = 0.02

[engine.kv]
tokens = 100_000

[engine.scheduler]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('kind = "Sarathi"\norder = "lpf"', iq.Sarathi(order="lpf")),
        ('kind = "Orca"\ntoken_budget = 64\nchunked = true', iq.Orca(token_budget=64, chunked=True)),
        ('kind = "FasterTransformer"\nfree = "batch"', iq.FasterTransformer(free="batch")),
        ('kind = "KFcfs"\ntoken_budget = 64\nk_prefill = 2\nk_decode = 16', iq.KFcfs(**K_FCFS)),
        (
            'kind = "Rad"\nrows = 128\ncolumns = 256\nreduction = 32\nrequests_per_cycle = 1000',
            iq.Rad(**RAD),
        ),
        (
            'kind = "RadPhased"\nrows = 128\ncolumns = 256\nreduction = 32\nrequests_per_cycle = 1000',
            iq.RadPhased(**RAD),
        ),
        ('kind = "Slai"\noffset = 2.5\nclass_first = "default"', iq.Slai(offset=2.5, class_first="default")),
        (
            'kind = "Slai"\noffset = { kind = "DynamicOffset", high = 20 }',
            iq.Slai(offset=iq.DynamicOffset(high=20)),
        ),
        ('kind = "Wait"\nthresholds = 4', iq.Wait(thresholds=4)),
        ('kind = "Wait"\nthresholds = { default = 4 }', iq.Wait(thresholds={"default": 4})),
        ('kind = "NestedWait"\nsegments = [0, 2]\nthresholds = [3, 3]', iq.NestedWait(**NESTED)),
        ('kind = "SlotGreedy"\nchunk = 256', iq.SlotGreedy(chunk=256)),
        (
            'kind = "ClassPriority"\norder = ["default"]\ninner = { kind = "Sarathi", token_budget = 64 }',
            iq.ClassPriority(order=["default"], inner=iq.Sarathi(token_budget=64)),
        ),
    ],
)
def test_every_scheduler_can_be_written_in_toml(tmp_path: Path, text: str, expected: Any) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML + text)
    scenario = read_scenario(path)
    assert scenario.system.scheduler == expected
    statuses = scenario.simulate().requests["status"]
    assert statuses.len() == 50 and set(statuses) == {"finished"}


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (iq.Slai(class_first="paid"), "class_first.*paid"),
        (iq.Wait(thresholds={"chat": 2}), "thresholds.*code"),
        (iq.Wait(thresholds={"chat": 2, "code": 2, "batch": 2}), "thresholds.*batch"),
        (iq.ClassPriority(order=["chat"], inner=iq.Sarathi()), "order.*code"),
        (iq.ClassPriority(order=["chat", "code", "batch"], inner=iq.Sarathi()), "order.*batch"),
    ],
)
def test_classes_that_scheduler_and_workload_do_not_share_are_named(scheduler: Any, said: str) -> None:
    workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [9, 9], "output_tokens": [2, 2]}
    with pytest.raises(iq.ConfigError, match=said):
        iq.simulate({**workload, "class": ["chat", "code"]}, engine(scheduler))
