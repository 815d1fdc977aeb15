"""Shared prefixes of random workloads before and after transforms.

A reference expands every row token by token, independently of inferq. Two prompts share a prefix as far as
their lists of tokens agree.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.results import store
from inferq.workload import parts
from inferq.workload.prefixes import NO_ROW, OWN, Chains, Contents

from .arriving import arriving
from .refusals import refused

Token = tuple[Any, ...]
PAIR = pl.List(pl.Struct({"text": pl.String, "tokens": pl.Int64}))


def expanded(frame: pl.DataFrame) -> list[tuple[list[Token], list[Token]]]:
    """Return the tokens of every row's prompt and output."""
    texts: list[tuple[list[Token], list[Token]]] = []
    last: dict[Any, int] = {}
    explicit = {"prefix_hashes", "prefix_parts", "continues"} & set(frame.columns)
    for at, row in enumerate(frame.iter_rows(named=True)):
        prompt = row["prompt_tokens"]
        begin: list[Token] = []
        earlier = row.get("continues")
        if not explicit and row.get("session_id") is not None and row.get("turn") is not None:
            before = last.get(row["session_id"])
            if before is not None and sum(map(len, texts[before])) <= prompt:
                earlier = before
            last[row["session_id"]] = at
        if row.get("prefix_hashes") is not None:
            block = row["prefix_block_tokens"]
            begin = [("hash", code, k) for code in row["prefix_hashes"] for k in range(block)][:prompt]
        elif row.get("prefix_parts") is not None:
            begin = [("text", part["text"], k) for part in row["prefix_parts"] for k in range(part["tokens"])]
        elif earlier is not None:
            begin = texts[earlier][0] + texts[earlier][1]
        own = [("own", at, k) for k in range(prompt - len(begin) + row["output_tokens"])]
        rest = prompt - len(begin)
        texts.append((begin + own[:rest], own[rest:]))
    return texts


def chained(frame: pl.DataFrame, chains: Any) -> list[list[Token]]:
    """Return the tokens of every prompt according to the chains."""
    prompts = []
    for at, prompt in enumerate(frame["prompt_tokens"].to_list()):
        tokens: list[Token] = []
        if chains is not None:
            for segment in range(int(chains.start[at]), int(chains.start[at + 1])):
                tokens += [(int(chains.content[segment]), k) for k in range(int(chains.tokens[segment]))]
        prompts.append(tokens + [(OWN | at, k) for k in range(prompt - len(tokens))])
    return prompts


