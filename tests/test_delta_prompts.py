"""Logs whose prompts hold only the new tokens of a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

import inferq as iq

_LOG = {
    "arrival_s": [0.0, 30.0, 60.0],
    "prompt_tokens": [1000, 32, 40],
    "output_tokens": [50, 10, 10],
    "session_id": ["a", "a", "a"],
    "turn": [0, 1, 2],
}


def _server() -> iq.Engine:
    kv = iq.KvCache(tokens=100_000, prefix_cache="blocks")
    return iq.Engine(timing=iq.Constant(0.1), scheduler=iq.VllmV1(), kv=kv)


def _kinds(run: iq.Result) -> list[str]:
    return [finding.kind for finding in run.findings]


@pytest.mark.parametrize("think", [False, True])
def test_prompts_shorter_than_the_conversation_are_reported(think: bool) -> None:
    log = iq.Workload(_LOG | ({"think_s": [None, 20.0, 20.0]} if think else {}))
    run = iq.simulate(log, _server())
    (finding,) = [finding for finding in run.findings if finding.kind == "delta-prompts"]
    # Row 1 has 32 tokens after a conversation of 1000 + 50; row 2 has 40 after 32 + 10.
    assert finding.data == {"count": 2, "total": 2, "row": 1}
    assert "row 1: 32, before it 1,050" in finding


def test_accumulated_turns_reuse_the_conversation() -> None:
    work = iq.Workload(_LOG).accumulate_turns()
    assert work.frame["prompt_tokens"].to_list() == [1000, 1082, 1132]
    run = iq.simulate(work, _server())
    assert "delta-prompts" not in _kinds(run)
    # Whole blocks of 16 of the conversations of 1,050 and 1,092 tokens.
    assert run.requests["cached_tokens"].to_list() == [0, 1040, 1088]
    assert iq.Scenario.read(run.scenario).run().requests.equals(run.requests)


def test_rows_without_session_and_other_sessions_are_not_added() -> None:
    log = {
        "arrival_s": [0.0, 1.0, 2.0, 3.0, 4.0],
        "prompt_tokens": [10, 20, 30, 40, 50],
        "output_tokens": [1, 2, 3, 4, 5],
        "session_id": ["a", "b", None, "a", None],
    }
    work = iq.Workload(log).accumulate_turns()
    assert work.frame["prompt_tokens"].to_list() == [10, 20, 30, 40 + 11, 50]


def test_whole_prompts_and_a_few_cut_conversations_are_not_reported() -> None:
    whole = {**_LOG, "prompt_tokens": [1000, 1082, 600]}  # the client cut the last turn
    log = {name: [*values, *values] for name, values in whole.items()}
    log |= {"session_id": ["a"] * 3 + ["b"] * 3, "arrival_s": [0.0, 30.0, 60.0, 61.0, 90.0, 120.0]}
    log["prompt_tokens"] = [1000, 1082, 600, 1000, 1082, 1132]
    assert "delta-prompts" not in _kinds(iq.simulate(log, _server()))


def test_deltas_of_a_scenario(tmp_path: Path) -> None:
    iq.Workload(_LOG).frame.write_csv(tmp_path / "log.csv")
    (tmp_path / "s.toml").write_text(
        '[workload]\ntrace = "log.csv"\ndeltas = true\n'
        '[engine]\nkv = "unlimited"\ntiming = { kind = "Constant", seconds = 0.1 }\n'
        'scheduler = { kind = "Sarathi" }\n'
    )
    run = iq.Scenario.read(tmp_path / "s.toml").run()
    assert run.requests["prompt_tokens"].to_list() == [1000, 1082, 1132]


def test_columns_that_describe_whole_prompts_are_refused() -> None:
    hashes = iq.Workload({**_LOG, "prefix_hashes": [[1], [1], [1]]})
    with pytest.raises(iq.TraceError, match="accumulate_turns: not supported with prefix_hashes"):
        hashes.accumulate_turns().frame  # noqa: B018
