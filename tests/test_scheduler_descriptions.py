"""Descriptions of schedulers: fields, errors, and the round trip through JSON."""

import dataclasses
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import inferq as iq
from inferq.scenario import Scenario
from inferq.scheduler import SCHEDULERS

from .policies import FILES, POLICIES, file_of
from .refusals import refused

SAME = iq.ByKey(len)  # a built-in function can be pickled
EXAMPLES = [example for policy in POLICIES.values() for example in policy.examples]
MADE = [made for made, _ in EXAMPLES]
WRONG = [(kind, field) for kind, policy in POLICIES.items() for field in policy.wrong]


def engine(scheduler: Any) -> iq.Engine:
    return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())


def table(scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """The description of an engine with this scheduler."""
    return {"timing": {"kind": "Constant", "seconds": 1.0}, "scheduler": scheduler, "kv": "unlimited"}


def fields(made: Any) -> dict[str, Any]:
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}


def test_every_scheduler_has_its_file() -> None:
    assert {file_of(kind.__name__) for kind in SCHEDULERS} == FILES
    for kind in SCHEDULERS:
        policy = POLICIES[kind.__name__]
        assert {type(made) for made, _ in policy.examples} == {kind}
        assert set(policy.wrong) == {field.name for field in dataclasses.fields(kind)}
        assert policy.variants and policy.toml


@pytest.mark.parametrize(("made", "described"), EXAMPLES)
def test_a_scheduler_is_described_in_json_with_every_field(made: Any, described: dict[str, Any]) -> None:
    assert made.to_json() == described
    assert json.loads(json.dumps(made.to_json())) == described
    for read in (described, json.loads(json.dumps(described))):
        assert iq.Engine.from_json(table(read)) == engine(made)


@pytest.mark.parametrize("made", [*MADE, iq.research.DynamicOffset(), SAME, iq.Sarathi(order=SAME)])
def test_a_scheduler_is_a_frozen_value(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(dataclasses.replace(made))
    assert dataclasses.replace(made) == made
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_fields_without_a_default_are_required(kind: type[Any]) -> None:
    made, described = POLICIES[kind.__name__].examples[0]
    for field in dataclasses.fields(kind):
        if field.default is field.default_factory is dataclasses.MISSING:
            with pytest.raises(TypeError, match=field.name):
                kind(**{name: value for name, value in fields(made).items() if name != field.name})
            others = {name: value for name, value in described.items() if name != field.name}
            with pytest.raises(iq.ConfigError, match=rf"engine\.scheduler\.{field.name}: missing"):
                iq.Engine.from_json(table(others))
        else:
            others = {name: value for name, value in described.items() if name != field.name}
            assert iq.Engine.from_json(table(others)).scheduler == made


def test_parameters_are_keywords() -> None:
    kinds: list[type[Any]] = [kind for kind in SCHEDULERS if kind is not iq.ClassPriority]
    for make in [*kinds, iq.research.DynamicOffset]:
        with pytest.raises(TypeError, match="positional"):
            make(512)


@pytest.mark.parametrize(("kind", "field"), WRONG)
def test_a_wrong_field_is_named(kind: str, field: str) -> None:
    made, _ = POLICIES[kind].examples[0]
    for bad in POLICIES[kind].wrong[field]:
        with pytest.raises(iq.ConfigError, match=field):
            type(made)(**{**fields(made), field: bad})
            pytest.fail(f"{bad!r} is accepted")


ERRORS = [(kind, *error) for kind, policy in POLICIES.items() for error in policy.errors]


@pytest.mark.parametrize(("kind", "changes", "text"), ERRORS)
def test_an_error_has_the_path_and_the_accepted_values(kind: str, changes: dict[str, Any], text: str) -> None:
    """In the constructor, unless other descriptions are nested, and in a description, at its path."""
    if not any(isinstance(value, dict) and "kind" in value for value in changes.values()):
        with pytest.raises(iq.ConfigError, match=text):
            getattr(iq, kind)(**changes)
    with pytest.raises(iq.ConfigError, match=text.replace("^", r"^engine\.scheduler\.", 1)):
        iq.Engine.from_json(table({"kind": kind, **changes}))


def test_an_inner_scheduler_without_classes_is_rejected() -> None:
    with pytest.raises(iq.ConfigError, match=r"^inner: .*Sarathi.*KFcfs.*Orca.*VllmV1"):
        iq.ClassPriority(order=["a"], inner=iq.VllmV0())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        iq.Sarathi(order=SAME),
        iq.research.Slai(order=SAME),
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
    with pytest.raises(iq.ConfigError, match=r"^key: .*function.*'prompt_tokens'"):
        iq.ByKey("prompt_tokens")  # type: ignore[arg-type]
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
TOML_TEXTS = [(text, made) for policy in POLICIES.values() for text, made in policy.toml.items()]


@pytest.mark.parametrize(("text", "expected"), TOML_TEXTS)
def test_every_scheduler_can_be_written_in_toml(tmp_path: Path, text: str, expected: Any) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(f'{TOML}kind = "{type(expected).__name__}"\n{text}')
    scenario = Scenario.read(path)
    assert scenario.system.scheduler == expected
    statuses = scenario.run().requests["status"]
    assert statuses.len() == 50 and set(statuses) == {"finished"}


@refused(
    (iq.research.Slai(class_first="paid"), "class_first.*paid"),
    (iq.research.Wait(thresholds={"chat": 2}), "thresholds.*code"),
    (iq.research.Wait(thresholds={"chat": 2, "code": 2, "batch": 2}), "thresholds.*batch"),
    (iq.ClassPriority(order=["chat"], inner=iq.Sarathi()), "order.*code"),
    (iq.ClassPriority(order=["chat", "code", "batch"], inner=iq.Sarathi()), "order.*batch"),
)
def test_classes_that_scheduler_and_workload_do_not_share_are_named(scheduler: Any) -> None:
    workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [9, 9], "output_tokens": [2, 2]}
    iq.simulate({**workload, "class": ["chat", "code"]}, engine(scheduler))
