"""Cache hits of conversations, agents and questions about shared documents.

Expected numbers are computed by hand. The last output token of a request is not in the cache. A hit consists
of whole blocks and excludes at least the last token of a prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq

from .refusals import refused


def _engine(kind: Any = "blocks", block: int = 16, tokens: int | None = None) -> iq.Engine:
    kv = iq.KvCache(tokens=tokens, block=block, prefix_cache=kind)
    return iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=kv)


def _known(prompt: int, output: int, block: int) -> int:
    return (prompt + output - 1) // block * block


# Sessions


@given(
    turns=st.integers(1, 5),
    prompt=st.integers(1, 70),
    output=st.integers(1, 70),
    block=st.sampled_from([1, 4, 16]),
    kind=st.sampled_from(["blocks", "radix"]),
    think=st.sampled_from([0.0, 5.0]),
)
@settings(max_examples=40)
def test_a_single_session_hits_its_complete_context(
    turns: int, prompt: int, output: int, block: int, kind: str, think: float
) -> None:
    chat = iq.Workload.sessions(
        sessions=1, arrivals=iq.dist.Deterministic(1), turns=turns, prompt=prompt, output=output, think=think
    )
    rows = iq.simulate(chat, _engine(kind, block)).requests
    contexts = [turn * (prompt + output) for turn in range(turns)]
    # The prompt of turn k + 1 is longer than the context of turn k, so its last token is never cached.
    assert rows["prompt_tokens"].to_list() == [before + prompt for before in contexts]
    assert rows["cached_tokens"].to_list() == [0] + [_known(before, 0, block) for before in contexts[1:]]


def test_sessions_in_a_mix_with_prefix_columns_keep_their_context() -> None:
    """Regression: a mix lost links that are implied by sessions."""
    start = {"arrivals": iq.dist.Deterministic(1), "turns": 3, "prompt": 10, "output": 20, "think": 500.0}
    grows = iq.Workload.sessions(sessions=2, **start)
    fixed = iq.Workload.sessions(sessions=2, grows=False, **start)
    texts = iq.Workload(
        {
            "arrival_s": [0.0, 100.0],
            "prompt_tokens": [30, 30],
            "output_tokens": [2, 2],
            "prefix_parts": [[[1, 25]], [[1, 28]]],
        }
    )
    mixed = iq.Workload.mix({"grows": grows, "fixed": fixed, "texts": texts})
    rows = iq.simulate(mixed, _engine(block=1)).requests
    cached = {
        name: sorted(rows.filter(pl.col("class") == name)["cached_tokens"].to_list())
        for name in ("grows", "fixed", "texts")
    }
    assert cached == {"grows": [0, 0, 29, 29, 59, 59], "fixed": [0] * 6, "texts": [0, 25]}


def test_every_session_hits_the_system_prompt() -> None:
    chat = iq.Workload.sessions(
        sessions=3, arrivals=iq.dist.Deterministic(0.001), turns=2, prompt=10, output=20, think=100.0
    ).with_prefix("system", 64)
    rows = iq.simulate(chat, _engine()).requests.sort("prompt_tokens", "arrival_s")
    assert rows["prompt_tokens"].to_list() == [74] * 3 + [104] * 3
    assert rows["cached_tokens"].to_list() == [0, 64, 64] + [_known(74, 20, 16)] * 3


def test_recorded_turns_are_replayed_at_their_own_times() -> None:
    """Open loop: turns arrive as recorded; the previous turn is complete by then."""
    trace = iq.read_trace("traces/sharegpt.json", tokens_per_word=1.3)
    spaced = trace.with_arrivals(np.arange(trace.frame.height) * 1000.0)
    assert "think_s" not in spaced.frame.columns
    rows = iq.simulate(spaced, _engine()).requests
    last: dict[str, tuple[int, int]] = {}
    expected = []
    for prompt, output, session in trace.frame.select("prompt_tokens", "output_tokens", "session_id").rows():
        before = last.get(session)
        continues = before is not None and sum(before) <= prompt
        expected.append(min(_known(*before, 16), (prompt - 1) // 16 * 16) if before and continues else 0)
        last[session] = (prompt, output)
    assert sum(map(bool, expected)) > 20
    assert rows["cached_tokens"].to_list() == expected == spaced.reuse(16).to_list()


# Agents


_SYSTEM, _OWN, _OUTPUT = 100, 30, 40


def _agent(**changes: Any) -> iq.Workflow:
    """Plan, two branches that continue the plan, and an answer that continues the second branch."""
    stages: dict[str, dict[str, Any]] = {
        "plan": {"prefix": "rules", "prefix_tokens": _SYSTEM},
        "look": {"after": "plan", "continues": "plan"},
        "code": {"after": "plan", "continues": "plan", "delay_s": 10.0},
        "answer": {"after": ["look", "code"], "continues": "code", "includes": "look"},
    }
    return iq.Workflow(
        "agent",
        stages={
            name: iq.Stage("chat", **({"prompt": _OWN, "output": _OUTPUT} | stage | changes.get(name, {})))
            for name, stage in stages.items()
        },
    )


@pytest.mark.parametrize("kind", ["blocks", "radix"])
@pytest.mark.parametrize("block", [1, 16])
def test_the_calls_of_an_agent_hit_the_growing_context(kind: str, block: int) -> None:
    network = iq.Network({"chat": _engine(kind, block)}, [_agent()])
    rows = iq.simulate({"arrival_s": [0.0, 1000.0]}, network).requests
    plan = _SYSTEM + _OWN
    branch = plan + _OUTPUT + _OWN
    answer = branch + _OUTPUT + _OWN + _OUTPUT
    assert rows["prompt_tokens"].to_list() == [plan, branch, branch, answer] * 2
    # The stage look computes the last token of the plan, ten seconds before the stage code arrives.
    known = [_known(plan, _OUTPUT, block), (plan + _OUTPUT) // block * block, _known(branch, _OUTPUT, block)]
    system = _SYSTEM // block * block
    assert rows["cached_tokens"].to_list() == [0, *known, system, *known]


def test_a_context_stays_on_the_engine_that_computed_it() -> None:
    stages = {
        "plan": iq.Stage("one", prompt=50, output=14),
        "check": iq.Stage("two", prompt=0, output=16, after="plan", continues="plan"),
        "fix": iq.Stage("one", prompt=10, output=5, after="check", continues="check"),
    }
    network = iq.Network({"one": _engine(), "two": _engine()}, [iq.Workflow("agent", stages=stages)])
    rows = iq.simulate({"arrival_s": [0.0]}, network).requests
    assert rows["prompt_tokens"].to_list() == [50, 64, 90]
    # The first engine has the 63 tokens of the plan, but not the answer of the second engine.
    assert rows["cached_tokens"].to_list() == [0, 0, 48]


@given(st.data())
@settings(max_examples=25)
def test_no_call_hits_more_than_its_context_and_all_jobs_finish(data: st.DataObject) -> None:
    """Random lengths, concurrent jobs and a small cache. Without a cache there are no hits."""
    tokens = data.draw(st.sampled_from([2000, None]))
    lengths: dict[str, Any] = {"prompt": iq.dist.Uniform(1, 60), "output": iq.dist.Uniform(1, 60)}
    workflow = _agent(**{name: lengths for name in ("plan", "look", "code", "answer")})
    jobs = iq.Workload.synthetic(requests=data.draw(st.integers(1, 12)), arrivals=iq.dist.Poisson(rate=5))
    kind = data.draw(st.sampled_from(["blocks", "radix", None]))
    seed = data.draw(st.integers(0, 5))
    result = iq.simulate(jobs, iq.Network({"chat": _engine(kind, 4, tokens)}, [workflow]), seed=seed)
    rows = result.requests
    assert (rows["status"] == "finished").all()
    stages = rows.with_columns(context=pl.col("prompt_tokens") + pl.col("output_tokens"))
    wide = stages.pivot(
        "stage", index="job", values=["prompt_tokens", "output_tokens", "context", "cached_tokens"]
    )
    parents = {"look": "plan", "code": "plan", "answer": "code"}
    for stage, parent in parents.items():
        own = wide[f"prompt_tokens_{stage}"] - wide[f"context_{parent}"]
        extra = wide["output_tokens_look"] if stage == "answer" else 0
        assert ((own - extra).is_between(1, 60)).all()
        # The stage look computes the last token of the plan, which the stage code reuses.
        most = wide[f"context_{parent}"] - (stage != "code")
        assert (wide[f"cached_tokens_{stage}"] <= most).all()
        if tokens is None and kind is not None:
            assert (wide[f"cached_tokens_{stage}"] == most // 4 * 4).all()
    if kind is None:
        assert (rows["cached_tokens"] == 0).all()


@refused(
    ({"look": {"continues": "plann"}}, r"stages\.look\.continues: unknown stage 'plann'; did you mean plan"),
    ({"look": {"continues": "code"}}, r"stages\.look\.continues: 'code' may not have finished before"),
    ({"plan": {"continues": "plan", "prefix": None, "prefix_tokens": 0}}, "may not have finished"),
)
def test_a_missing_context_is_an_error(changes: dict[str, Any]) -> None:
    _agent(**changes)


def test_a_context_must_precede_its_continuation() -> None:
    stages = {
        "answer": iq.Stage("chat", prompt=1, output=1, after="plan", continues="plan"),
        "plan": iq.Stage("chat", prompt=1, output=1),
    }
    with pytest.raises(iq.ConfigError, match=r"answer\.continues: 'plan' must precede 'answer' in stages"):
        iq.Workflow("agent", stages=stages)


@refused(
    ({"prefix": "a"}, "prefix_tokens: must be from 1 to"),
    ({"prefix_tokens": 5}, "prefix_tokens: is 5, but prefix, the name of the text, is missing"),
    ({"prefix": "", "prefix_tokens": 5}, "prefix: must not be empty"),
    ({"prefix": "a", "prefix_tokens": 5, "continues": "b"}, "prefix: cannot be combined with continues"),
    ({"continues": "b", "includes": "b"}, "includes: the output of 'b' is already included"),
    ({"continues": 3}, "continues: must be a string or None"),
    ({"prompt": 0}, "prompt: must be from 1"),
)
def test_a_contradictory_stage_is_an_error(fields: dict[str, Any]) -> None:
    iq.Stage("chat", **({"prompt": 1, "output": 1} | fields))


def test_a_network_with_contexts_is_read_back() -> None:
    network = iq.Network({"chat": _engine()}, [_agent()])
    assert iq.Network.from_json(json.loads(json.dumps(network.to_json()))) == network


def test_theory_counts_the_tokens_of_a_context() -> None:
    from inferq.theory.capacities.network_capacity import network_capacity

    plain = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    network = iq.Network({"chat": plain}, [_agent()])
    rows = iq.simulate({"arrival_s": [0.0]}, network).requests
    tokens = (rows["prompt_tokens"] + rows["output_tokens"] - 1).sum()
    assert network_capacity({"agent": 2.0}, network).engines[0].tokens_per_s == 2.0 * tokens


# Documents


def _questions(path: Path, contexts: list[str]) -> Path:
    entries = [
        {"context": text, "question": f"why {row}", "domain": "Law"}
        | {f"choice_{letter}": letter for letter in "ABCD"}
        for row, text in enumerate(contexts)
    ]
    path.write_text(json.dumps(entries))
    return path


def test_questions_about_a_document_share_it(tmp_path: Path) -> None:
    first, second = " ".join(["a"] * 100), " ".join(["b"] * 50)
    path = _questions(tmp_path / "data.json", [first, second, f"{first}\n", second])
    work = iq.read_trace(path, tokens_per_word=1.0)
    assert work.metadata["documents"] == 2
    # 10 words and <text>; then the document, </text> and 8 words before the question.
    opening, rest = 11, 1 + 8
    assert work.with_outputs(9).reuse(block=1).to_list() == [
        0,
        opening,
        opening + 100 + rest,
        opening + 50 + rest,
    ]
    assert work.reuse(block=16).to_list() == [0, 0, 112, 64]
    sent = work.with_outputs(9).with_arrivals(iq.dist.Deterministic(rate=0.01))
    assert iq.simulate(sent, _engine()).requests["cached_tokens"].to_list() == [0, 0, 112, 64]
    # With almost no tokens per word, prompts are one token long and share no document.
    assert iq.read_trace(path, tokens_per_word=0.01).frame["prompt_tokens"].min() == 1


def test_documents_of_longbench_lengths_are_shared(shared: Path) -> None:
    """Prompts about the same document share all tokens before the question."""
    for name in ("longbench_v2", "longbench_v2_trunc120k"):
        path = shared / "traces" / f"{name}.parquet"
        raw = pl.read_parquet(path)
        expected, seen = [], {}
        cut = raw["truncated"] if "truncated" in raw.columns else [False] * raw.height
        for prompt, question, document, short in zip(
            raw["prompt_tokens"], raw["question_tokens"], raw["context_id"], cut, strict=True
        ):
            head = prompt // 2 if short else prompt - question
            expected.append(min(seen.get(document, 0), head, prompt - 1))
            seen[document] = max(seen.get(document, 0), head)
        assert len(seen) in (440, 462) or len(seen) == raw["context_id"].n_unique()
        work = iq.read_trace(path)
        assert work.reuse(block=1).to_list() == expected


def test_lengths_without_documents_share_nothing(tmp_path: Path) -> None:
    frame = pl.DataFrame({"prompt_tokens": [90, 90], "class": ["a", "a"], "question_tokens": [5, 5]})
    frame.write_parquet(tmp_path / "lengths.parquet")
    assert iq.read_trace(tmp_path / "lengths.parquet").reuse().to_list() == [0, 0]


# Tables and scenarios


def test_a_column_map_supports_sessions(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "when,in,out,talk,round\n0,10,6,a,0\n5,10,6,b,0\n90,20,4,a,1\n99,20,4,b,1\n"
    )
    named = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"}
    work = iq.read_trace(tmp_path / "t.csv", columns={**named, "session_id": "talk", "turn": "round"})
    assert work.reuse(block=4).to_list() == [0, 0, 12, 12]
    assert iq.simulate(work, _engine(block=4)).requests["cached_tokens"].to_list() == [0, 0, 12, 12]


_SCENARIO = """
[workload]
requests = 40
arrivals = { kind = "Deterministic", rate = 0.1 }
prompt = { kind = "Fixed", tokens = 20 }
output = { kind = "Fixed", tokens = 3 }
prefix = { text = "system", tokens = 160 }