def shared(left: list[Token], right: list[Token]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def all_shared(prompts: list[list[Token]]) -> list[list[int]]:
    return [[shared(left, right) for right in prompts] for left in prompts]


@st.composite
def requests(
    draw: st.DrawFn, ways: tuple[str | None, ...] = ("hashes", "parts", "continues", None)
) -> pl.DataFrame:
    """Rows with all kinds of prefixes, from few hashes and texts, so that many prefixes are shared."""
    rows = draw(st.integers(1, 9))
    block = draw(st.sampled_from([1, 3, 4]))
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_tokens", "output_tokens", "prefix_hashes", "prefix_parts", "continues")
    }
    far = st.sampled_from([0, 1, 2, -5, 2**62 - 1, 2**62, 2**63 - 1])
    for row in range(rows):
        prompt, output = draw(st.integers(1, 14)), draw(st.integers(1, 6))
        hashes = texts = earlier = None
        way = draw(st.sampled_from(ways))
        if way == "hashes":
            count = draw(st.sampled_from([prompt // block, -(-prompt // block)]))
            hashes = draw(st.lists(far, min_size=count, max_size=count))
        elif way == "parts":
            texts, left = [], prompt
            while left and draw(st.booleans()):
                tokens = draw(st.integers(1, left))
                texts.append({"text": draw(st.sampled_from(["a", "b"])), "tokens": tokens})
                left -= tokens
        elif way == "continues" and row:
            earlier = draw(st.integers(0, row - 1))
            prompt = (
                columns["prompt_tokens"][earlier]
                + columns["output_tokens"][earlier]
                + draw(st.integers(0, 4))
            )
        for name, value in zip(columns, (prompt, output, hashes, texts, earlier), strict=True):
            columns[name].append(value)
    types: dict[str, Any] = {"prefix_hashes": pl.List(pl.Int64), "prefix_parts": PAIR, "continues": pl.Int32}
    series = [pl.Series(name, values, dtype=types.get(name)) for name, values in columns.items()]
    arrivals = pl.Series("arrival_s", np.arange(rows) * 1000.0)
    blocks = pl.Series("prefix_block_tokens", [block] * rows)
    return iq.Workload(pl.DataFrame([arrivals, *series, blocks])).frame


@st.composite
def conversations(draw: st.DrawFn) -> pl.DataFrame:
    """Turns of sessions that grow or are truncated, and rows without sessions or turns."""
    rows = draw(st.integers(1, 10))
    last: dict[Any, tuple[int, int]] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_tokens", "output_tokens", "session_id", "turn")
    }
    for _ in range(rows):
        session = draw(st.sampled_from(["x", "y", None]))
        turn, context = last.get(session, (-1, 0))
        prompt = draw(st.integers(1, 9)) + draw(st.sampled_from([0, context]))
        output = draw(st.integers(1, 5))
        number = None if draw(st.integers(0, 5)) == 0 else turn + draw(st.integers(1, 2))
        if number is not None:
            last[session] = (number, prompt + output)
        for name, value in zip(columns, (prompt, output, session, number), strict=True):
            columns[name].append(value)
    types: dict[str, Any] = {"session_id": pl.String, "turn": pl.Int32}
    series = [pl.Series(name, values, dtype=types.get(name)) for name, values in columns.items()]
    return iq.Workload(pl.DataFrame([pl.Series("arrival_s", np.arange(rows) * 1000.0), *series])).frame


FRAMES = st.one_of(requests(), conversations())


@given(frame=FRAMES)
def test_chains_share_as_much_as_the_tokens(frame: pl.DataFrame) -> None:
    prompts = [prompt for prompt, _ in expanded(frame)]
    whole = Contents().of(frame)
    assert all_shared(chained(frame, whole)) == all_shared(prompts)
    # The core receives only the segments after the continued row's chain.
    assert whole is None or _unrolled(Contents().linked(frame)) == _unrolled(whole)


def _unrolled(linked: Chains | None) -> list[list[tuple[int, int]]]:
    """Return the complete chain of each row."""
    assert linked is not None
    chains: list[list[tuple[int, int]]] = []
    segments = list(zip(linked.content.tolist(), linked.tokens.tolist(), strict=True))
    for row, (start, end) in enumerate(itertools.pairwise(linked.start.tolist())):
        after = NO_ROW if linked.after is None else int(linked.after[row])
        chains.append(([] if after == NO_ROW else chains[after]) + segments[start:end])
    return chains


@given(frame=FRAMES, block=st.sampled_from([1, 2, 4]))
def test_reuse_is_the_shared_prefix_and_the_hits_of_an_unlimited_cache(
    frame: pl.DataFrame, block: int
) -> None:
    texts = expanded(frame)
    expected = []
    for at, (prompt, _) in enumerate(texts):
        # The last token of an answer is never computed, and the last token of a prompt always is.
        before = [
            shared(prompt[:-1], (earlier + answer)[:-1]) // block * block for earlier, answer in texts[:at]
        ]
        expected.append(max(before, default=0))
    work = iq.Workload(frame)
    assert work.reuse(block).to_list() == expected
    for kind in ("blocks", "radix"):
        cache = iq.KvCache(tokens=None, block=block, prefix_cache=kind)
        engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=cache)
        assert iq.simulate(work, engine).requests["cached_tokens"].to_list() == expected


def test_describe_includes_reuse() -> None:
    columns = {"prompt_tokens": [40, 40], "output_tokens": [1, 1], "prefix_parts": [[[7, 33]], [[7, 40]]]}
    table = iq.Workload(columns).describe()
    assert table.filter(column="reused_tokens").select("count", "mean", "max").row(0) == (2, 16.0, 32.0)
    assert table.filter(column="reused_share")["mean"].to_list() == [32 / 80]
    plain = iq.Workload({"prompt_tokens": [40, 40], "output_tokens": [1, 1]})
    assert not plain.describe()["column"].str.starts_with("reused").any()
    assert plain.reuse().to_list() == [0, 0]


# Transforms


@given(frame=FRAMES, other=FRAMES, data=st.data())
def test_a_merge_keeps_prefixes_of_its_parts(
    frame: pl.DataFrame, other: pl.DataFrame, data: st.DataObject
) -> None:
    """Prefixes implied by sessions are kept too, when another part has prefix columns."""
    names = {"one": frame, "two": other}
    if (
        len(
            {
                part["prefix_block_tokens"][0]
                for part in names.values()
                if "prefix_block_tokens" in part.columns
            }
        )
        > 1
    ):
        return  # all parts must have the same block size
    shift = data.draw(st.sampled_from([0.0, 0.5, 1500.0]))
    later = iq.Workload(other.with_columns(pl.col("arrival_s") + shift))
    merged = iq.Workload.mix({"one": iq.Workload(frame), "two": later}).frame
    place = {name: np.flatnonzero((merged["class"] == name).to_numpy()) for name in names}
    prompts = chained(merged, Contents().of(merged))
    for name, part in names.items():
        part_prompts = [prompts[row] for row in place[name]]
        assert all_shared(part_prompts) == all_shared([prompt for prompt, _ in expanded(part)])
    # Hashes and texts are the same content in both parts; sessions and rows are not.
    for row, (prompt, _) in enumerate(expanded(frame)):
        for column, (other_prompt, _) in enumerate(expanded(other)):
            common = shared(prompt, other_prompt)
            own = next((at for at, token in enumerate(prompt) if token[0] == "own"), len(prompt))
            assert shared(prompts[place["one"][row]], prompts[place["two"][column]]) == min(common, own)


@given(frame=st.one_of(requests(ways=("hashes", "parts", None)), conversations()), data=st.data())
def test_a_cut_keeps_shared_prefixes_of_the_remaining_rows(frame: pl.DataFrame, data: st.DataObject) -> None:
    work = iq.Workload(frame)
    if data.draw(st.booleans()) and not frame.columns.__contains__("prefix_hashes"):
        work = work.with_prefix("system", 3)
    start = data.draw(st.integers(0, frame.height - 1))
    end = data.draw(st.integers(start + 1, frame.height))
    cut = work.window(start * 1000.0, end * 1000.0).speed(2).frame
    lengths = all_shared(chained(cut, Contents().of(cut)))
    whole = all_shared([prompt for prompt, _ in expanded(work.frame)])
    assert lengths == [line[start:end] for line in whole[start:end]]
    rest = work.split(start)[1].at_rate(5).frame if 0 < start < frame.height - 1 else None
    if rest is not None:
        assert all_shared(chained(rest, Contents().of(rest))) == [line[start:] for line in whole[start:]]
    first = work.head(end).frame
    assert all_shared(chained(first, Contents().of(first))) == [line[:end] for line in whole[:end]]


def test_a_fork_from_a_removed_row_is_dropped() -> None:
    work = iq.Workload({"prompt_tokens": [5, 9, 9], "output_tokens": [3] * 3, "continues": [None, 0, 0]})
    assert work.reuse(1).to_list() == [0, 7, 8]
    assert work.split(1)[1].frame["continues"].to_list() == [None, None]


@given(frame=st.one_of(requests(ways=("parts", "continues", None)), conversations()))
def test_a_prefix_is_shared_by_all_prompts(frame: pl.DataFrame) -> None:
    longer = iq.Workload(frame).with_prefix("system", 7).frame
    assert (longer["prompt_tokens"] - frame["prompt_tokens"] == 7).all()
    before = all_shared([prompt for prompt, _ in expanded(frame)])
    assert all_shared(chained(longer, Contents().of(longer))) == [
        [length + 7 for length in line] for line in before
    ]


def test_a_prefix_of_a_synthetic_workload_is_applied_when_drawn() -> None:
    workload = arriving(5, 1, iq.dist.Uniform(1, 9), 2).with_prefix("system", 100)
    assert workload.draw(3).reuse(block=10).to_list() == [0, 100, 100, 100, 100]
    mixed = iq.Workload.mix({"a": workload, "b": workload}, requests=30).draw(1)
    assert mixed.reuse(block=10).sum() == 29 * 100


@refused(
    (
        {"prompt_tokens": [3], "prefix_hashes": [[1]], "prefix_block_tokens": [3]},
        "row 0: not supported with prefix_hashes",
    ),
    ({"output_tokens": [3]}, "requires prompt_tokens"),
    ({"prompt_tokens": [3], "session_id": [1], "turn": [0]}, "requires output_tokens to link the turns"),
    ({"prompt_tokens": [2**31 - 1]}, "row 0: prompt_tokens is 2147483657"),
    error=iq.TraceError,
)
def test_a_prefix_that_does_not_fit_is_an_error(columns: dict[str, Any]) -> None:
    iq.Workload(columns).with_prefix("system", 10)


@pytest.mark.parametrize(("text", "tokens"), [("", 1), (3, 1), ("a", 0), ("a", 1.5), ("a", True)])
def test_a_prefix_requires_a_name_and_tokens(text: Any, tokens: Any) -> None:
    with pytest.raises(iq.ConfigError, match=r"text|tokens"):
        iq.Workload({"prompt_tokens": [3]}).with_prefix(text, tokens)


def test_a_sample_of_rows_that_continue_others_is_an_error() -> None:
    work = iq.Workload({"prompt_tokens": [5, 9], "output_tokens": [3, 3], "continues": [None, 0]})
    with pytest.raises(iq.TraceError, match="sample: not supported with the column continues"):
        work.sample(5, seed=1)


def test_a_merge_names_the_part_whose_turns_run_backwards() -> None:
    lengths = {"arrival_s": [0.0, 1.0], "prompt_tokens": [30, 30], "output_tokens": [1, 1]}
    backwards = iq.Workload({**lengths, "session_id": ["a", "a"], "turn": [1, 0]})
    texts = iq.Workload({**lengths, "prefix_parts": [[[1, 2]], [[1, 2]]]})
    with pytest.raises(iq.TraceError, match="part 'b': row 1: turn 0 of session 'b/a' is after turn 1"):
        iq.Workload.mix({"a": texts, "b": backwards})
    with pytest.raises(iq.TraceError, match="concat: workload 1: row 1: turn 0"):
        texts.concat(backwards)


# Parts


def _same_bytes(work: iq.Workload, engine: Any, out: Path, **options: Any) -> None:
    stored: Any = iq.simulate(work, engine, out=out, **options)
    whole = iq.simulate(work, engine, **options)
    assert stored.requests.collect().equals(whole.requests)
    assert stored.timeline.equals(whole.timeline)
    assert (stored.totals, stored.findings) == (whole.totals, whole.findings)


@settings(max_examples=40)
@given(frame=FRAMES, size=st.sampled_from([1, 2, 3, 5]))
def test_chains_do_not_depend_on_the_parts(frame: pl.DataFrame, size: int) -> None:
    whole = Contents().of(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "ROWS", size)
        cut = parts.FrameParts(frame)
        contents, first, unrolled = Contents(cut.later_links()), 0, []
        for part in cut.frames():
            chains = contents.of(part, first)
            assert chains is not None and chains.start.size == part.height + 1
            unrolled += _unrolled(chains)
            first += part.height
        assert not contents._rows.size  # no row is needed after the last part
    assert unrolled == ([[]] * frame.height if whole is None else _unrolled(whole))


def test_turns_in_a_part_have_only_their_new_segment() -> None:
    """The first turn of a part has the complete chain."""
    turns = np.arange(300)
    session = {"session_id": np.zeros(300, dtype=int), "turn": turns, "prompt_tokens": 10 + 10 * turns}
    frame = iq.Workload({"arrival_s": turns * 1.0, "output_tokens": np.full(300, 10), **session}).frame
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "ROWS", 100)
        cut = parts.FrameParts(frame)
        contents = Contents(cut.later_links())
        chains = [contents.of(part, 100 * at) for at, part in enumerate(cut.frames())]
    lengths = [np.diff(part.start).tolist() for part in chains if part is not None]
    assert lengths == [[first, *[1] * 99] for first in (0, 100, 200)]


