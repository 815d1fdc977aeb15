"""Speculative decoding beyond what was recorded: closed forms, other systems, bad input.

The recorded batches are in test_conformance.py, random scenarios in test_against_reference_vllm.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq

from .grouped import grouped


def engine(speculation: iq.Speculation | None, **changed: Any) -> iq.Engine:
    """Iterations of 20 ms, unless something else is said."""
    ahead = changed.pop("async_scheduling", True)
    policy = {name: changed.pop(name) for name in ("token_budget", "max_seqs", "policy") if name in changed}
    scheduler = iq.VllmV1(**policy, async_scheduling=ahead, pause_s=0.0, speculation=speculation)
    return iq.Engine(
        **{"timing": iq.Constant(0.02), "kv": iq.KvCache(tokens=1600), **changed}, scheduler=scheduler
    )


def one(output: int, **columns: Any) -> iq.Workload:
    asked = {"arrival_s": [0.0], "prompt_tokens": [30], "output_tokens": [output]}
    return iq.Workload({**asked, "max_output_tokens": [output], **columns})


def drawn(requests: int = 60, rate: float = 12.0) -> iq.Workload:
    return iq.Workload.synthetic(
        requests=requests,
        arrivals=iq.dist.Poisson(rate=rate),
        prompt=iq.dist.Uniform(1, 120),
        output=iq.dist.Uniform(1, 60),
    ).draw(seed=3)


def test_the_worked_example_of_the_rules() -> None:
    """Two requests in ten blocks of 16 with three drafts: which drafts each has, and which row is in vain."""
    asked = {
        "arrival_s": [0.0, 0.0005],
        "prompt_tokens": [14, 40],
        "output_tokens": [7, 2],
        "max_output_tokens": [7, 2],
        "accepted": [[0, 3, 1, 0, 0, 0, 0], [0, 0]],
    }
    price = iq.PiecewiseLinear(base=0.001, per_token=0.00001)
    kv, limits = iq.KvCache(tokens=160), {"token_budget": 32, "max_seqs": 4}
    expected = {
        False: ([1140, 3620], [3620, 4660], [(14, 1), (4, 4), (28, 0), (4, 2), (12, 1), (4, 1)]),
        True: ([1140, 4660], [3500, 5700], [(14, 1), (4, 4), (4, 2), (28, 0), (4, 0), (12, 1), (4, 1)]),
    }
    for ahead, (first, finish, rows) in expected.items():
        system = engine(iq.Speculation(tokens=3), timing=price, kv=kv, async_scheduling=ahead, **limits)
        result = iq.simulate(iq.Workload(asked), system, batches=True)
        microseconds = result.requests.select(pl.col("first_token_s", "finish_s") * 1e6).cast(pl.Int64)
        assert (microseconds["first_token_s"].to_list(), microseconds["finish_s"].to_list()) == (
            first,
            finish,
        )
        assert result.batches.select("tokens", "emitted_tokens").rows() == rows


@pytest.mark.parametrize("ahead", [False, True], ids=["one at a time", "ahead"])
@grouped(tokens=[1, 2, 5])
def test_all_drafts_or_none_make_an_iteration_for_each_row(ahead: bool, tokens: int) -> None:
    """Of a lone request 1 + n·(1 + k) tokens take 1 + n iterations if all are accepted, and all if none is.

    Planned ahead, an end that is certain only when it has come costs no time of its request.
    """
    output = 1 + 4 * (1 + tokens)
    for rate, iterations in ((1.0, 5), (0.0, output)):
        for drafter, each in ((None, 0.02), (0.25, 0.025), (iq.Constant(0.003), 0.023)):
            drafts = iq.Speculation(tokens=tokens, acceptance=rate, drafter=drafter)
            result = iq.simulate(one(output), engine(drafts, async_scheduling=ahead))
            row = result.requests.row(0, named=True)
            assert row["e2e_s"] == pytest.approx(iterations * each, abs=1e-12)
            assert row["accepted_tokens"] == output - iterations
            assert row["drafted_tokens"] == tokens * (iterations - 1)
            # A gap for each token but the first, of nothing for those that come with the one before.
            gaps = result.itl.group_by(pl.col("upper_s") > 0).agg(pl.col("count").sum())
            assert dict(gaps.rows()) == {True: iterations - 1, False: output - iterations} or rate == 0
            mean = (iterations - 1) * each / (output - 1)
            assert row["tpot_s"] == pytest.approx(mean, abs=1e-12)
            assert row["max_itl_s"] == pytest.approx(each, abs=1e-12)


@grouped(ahead=[False, True])
def test_every_token_comes_once(ahead: bool) -> None:
    """Whatever is rejected, preempted or in vain: as many tokens come as were asked for."""
    drafts = iq.Speculation(tokens=3, acceptance=[0.8, 0.5, 0.4], seed=5)
    kv = iq.KvCache(tokens=320, prefix_cache="blocks")
    result = iq.simulate(drawn(), engine(drafts, kv=kv, async_scheduling=ahead), batches=True)
    emitted = result.batches.group_by("request").agg(pl.col("emitted_tokens").sum()).sort("request")
    assert emitted["emitted_tokens"].to_list() == result.requests["output_tokens"].to_list()
    rows = result.batches.filter(pl.col("emitted_tokens") > 0).group_by("request").len().sort("request")
    total = rows["len"].cast(pl.Int64) + result.requests["accepted_tokens"]
    assert total.to_list() == result.requests["output_tokens"].to_list()
    assert result.requests["preemptions"].sum() > 0


def test_accepted_drafts_belong_to_the_request() -> None:
    """What is drawn depends on the seed and the request: another scheduler, a fleet, parts leave it."""
    workload, kv = drawn(400, 40.0), iq.KvCache.unlimited()  # a row that computes anew has no drafts
    drafts = iq.Speculation(tokens=4, acceptance=0.7)
    alone = iq.simulate(workload, engine(drafts, kv=kv)).requests
    narrow = iq.simulate(workload, engine(drafts, kv=kv, max_seqs=3, async_scheduling=False)).requests
    columns = ["drafted_tokens", "accepted_tokens"]
    assert alone.select(columns).equals(narrow.select(columns))
    other = iq.Speculation(tokens=4, acceptance=0.7, seed=1)
    assert not alone.select(columns).equals(
        iq.simulate(workload, engine(other, kv=kv)).requests.select(columns)
    )
    for router in (iq.RoundRobin(), iq.LeastRequests()):
        fleet = iq.simulate(workload, iq.Cluster(engine(drafts, kv=kv), replicas=3, router=router)).requests
        assert fleet.select(columns).equals(alone.select(columns))


def looked_up(rate: float | None, **changed: Any) -> iq.Speculation:
    """Three drafts of an n-gram lookup."""
    return iq.Speculation(
        **{"tokens": 3, "acceptance": 0.6, "method": "ngram", "proposal_rate": rate, **changed}
    )


@grouped(ahead=[False, True])
def test_no_proposal_is_a_plain_decode(ahead: bool) -> None:
    """At rate 0 every batch is that of the engine without speculation, at rate 1 that without a rate.

    Prompts have 2 tokens or more: a prompt of 1 token is padded.
    """
    frame = drawn().frame.with_columns(pl.col("prompt_tokens") + 1)
    workload, price = iq.Workload(frame), iq.PiecewiseLinear(base=0.02, per_token=0.001)
    of = {"timing": price, "kv": iq.KvCache.unlimited(), "async_scheduling": ahead}
    never, plain = (iq.simulate(workload, engine(drafts, **of)) for drafts in (looked_up(0.0), None))
    assert never.requests["drafted_tokens"].sum() == never.requests["accepted_tokens"].sum() == 0
    if not ahead:
        assert never.requests.drop("drafted_tokens", "accepted_tokens").equals(plain.requests)
        assert never.itl.equals(plain.itl)
    always, unstated = (iq.simulate(workload, engine(looked_up(rate), **of)) for rate in (1.0, None))
    assert always.requests.equals(unstated.requests)
    assert always.requests["drafted_tokens"].sum() > 0


def test_drafts_that_are_not_proposed_take_budget_only_if_planned_ahead() -> None:
    """A request decodes, and a prompt of 10 arrives at a budget of 5; the lookup finds nothing.

    If the outcome is known, the decode takes 1 token and leaves 4: the prompt takes 4, 4 and 2. A plan made
    ahead reserves 3 drafts and leaves 1 token, although the row runs with 1 token.
    """
    asked = {"arrival_s": [0.0, 0.025], "prompt_tokens": [4, 10], "output_tokens": [20, 1]}
    for ahead, chunks in ((False, [4, 4, 2]), (True, [1] * 10)):
        drafts = looked_up(0.0, acceptance=1.0)
        limits = {"token_budget": 5, "max_seqs": 4, "kv": iq.KvCache.unlimited()}
        workload = iq.Workload({**asked, "max_output_tokens": asked["output_tokens"]})
        rows = iq.simulate(workload, engine(drafts, async_scheduling=ahead, **limits), batches=True).batches
        assert rows.filter(pl.col("request") == 1)["tokens"].to_list() == chunks
        decodes = rows.filter((pl.col("request") == 0) & (pl.col("iteration") > 0))
        assert set(decodes["tokens"]) == {1}


def test_a_row_emits_what_the_closed_form_says() -> None:
    """1 + r (a + a² + a³) tokens a row on average, and r rows of all verify drafts: within 4 standard errors.

    The rows of 50 requests of 2,000 tokens are independent; only the last of each request may be cut.
    """
    requests, output = 50, 2000
    asked = {
        "arrival_s": [0.0] * requests,
        "prompt_tokens": [9] * requests,
        "output_tokens": [output] * requests,
    }
    for rate, each, ahead in ((0.3, 0.6, False), (0.8, 0.9, False), (0.3, 0.6, True)):
        drafts = looked_up(rate, acceptance=each)
        mean = 1 + rate * (each + each**2 + each**3)
        assert drafts.expected_tokens() == pytest.approx(mean)
        run = iq.simulate(
            iq.Workload(asked),
            engine(drafts, kv=iq.KvCache.unlimited(), async_scheduling=ahead),
            batches=True,
        )
        rows = run.batches.filter((pl.col("emitted_tokens") > 0) & (pl.col("iteration") > 0))
        # A row emits 1 to 4 tokens, so its variance is at most (4 - 1)² / 4.
        assert rows["emitted_tokens"].mean() == pytest.approx(mean, abs=4 * 1.5 / rows.height**0.5 + 0.003)
        share = (rows["tokens"] == 4).mean()
        assert share == pytest.approx(rate, abs=4 * 0.5 / rows.height**0.5)
        assert set(rows["tokens"]) == {1, 4}


def test_proposals_belong_to_the_request(tmp_path: Path) -> None:
    """Another scheduler, a fleet, parts and single steps leave them; another seed does not."""
    workload, kv = drawn(400, 40.0), iq.KvCache.unlimited()
    rates = [(7 * row % 11) / 10 for row in range(400)]
    columns = ["drafted_tokens", "accepted_tokens"]
    for work, drafts in (
        (workload, looked_up(0.4)),
        (iq.Workload(workload.frame.with_columns(proposal_rate=pl.Series(rates))), looked_up(None)),
    ):
        alone = iq.simulate(work, engine(drafts, kv=kv)).requests
        narrow = engine(drafts, kv=kv, max_seqs=3, async_scheduling=False)
        fleet = iq.Cluster(engine(drafts, kv=kv), replicas=3, router=iq.LeastRequests())
        for system in (narrow, fleet):
            whole = iq.simulate(work, system)
            assert whole.requests.select(columns).equals(alone.select(columns))
            stored = iq.simulate(
                work, system, out=tmp_path / f"{type(system).__name__}{drafts.proposal_rate}"
            )
            assert stored.requests.collect().equals(whole.requests)
            assert iq.simulate(work, system, stepping=True).requests.equals(whole.requests)
        other = replace(drafts, seed=1)
        assert (
            not iq.simulate(work, engine(other, kv=kv)).requests.select(columns).equals(alone.select(columns))
        )
    # In the last workload request 0 never has proposals, and request 3 always has: 7 * 3 % 11 = 10.
    assert alone["drafted_tokens"][0] == 0
    assert alone["drafted_tokens"][3] > 0
    pair = iq.Disaggregated(
        prefill=(engine(None, kv=kv), 1),
        decode=(engine(drafts, kv=kv), 1),
        link=iq.Link(latency_s=0, bytes_per_s=1e9, bytes_per_token=0),
    )
    assert iq.simulate(work, pair).requests["drafted_tokens"][0] == 0


def test_a_stated_rate_precedes_the_column_and_eagle_reads_none() -> None:
    frame = drawn().frame.with_columns(proposal_rate=pl.lit(0.0))
    work, plain = iq.Workload(frame), drawn()
    for drafts in (looked_up(1.0), iq.Speculation(tokens=3, acceptance=0.6)):
        with_column, without = (
            iq.simulate(each, engine(drafts)) for each in (work, iq.Workload(plain.frame))
        )
        assert with_column.requests.equals(without.requests)


def test_an_unknown_proposal_rate_is_a_finding() -> None:
    frame = drawn().frame
    kinds = {
        (rate, column): [
            finding.kind
            for finding in iq.simulate(
                iq.Workload(frame.with_columns(proposal_rate=pl.lit(0.5)) if column else frame),
                engine(looked_up(rate)),
            ).findings
        ]
        for rate, column in ((None, False), (None, True), (0.5, False))
    }
    assert {key: "proposals-assumed" in found for key, found in kinds.items()} == {
        (None, False): True,
        (None, True): False,
        (0.5, False): False,
    }
    for values, message in (
        ([0.5, 1.5], "row 1: proposal_rate is 1.5, must be from 0 to 1"),
        ([0.5, None], "null"),
    ):
        asked = {"arrival_s": [0.0, 1.0], "prompt_tokens": [3, 3], "output_tokens": [2, 2]}
        with pytest.raises(iq.TraceError, match=message):
            iq.Workload({**asked, "proposal_rate": values})


def test_parts_and_lists_are_as_the_whole(tmp_path: Path) -> None:
    """A run to a directory, and the draws written out as a column, give the very same requests."""
    frame = drawn(300, 30.0).frame
    told = frame.with_columns(
        accepted=pl.Series([[(7 * row + entry) % 4 for entry in range(60)] for row in range(frame.height)])
    )
    for system in (
        engine(iq.Speculation(tokens=3)),
        iq.Cluster(engine(iq.Speculation(tokens=3)), replicas=2, router=iq.RoundRobin()),
    ):
        whole = iq.simulate(iq.Workload(told), system)
        stored = iq.simulate(iq.Workload(told), system, out=tmp_path / type(system).__name__)
        assert stored.requests.collect().equals(whole.requests)
        assert stored.itl.equals(whole.itl)
        again = iq.simulate(iq.Workload(told), system, stepping=True)
        assert again.requests.equals(whole.requests)


def test_a_request_that_is_handed_off_goes_on_with_its_drafts() -> None:
    """The prefill side has none; on the other side the first row is filled up: entry 1 is not asked."""
    asked = one(6, accepted=[[0, 3, 2, 3, 0, 0]])
    pair = iq.Disaggregated(
        prefill=(engine(None), 1),
        decode=(engine(iq.Speculation(tokens=3)), 1),
        link=iq.Link(latency_s=0, bytes_per_s=1e9, bytes_per_token=0),
    )
    result = iq.simulate(asked, pair, batches=True)
    # Alone, with its context: filled up to 4 tokens, of which none is accepted; then two are, then the last.
    assert result.batches.select("tokens", "emitted_tokens").rows() == [(30, 1), (4, 1), (4, 3), (4, 1)]
    both = iq.Disaggregated(
        prefill=(engine(iq.Speculation(tokens=3)), 1),
        decode=(engine(iq.Speculation(tokens=3)), 1),
        link=iq.Link(latency_s=0, bytes_per_s=1e9, bytes_per_token=0),
    )
    assert iq.simulate(asked, both).requests.drop("replica").equals(result.requests.drop("replica"))


def test_text_and_records_bring_it_back(tmp_path: Path) -> None:
    drafts = iq.Speculation(
        tokens=2, acceptance=[0.7, 0.3], method="ngram", drafter=iq.Constant(0.001), proposal_rate=0.3
    )
    system = engine(drafts)
    assert iq.Engine.from_json(system.to_json()) == system
    result = iq.simulate(drawn(), system)
    assert iq.simulate(iq.Workload(drawn().frame), iq.Engine.from_json(system.to_json())).requests.equals(
        result.requests
    )
    served = iq.Engine.on(
        "llama-3.1-8b", "h100-80gb", scheduler={"speculation": {"tokens": 2, "acceptance": 0.5}}
    )
    assert served.scheduler.speculative_decoding() == iq.Speculation(tokens=2, acceptance=0.5)
    (tmp_path / "scenario.toml").write_text("""
        [workload]
        requests = 20
        arrivals = { kind = "Poisson", rate = 4 }
        prompt = { kind = "Fixed", tokens = 50 }
        output = { kind = "Fixed", tokens = 40 }
        [engine]
        kv = "unlimited"
        timing = { kind = "PiecewiseLinear", base = 0.02, per_token = 0.0001 }
        [engine.scheduler]
        kind = "VllmV1"
        [engine.scheduler.speculation]
        tokens = 3
        acceptance = 0.6
        method = "ngram"
        proposal_rate = 0.4
    """)
    scenario = iq.Scenario.read(tmp_path / "scenario.toml")
    run = scenario.run()
    assert 0 < run.requests["drafted_tokens"].sum() < 20 * 39 * 3
    assert iq.Scenario.read(run.scenario).run().requests.equals(run.requests)


def test_a_rate_of_a_job_applies_to_its_stages() -> None:
    """Of two jobs of two stages, that with rate 0 has drafts in no stage, that with rate 1 in both."""
    drafts = engine(looked_up(None), kv=iq.KvCache.unlimited())
    lengths = {"prompt": iq.dist.Fixed(9), "output": iq.dist.Fixed(20)}
    stages = {"first": iq.Stage("llm", **lengths), "second": iq.Stage("llm", after="first", **lengths)}
    network = iq.Network({"llm": drafts}, [iq.Workflow("two", stages)])
    jobs = iq.Workload({"arrival_s": [0.0, 0.0], "proposal_rate": [0.0, 1.0]})
    requests = iq.simulate(jobs, network).requests.sort("job", "stage")
    assert (requests["drafted_tokens"] > 0).to_list() == [False, False, True, True]


def test_theory_says_what_a_row_emits_and_proves_no_more_than_it_knows() -> None:
    asked = iq.theory.RequestClass(rate=5, prompt=100, output=100)
    drafts = iq.Speculation(tokens=3, acceptance=0.5)
    assert drafts.expected_tokens() == 1 + 0.5 + 0.25 + 0.125
    assert iq.Speculation(tokens=2, acceptance=[0.75, 0.5]).expected_tokens() == 2.25
    assert iq.Speculation(tokens=2).expected_tokens() is None
    judged = iq.theory.stability(asked, engine(drafts, kv=iq.KvCache.unlimited()))
    assert judged.verdict == "unknown"
    # 1 + 0.4 · 3 tokens are loaded, and 1 + 0.4 · (0.5 + 0.25 + 0.125) emitted.
    lookup = iq.theory.stability(asked, engine(looked_up(0.4, acceptance=0.5), kv=iq.KvCache.unlimited()))
    assert "a row of 2.2 tokens on average emits 1.35 on average" in lookup.explain()
    assert looked_up(None).expected_tokens() is None
    unknown = iq.theory.stability(asked, engine(looked_up(None), kv=iq.KvCache.unlimited()))
    assert "a row of up to 4 tokens emits up to 4, depending on the workload" in unknown.explain()
    assert "a row of 4 tokens emits 1.875 on average" in judged.explain()
    # 128 seats and 20 ms would be no more than 64 requests of 100 iterations each; drafts make it more.
    fast = iq.Speculation(tokens=3, acceptance=1.0)
    flood = iq.theory.RequestClass(rate=100, prompt=100, output=100)
    assert iq.theory.stability(flood, engine(fast, kv=iq.KvCache.unlimited())).verdict == "unknown"
    # 600 · (100 + 99) tokens a second are more than a budget of 2,048 in 20 ms, with drafts as without.
    assert iq.theory.stability(flood, engine(fast, kv=iq.KvCache.unlimited()), rate=600).verdict == "unstable"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": 0}, "^tokens: must be from 1 to 1024, got 0"),
        ({"tokens": 1025}, "^tokens: must be from 1 to 1024, got 1025"),
        ({"tokens": 2, "acceptance": -0.1}, "^acceptance: must be from 0 to 1, got -0.1"),
        ({"tokens": 2, "acceptance": [0.5]}, r"^acceptance: must have one rate per draft \(2\), got 1"),
        (
            {"tokens": 2, "acceptance": [0.5, 0.6]},
            r"^acceptance\[1\]: must be at most the rate before it \(0.5\), got 0.6",
        ),
        ({"tokens": 2, "method": "medusa"}, "^method"),
        ({"tokens": 2, "drafter": -0.5}, "^drafter: must be from 0 .*got -0.5"),
        ({"tokens": 2, "drafter": "small"}, "^drafter"),
        (
            {"tokens": 2, "method": "ngram", "proposal_rate": 1.5},
            "^proposal_rate: must be from 0 to 1, got 1.5",
        ),
        (
            {"tokens": 2, "method": "ngram", "proposal_rate": -0.1},
            "^proposal_rate: must be from 0 to 1, got -0.1",
        ),
        (
            {"tokens": 2, "proposal_rate": 0.5},
            '^proposal_rate: must be None for method "eagle", .* got 0.5',
        ),
    ],
)
def test_wrong_numbers_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(iq.ConfigError, match=message):
        iq.Speculation(**given)


def test_findings_say_what_drafts_do_not_tell() -> None:
    free = iq.simulate(one(6, accepted=[[0, 3, 3]]), engine(iq.Speculation(tokens=3)))
    assert [finding.kind for finding in free.findings if "draft" in finding] == ["drafts-free"]
    # A budget of 3 verifies 2 drafts at most: the lists end before the outputs do.
    priced = {"timing": iq.PiecewiseLinear(base=0.02, per_token=0.0001), "token_budget": 3}
    cut = iq.simulate(one(6, accepted=[[0, 3, 3]]), engine(iq.Speculation(tokens=3), **priced))
    assert [finding.kind for finding in cut.findings if "draft" in finding] == ["drafts-over-budget"]
    shorter = iq.simulate(one(9, accepted=[[0, 3, 3]]), engine(iq.Speculation(tokens=3), **priced))
    assert {finding.kind for finding in shorter.findings if "draft" in finding} == {
        "drafts-over-budget",
        "accepted-too-short",
    }


def test_what_does_not_go_together_is_named() -> None:
    told = iq.Speculation(tokens=3)
    with pytest.raises(iq.ConfigError, match=r"^kv\.prefix_cache: must be .*radix"):
        engine(told, kv=iq.KvCache(tokens=160, prefix_cache="radix"))
    with pytest.raises(
        iq.ConfigError, match=r"^speculation\.acceptance: .*column accepted, which the workload lacks"
    ):
        iq.simulate(one(3), engine(told))
    for accepted, message in [
        ([0, 1], "^row 0: accepted has 2 entries, which emit 3 of 6 output tokens"),
        (None, "^row 0: accepted must be a list of integers.*, got None"),
        ([0, -1, 3, 3], r"^row 0: accepted must be .*, got \[0, -1, 3, 3\]"),
    ]:
        lists = pl.Series([accepted], dtype=pl.List(pl.Int64))
        with pytest.raises(iq.TraceError, match=message):
            iq.simulate(one(6, accepted=lists), engine(told))