[engine]
timing = { kind = "Constant", seconds = 0.01 }
scheduler = { kind = "VllmV1" }
[engine.kv]
tokens = 10000
prefix_cache = "blocks"
"""


def test_a_scenario_supports_prefixes_and_prefix_caches(tmp_path: Path) -> None:
    from inferq.scenario import Scenario

    (tmp_path / "s.toml").write_text(_SCENARIO)
    assert Scenario.read(tmp_path / "s.toml").run().requests["cached_tokens"].to_list() == [0] + [160] * 39
    for old, new, message in (
        ('"blocks"', '"block"', r"kv\.prefix_cache: must be 'blocks' or 'radix' or None, got 'block'"),
        ("tokens = 160 }", "tokens = 0 }", r"workload\.prefix\.tokens: "),
        (", tokens = 160 }", " }", r"workload\.prefix\.tokens: missing"),
        ('text = "system"', 'name = "system"', r"workload\.prefix: unknown field 'name'|prefix\.name"),
    ):
        (tmp_path / "s.toml").write_text(_SCENARIO.replace(old, new))
        with pytest.raises(iq.ConfigError, match=message):
            Scenario.read(tmp_path / "s.toml").run()


def test_an_engine_on_a_gpu_supports_prefix_caches() -> None:
    kv = iq.Engine.on("llama-3.1-8b", "a100-80gb", prefix_cache="radix").kv
    assert kv == iq.KvCache(tokens=kv.tokens, prefix_cache="radix")
    with pytest.raises(iq.ConfigError, match="prefix_cache: cannot be combined with kv"):
        iq.Engine.on("llama-3.1-8b", "a100-80gb", kv=iq.KvCache(tokens=900), prefix_cache="radix")