@settings(max_examples=25)
@given(frames=st.lists(FRAMES, min_size=1, max_size=6), data=st.data())
def test_a_run_in_parts_writes_the_bytes_of_the_run_in_memory(
    frames: list[pl.DataFrame], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    blocks = {part["prefix_block_tokens"][0] for part in frames if "prefix_block_tokens" in part.columns}
    if len(blocks) > 1:
        return
    close = [part.with_columns(pl.col("arrival_s") / 30_000) for part in frames]
    merged = iq.Workload.mix({str(number): iq.Workload(part) for number, part in enumerate(close)})
    cache = iq.KvCache(
        tokens=data.draw(st.sampled_from([None, 120])),
        block=data.draw(st.sampled_from([1, 4])),
        prefix_cache=data.draw(st.sampled_from(["blocks", "radix"])),
    )
    timing = iq.PiecewiseLinear(base=0.01, per_token=0.001, knee=4)
    engine = iq.Engine(timing=timing, scheduler=iq.VllmV1(token_budget=16, max_seqs=4), kv=cache)
    system: Any = engine
    if data.draw(st.booleans()) and data.draw(st.booleans()):
        link = iq.Link(latency_s=0.01, bytes_per_s=1e6, bytes_per_token=100)
        roomy = replace(engine, kv=replace(cache, tokens=None))
        system = iq.Disaggregated(prefill=(roomy, 2), decode=(roomy, 1), link=link)
    elif data.draw(st.booleans()):
        system = iq.Cluster(
            engine, replicas=2, router=data.draw(st.sampled_from([iq.RoundRobin(), iq.LeastKv()]))
        )
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "ROWS", data.draw(st.sampled_from([4, 8, 1000])))
        patch.setattr(store, "PART_ROWS", 7)
        _same_bytes(merged, system, folder / "out")
        merged.frame.write_parquet(folder / "work.parquet")
        _same_bytes(iq.Workload.scan(folder / "work.parquet"), system, folder / "scanned")


@pytest.mark.parametrize("kind", [pl.String, pl.Int64, pl.Categorical])
def test_sessions_of_a_scanned_file_continue_across_parts(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 40
    turn = np.arange(rows) // 5
    work = pl.DataFrame(
        {
            "arrival_s": np.arange(rows) * 1000.0,
            "prompt_tokens": 10 + 30 * turn,
            "output_tokens": [20] * rows,
            "session_id": pl.Series(np.arange(rows) % 5).cast(pl.String).cast(kind),
            "turn": turn,
        }
    )
    work.write_parquet(tmp_path / "work.parquet")
    scanned = iq.Workload.scan(tmp_path / "work.parquet")
    cache = iq.KvCache(tokens=None, block=1, prefix_cache="blocks")
    engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=cache)
    monkeypatch.setattr(parts, "ROWS", 4)
    stored: Any = iq.simulate(scanned, engine, out=tmp_path / "out")
    # The previous prompt and all but one token of the previous answer are cached.
    assert stored.requests.collect()["cached_tokens"].to_list() == [
        max(0, 30 * number - 1) for number in turn.tolist()
    ]
    _same_bytes(scanned, engine, tmp_path / "again")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prefix_hashes", [1], "row 9: prefix_hashes has 1 hashes, must have 3 for a prompt of 20 tokens"),
        ("prefix_hashes", [1, 2, 3, 4], "row 9: prefix_hashes has 4 hashes"),
        ("prefix_hashes", [1, None, 3], "row 9: prefix_hashes contains null"),
        ("prefix_block_tokens", 16, "row 9: prefix_block_tokens is 16, must be 8 as in earlier rows"),
        (
            "prefix_parts",
            [{"text": None, "tokens": 3}],
            "row 9: prefix_parts has null as the name of a text",
        ),
        ("prefix_parts", [{"text": "a", "tokens": 0}], "row 9: prefix_parts has 0 tokens"),
        (
            "prefix_parts",
            [{"text": "a", "tokens": 21}],
            "row 9: prefix_parts has 21 tokens, must have at most prompt_tokens, 20",
        ),
        ("prefix_parts", [{"text": "a", "tokens": 2**62}] * 4, "row 9: prefix_parts has"),
        ("continues", 3, "row 9: prompt_tokens is 20, must be at least 22, the tokens of row 3"),
        ("turn", 2, "row 9: turn 2 of session 1 is after turn 8"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_names_the_row_of_the_workload_not_of_the_part(
    column: str, value: Any, message: str, streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: dict[str, list[Any]] = {
        "prefix_hashes": [[1, 2, 3]] * 12,
        "prefix_parts": [[{"text": "a", "tokens": 3}]] * 12,
        "continues": [None] * 12,
        "turn": list(range(12)),
    }
    prefix = "prefix_hashes" if column == "prefix_block_tokens" else column
    columns: dict[str, list[Any]] = {
        "arrival_s": [0.0] * 12,
        "prompt_tokens": [20] * 12,
        "output_tokens": [2] * 12,
        prefix: good[prefix],
    }
    if prefix == "prefix_hashes":
        columns["prefix_block_tokens"] = [8] * 12
    if prefix == "turn":
        columns["session_id"] = [1] * 12
    columns[column] = [value if row == 9 else other for row, other in enumerate(columns[column])]
    cache = iq.KvCache(tokens=None, prefix_cache="blocks")
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(), kv=cache)
    monkeypatch.setattr(parts, "ROWS", 4)
    pl.DataFrame(columns, strict=False).write_parquet(tmp_path / "work.parquet")
    with pytest.raises(iq.TraceError, match=message):
        iq.simulate(
            iq.Workload.scan(tmp_path / "work.parquet"), engine, out=tmp_path / "out" if streamed else None
        )


@refused(
    ([[[1, 2, 3]]], r"row 0: prefix_parts is \[\[1, 2, 3\]\], must be pairs"),
    ([[1, 2]], "prefix_parts: must contain lists of pairs of a text and its tokens, got List"),
    ([[[1.5, 2.0]]], r"prefix_parts: must contain pairs of a name \(string or integer\) and an integer"),
    ([[["a", "3"]]], r"prefix_parts: must contain pairs of a name \(string or integer\) and an integer"),
    error=iq.TraceError,
)
def test_prefix_parts_that_are_not_pairs_are_an_error(prefix_parts: Any) -> None:
    iq.Workload({"prompt_tokens": [9], "prefix_parts": prefix_parts}).reuse()
