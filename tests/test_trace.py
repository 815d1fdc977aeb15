import csv
import gzip
import importlib.util
import io
import json
import math
import os
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.workload.traces.read_trace import FORMATS

from .refusals import refused

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
INFERQ = "arrival_s,prompt_tokens,output_tokens\n"
TEXT = {"tokens_per_word": 1.0}
NAMED = {
    "columns": {
        "arrival_s": "when",
        "prompt_tokens": "input_len",
        "output_tokens": "output_len",
        "class": "kind",
    }
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write a file whose name does not reveal its content."""

    def put(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put


def conversation(*messages: tuple[str, str], name: str = "a") -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": sender, "value": text} for sender, text in messages]}


# The samples of this repository


@pytest.mark.parametrize(
    ("name", "arguments", "format", "columns", "rows"),
    [
        ("azure_2023.csv", {}, "azure", "arrival_s prompt_tokens output_tokens", 300),
        ("azure_2024.csv", {}, "azure", "arrival_s prompt_tokens output_tokens", 100),
        ("burstgpt.csv", {}, "burstgpt", "arrival_s prompt_tokens output_tokens class", 107),
        (
            "mooncake.jsonl",
            {},
            "mooncake",
            "arrival_s prompt_tokens output_tokens prefix_hashes prefix_block_tokens",
            80,
        ),
        ("sharegpt.json", TEXT, "sharegpt", "prompt_tokens output_tokens session_id turn", 122),
        ("longbench_v2.json", TEXT, "longbench", "prompt_tokens class prefix_parts", 50),
        ("longbench_v2.jsonl", TEXT, "longbench", "prompt_tokens class prefix_parts", 50),
        ("dolly.jsonl", TEXT, "dolly", "prompt_tokens output_tokens class", 60),
        ("inferq.csv", {}, "inferq", "arrival_s prompt_tokens output_tokens class", 100),
        ("inferq.parquet", {}, "inferq", "arrival_s prompt_tokens output_tokens class", 100),
        ("vidur.csv", {}, "vidur", "arrival_s prompt_tokens output_tokens", 100),
        ("table.csv", NAMED, "table", "arrival_s prompt_tokens output_tokens class", 100),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_format_of_a_sample_is_detected_from_its_content(
    samples: Path,
    write: Callable[[bytes], Path],
    name: str,
    arguments: dict[str, Any],
    format: str,
    columns: str,
    rows: int,
    packed: bool,
) -> None:
    content = (samples / name).read_bytes()
    path = write(gzip.compress(content) if packed else content)
    work = iq.read_trace(path, **arguments)
    assert work.metadata["format"] == format
    assert work.metadata["source"] == str(path)
    assert work.frame.columns == columns.split()
    assert work.frame.height == work.metadata["rows"] == rows
    assert iq.read_trace(path, format, **arguments).frame.equals(work.frame)
    iq.Workload(work.frame)


def test_the_script_reproduces_the_samples(samples: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_samples", samples / "make_samples.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert made == {
        str(path.relative_to(samples))
        for path in samples.rglob("*.*")
        if path.suffix in (".csv", ".json", ".jsonl", ".parquet")
    }
    for name in made - {"inferq.parquet"}:
        assert (tmp_path / name).read_bytes() == (samples / name).read_bytes(), name
    assert pl.read_parquet(tmp_path / "inferq.parquet").equals(pl.read_parquet(samples / "inferq.parquet"))


def test_the_same_load_in_four_tables_is_the_same_workload(samples: Path) -> None:
    frame = iq.read_trace(samples / "inferq.csv").frame
    assert iq.read_trace(samples / "inferq.parquet").frame.equals(frame)
    assert iq.read_trace(samples / "table.csv", **NAMED).frame.equals(frame)
    assert iq.read_trace(samples / "vidur.csv").frame.equals(frame.drop("class"))
    assert (
        iq.read_trace(samples / "vidur.csv", "table", columns={"prompt_tokens": "num_decode_tokens"})
        .frame["prompt_tokens"]
        .equals(frame["output_tokens"], null_equal=False)
    )


# Each format by hand


def test_azure_times_are_exact_with_and_without_fraction_and_offset(write: Callable[[str], Path]) -> None:
    rows = (
        "2023-11-16 23:59:59.9799601,4808,10",
        "2023-11-17 00:00:00.0000002,3180,8",
        "2023-11-17 00:00:01,1,2",
    )
    old = iq.read_trace(write(AZURE + "\n".join(rows)))
    assert old.frame["arrival_s"].to_list() == [0.0, 0.0200401, 1.0200399]
    assert old.frame["prompt_tokens"].to_list() == [4808, 3180, 1]
    new = iq.read_trace(
        write(AZURE + "2024-05-10 00:00:00.009930+00:00,5,6\r\n2024-05-10 00:00:01+00:00,7,8\r\n")
    )
    assert new.frame["arrival_s"].to_list() == [0.0, 0.99007]


@given(st.lists(st.integers(0, 7 * 86_400 * 10**7), min_size=1, max_size=20).map(sorted))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_azure_arrivals_are_exact_to_100_ns(write: Callable[[str], Path], ticks: list[int]) -> None:
    lines = []
    for tick in ticks:
        seconds, fraction = divmod(tick, 10**7)
        day, rest = divmod(seconds, 86_400)
        clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
        lines.append(f"2024-05-{day + 1:02d} {clock}.{fraction:07d},1,1")
    arrivals = iq.read_trace(write(AZURE + "\n".join(lines))).frame["arrival_s"]
    # The shortest decimal representation of the float is the time in the file.
    assert [Decimal(repr(arrival)) for arrival in arrivals] == [
        Decimal(tick - ticks[0]).scaleb(-7) for tick in ticks
    ]


def test_burstgpt_leaves_out_failures_and_counts_them(write: Callable[[str], Path]) -> None:
    work = iq.read_trace(
        write(
            BURSTGPT
            + "3,ChatGPT,0,0,0,API log\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,80,0,80,API log\n"
            + "45,GPT-4,7,9,16,API log\n"
        )
    )
    assert work.frame.rows() == [(0.0, 472, 18, "Conversation log"), (40.0, 7, 9, "API log")]
    assert work.metadata["rows_left_out"] == {"failed": 2}
    assert work.metadata["columns_left_out"] == ["Model", "Total tokens"]


def test_burstgpt_of_release_2_has_sessions_and_float_times(write: Callable[[str], Path]) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = "19440110.0,aa-1,43,GPT-4,906,446,1352,Conversation log\n19440161.25,,2,ChatGPT,36,29,65,API log\n"
    frame = iq.read_trace(write(header + rows)).frame
    assert frame["arrival_s"].to_list() == [0.0, 51.25]
    assert frame["session_id"].to_list() == ["aa-1", None]


def test_mooncake_by_hand(write: Callable[[str], Path]) -> None:
    lines = [
        {"timestamp": 1000, "input_length": 513, "output_length": 3, "hash_ids": [0, 1]},
        {"timestamp": 4001, "input_length": 512, "output_length": 4, "hash_ids": [0]},
    ]
    work = iq.read_trace(write("\n".join(map(json.dumps, lines))))
    assert work.frame.rows() == [(0.0, 513, 3, [0, 1], 512), (3.001, 512, 4, [0], 512)]
    assert work.frame["prefix_block_tokens"].dtype == pl.Int32


def test_sharegpt_has_one_row_per_answer(write: Callable[[str], Path]) -> None:
    conversations = [
        conversation(("human", "one two"), ("gpt", "a b c"), ("human", "four"), ("gpt", "d")),
        conversation(
            ("gpt", "cut out of more"), ("human", "go on"), ("gpt", "x y")
        ),  # 4 words start the next prompt
        conversation(("human", "q"), ("gpt", ""), ("human", "again q"), ("gpt", "now")),
        conversation(("human", "only a question")),
        conversation(("system", "be kind"), ("user", "hi"), ("assistant", "hello you")),
    ]
    work = iq.read_trace(
        write(
            json.dumps(
                [{**entry, "id": "a" if at < 2 else f"t{at}"} for at, entry in enumerate(conversations)]
            )
        ),
        **TEXT,
    )
    assert work.frame.rows() == [
        (2, 3, "a", 0),
        (6, 1, "a", 1),
        (6, 2, "a#2", 0),
        (3, 1, "t2", 0),
        (3, 2, "t4", 0),
    ]
    assert work.metadata["rows_left_out"] == {"empty_answers": 1, "answers_without_prompt": 1}
    assert work.metadata["conversations"] == 5


def test_longbench_counts_the_official_prompt(write: Callable[[str], Path]) -> None:
    entry = {"domain": "Law", "context": " a b c ", "question": "why\n", "answer": "A"}
    entry |= {f"choice_{letter}": f"{letter} x" for letter in "ABCD"}
    work = iq.read_trace(write(json.dumps([entry])), **TEXT)
    # 10 words of instruction, <text>, 3 of document, </text>, 8 before the question, 1 of question,
    # "Choices:", 4 times (letter) and two words, 12 of format
    assert work.frame.select("prompt_tokens", "class").rows() == [
        (10 + 1 + 3 + 1 + 8 + 1 + 1 + 12 + 12, "Law")
    ]
    # All prompts share the instruction; questions about this document share the text up to the question.
    parts = work.frame["prefix_parts"].to_list()[0]
    assert [part["tokens"] for part in parts] == [10 + 1, 3 + 1 + 8]
    assert work.metadata["columns_left_out"] == ["answer"]


def test_dolly_by_hand(write: Callable[[str], Path]) -> None:
    lines = [
        {"instruction": "what is it", "context": "a long text", "response": "this", "category": "closed_qa"},
        {"instruction": "say hi", "context": "", "response": "hi there", "category": "open_qa"},
    ]
    work = iq.read_trace(write("\n".join(map(json.dumps, lines)) + "\n\n"), **TEXT)
    assert work.frame.rows() == [(6, 1, "closed_qa"), (2, 2, "open_qa")]


def test_an_inferq_table_keeps_every_column_through_csv_and_parquet(tmp_path: Path) -> None:
    frame = iq.Workload(
        {
            "arrival_s": [0.0, 0.1],
            "prompt_tokens": [1, 2],
            "output_tokens": [3, 4],
            "class": ["x", "y"],
            "priority": [1, -1],
            "session_id": ["s", None],
            "turn": [0, None],
            "continues": [None, 0],
            "max_output_tokens": [9, None],
            "patience_s": [None, 1.5],
            "ttft_slo_s": [0.5, None],
            "itl_slo_s": [None, 0.05],
        }
    ).frame
    frame.write_csv(tmp_path / "a")
    frame.write_parquet(tmp_path / "b")
    assert iq.read_trace(tmp_path / "a").frame.equals(frame)
    assert iq.read_trace(tmp_path / "b").frame.equals(frame)
    nested = frame.with_columns(
        prefix_hashes=pl.Series([[1, 2], [1]]), prefix_block_tokens=pl.lit(1, pl.Int32)
    )
    nested.write_parquet(tmp_path / "c")
    assert iq.read_trace(tmp_path / "c").frame["prefix_hashes"].to_list() == [[1, 2], [1]]


def test_a_column_name_of_another_tool_is_read(write: Callable[[str], Path]) -> None:
    work = iq.read_trace(write("prompt_tokens,output_tokens,tbt_slo_s\n5,2,0.05\n"))
    assert work.frame["itl_slo_s"].to_list() == [0.05]
    assert work.metadata["columns_left_out"] == []


def test_unknown_and_empty_columns_are_in_the_metadata(tmp_path: Path) -> None:
    frame = pl.DataFrame({"arrival_s": [None, None], "prompt_tokens": [1, 2], "note": ["a", "b"]})
    frame.write_parquet(tmp_path / "a")
    work = iq.read_trace(tmp_path / "a")
    assert work.frame.columns == ["prompt_tokens"]
    assert work.metadata["columns_left_out"] == ["note"]
    assert work.metadata["columns_empty"] == ["arrival_s"]


def test_empty_messages_of_conversation_lengths_are_left_out_and_counted(
    write: Callable[[str], Path],
) -> None:
    work = iq.read_trace(write("session_id,prompt_tokens,output_tokens\na,5,0\na,6,1\nb,0,3\nb,0,0\n"))
    assert work.frame.rows() == [(6, 1, "a")]
    assert work.metadata["rows_left_out"] == {"empty_prompts": 2, "empty_answers": 1}
    with pytest.raises(iq.TraceError, match="row 2: output_tokens is -1"):
        iq.read_trace(write("session_id,prompt_tokens,output_tokens\na,5,0\na,6,1\nb,1,-1\n"))
    with pytest.raises(iq.TraceError, match="row 0: output_tokens is 0"):
        iq.read_trace(write("session_id,arrival_s,prompt_tokens,output_tokens\na,0.0,5,0\n"))


# Counting tokens


def test_a_ratio_counts_words_to_the_nearest_token(write: Callable[[str], Path]) -> None:
    path = write(
        json.dumps(
            [
                conversation(("human", "one  two\nthree"), ("gpt", "a")),
                conversation(("human", " "), ("gpt", "a b")),
            ]
        )
    )
    work = iq.read_trace(path, tokens_per_word=1.5)
    # 4.5 and 1.5 are rounded to even; a prompt of white space has no tokens.
    assert work.frame.select("prompt_tokens", "output_tokens").rows() == [(4, 2)]
    assert work.metadata["token_count"] == {"tokens_per_word": 1.5}
    assert iq.read_trace(path, tokens_per_word=0.01).frame.row(0)[:2] == (1, 1)


def test_a_tokenizer_file_counts_tokens(write: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    described = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
    }
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(described))
    work = iq.read_trace(
        write(json.dumps([conversation(("human", "four"), ("gpt", "letters"))])), tokenizer=file
    )
    assert work.frame.row(0)[:2] == (
        4,
        7,
    )  # one token per letter, not truncated to the file's limit of 3 tokens
    assert work.metadata["token_count"]["tokenizer"] == str(file)
    for wrong in (tmp_path / "absent.json", write("{}")):
        with pytest.raises(iq.ConfigError, match="tokenizer: "):
            iq.read_trace(write(json.dumps([conversation(("human", "a"), ("gpt", "b"))])), tokenizer=wrong)


def test_without_the_library_a_tokenizer_is_an_error(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(iq.ConfigError, match=r"inferq\[tokenizers\]"):
        iq.read_trace(samples / "dolly.jsonl", tokenizer="tokenizer.json")


@refused(
    ("sharegpt.json", {}, "sharegpt contains text: set tokenizer or tokens_per_word"),
    ("dolly.jsonl", {"tokens_per_word": 0}, "tokens_per_word: must be positive"),
    ("dolly.jsonl", {"tokens_per_word": math.nan}, "tokens_per_word: must be finite"),
    (
        "dolly.jsonl",
        {"tokens_per_word": 1.3, "tokenizer": "t.json"},
        "cannot be combined; set one of the two",
    ),
    (
        "azure_2023.csv",
        {"tokens_per_word": 1.3},
        "tokens_per_word: not supported for azure, which has token counts",
    ),
    ("azure_2023.csv", {"tokenizer": "t.json"}, "tokenizer: not supported for azure, which has token counts"),
    (
        "mooncake.jsonl",
        {"columns": {"prompt_tokens": "input_length"}},
        "columns: mooncake has fixed columns",
    ),
    ("azure_2023.csv", {"format": "azur"}, "format: unknown format 'azur'; did you mean azure?"),
    ("table.csv", {"columns": {"prompt": "input_len"}}, "columns: 'prompt' is not a column of a workload"),
    ("table.csv", {"columns": ["input_len"]}, "columns: must map"),
    ("table.csv", {"format": "table"}, "columns: .* requires a mapping"),
)
def test_an_error_names_the_wrong_argument(name: str, arguments: dict[str, Any], samples: Path) -> None:
    iq.read_trace(samples / name, **arguments)


# Bad files


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", {}, "is empty"),
        (b"\n\n", {}, "is empty"),
        (gzip.compress(b"", mtime=0), {}, "is empty"),
        (gzip.compress(AZURE.encode() * 1000, mtime=0)[:-9], {}, "truncated gzip file"),
        (gzip.compress(b"x" * 1000, mtime=0)[:20], {}, "truncated gzip file"),
        (b"\x1f\x8b" + bytes(range(256)), {}, "damaged gzip"),
        (bytes(range(256)) * 10, {}, "neither Parquet nor text"),
        (b"\xff\xfe\x80abc,def\n", {}, "neither Parquet nor UTF-8 text"),
        (b"PAR1" + bytes(1000), {}, "cannot be read as Parquet"),
        (b"PAR1", {}, "cannot be read as Parquet"),
        (INFERQ.encode() + b"0,1,1\n" * 30_000 + b"\xff,1,1\n", {}, "UTF-8"),
        ("just a line of words", {}, "format not recognized"),
        ("a,b\n1,2\n", {}, "format not recognized: csv with the columns a, b"),
        ('{"a": 1}\n{"a": 2}\n', {}, "format not recognized: JSON with the fields a"),
        ("[]", {}, "is an empty list"),
        ("[1, 2]", {}, "entry 0: is a number, must be an object"),
        ("[" * 100_000, {}, "invalid JSON"),
        ('[{"a": 1},\n {"a": }]', {}, "line 2: invalid JSON"),
        ('\n\n[{"a": 1},\n {"a": }]', {}, "line 4: invalid JSON"),
        ('{"a": 1}\n{"a": 2\n', {}, "line 2: invalid JSON"),
        ('{"a": 1}\n\n3\n', {}, "line 3: is a number, must be an object"),
        ('{"a": NaN}', {}, "NaN is not a JSON number"),
        ('{"a": 1', {}, "line 1: invalid JSON"),
        (AZURE, {}, "has a header but no rows"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", {}, "has no column GeneratedTokens"),
        (AZURE + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:04,5\n", {}, "row 1: output_tokens is null"),
        (
            AZURE + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:04,5,6,7\n",
            {},
            "row 1: has 4 fields, must have 3 as the header",
        ),
        (AZURE + "2023-11-16 18:17:03,5,6\n16.11.2023,5,6\n", {}, "row 1: TIMESTAMP is '16.11.2023'"),
        (
            AZURE + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:02,5,6\n",
            {},
            "row 1: TIMESTAMP is before that of row 0: sort rows by arrival",
        ),
        (AZURE + "2023-11-16 18:17:03,5,0\n", {}, "row 0: output_tokens is 0"),
        (AZURE + "2023-11-16 18:17:03,-5,1\n", {}, "row 0: prompt_tokens is -5"),
        (AZURE + "2023-11-16 18:17:03,many,1\n", {}, "row 0: ContextTokens is 'many', must be a number"),
        (AZURE + "2023-11-16 18:17:03,5,nan\n", {}, "row 0: output_tokens is nan"),
        (AZURE + "2023-11-16 18:17:03,5,6\n\n2023-11-16 18:17:04,5,6\n", {}, "row 1"),
        (BURSTGPT + "5,M,4,0,4,API log\n", {}, "contains failed requests only"),
        (BURSTGPT + "5,M,4,0,4,API log\n6,M,0,3,3,API log\n", {}, "row 1: prompt_tokens is 0"),
        (
            BURSTGPT + "5,M,4,1,5,API log\n5,M,4,0,4,API log\n4,M,3,3,6,API log\n",
            {},
            "row 2: Timestamp is before",
        ),
        (BURSTGPT + "5,M,4,,4,API log\n", {}, "row 0: output_tokens is null"),
        (BURSTGPT + "-5,M,4,1,5,API log\n", {}, "row 0: Timestamp is '-5'"),
        (INFERQ + "0,1,1\n1,2,2\n0.5,1,1\n", {}, "row 2: arrival_s is 0.5, before the 1.0 of row 1"),
        (INFERQ + "0,1,1\nnan,2,2\n", {}, "row 1: arrival_s is nan"),
        (INFERQ + "0,1,1\n,2,2\n", {}, "row 1: arrival_s is null"),
        (INFERQ + "0,1,1\n1,2.5,2\n", {}, "row 1: prompt_tokens is 2.5, must be an integer"),
        (INFERQ + "0,1,1\n1,99999999999999999999,2\n", {}, "row 1: prompt_tokens is 1e"),
        (INFERQ + "0,1,0\n", {}, "row 0: output_tokens is 0"),
        ("arrival_s,class\n0,a\n", {}, "has no column for prompt_tokens or output_tokens"),
        ("prompt_tokens,prompt_tokens\n1,2\n", {}, "has more than one column prompt_tokens"),
        (
            "prompt_tokens,prefix_hashes\n1,2\n",
            {},
            "prefix_hashes: must contain lists of integers, got String",
        ),
        ("prompt_tokens,output_tokens\n,\n", {}, "no rows"),
        ("x,y\n1,2\n", {"columns": {"prompt_tokens": "z"}}, "has no column 'z'"),
        ("x,y\n1,2\n", {"columns": {"arrival_s": "x"}}, "has no column for prompt_tokens"),
        ('{"timestamp": 0, "input_length": 5}', {}, "line 1|entry 0"),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
            '{"timestamp": 0, "input_length": "5", "output_length": 1, "hash_ids": [1]}',
            {},
            "line 2: input_length is a string, must be a number",
        ),
        (
            '{"timestamp": 9, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n\n'
            '{"timestamp": 8, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            {},
            "line 3: timestamp is before that of line 1",
        ),
        (
            '{"timestamp": 9, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
            '{"timestamp": 9, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
            {},
            "line 2: hash_ids has 1 entries, must have 2 for an input_length of 513",
        ),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', {}, "timestamp is -1"),
        (
            '{"timestamp": 1e999, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            {},
            "timestamp is inf",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 0, "hash_ids": [1]}',
            {},
            "output_tokens is 0",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}',
            {},
            "hash_ids must be a list",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 1e99, "hash_ids": [1]}',
            {},
            "output_tokens is 1e",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 1' + "0" * 30 + ', "hash_ids": [1]}',
            {},
            "output_length is 10+, must fit into 64 bits",
        ),
        ('{"chat_id": 1, "timestamp": 1.5, "input_length": 5, "output_length": 1}', {}, "Qwen-Bailian"),
        ('[{"id": "a", "conversations": 5}]', TEXT, "entry 0: conversations must be a list"),
        (
            '[{"id": "a", "conversations": [{"from": "gpt"}]}]',
            TEXT,
            "entry 0: message 0: value must be a string",
        ),
        (json.dumps([conversation(("human", "a"))]), TEXT, "must contain an answer with a prompt before it"),
        ('[{"context": "c", "question": "q", "choice_A": "a"}]', TEXT, "entry 0: choice_B is missing"),
        ('{"instruction": "i", "context": "", "response": "", "category": "c"}', TEXT, "output_tokens is 0"),
        ('{"instruction": "i", "context": null, "response": "r", "category": "c"}', TEXT, "context is null"),
        ("0,0.39,1.29,Weibull,0.86,2.64\n600,0.0,0.0,,0.0,0.0\n", {}, "is part of ServeGen"),
        ('{"0": {"output_tokens": "{6: 0.3}"}}', {}, "is part of ServeGen"),
    ],
)
def test_an_error_in_a_file_names_its_place(
    write: Callable[[str | bytes], Path], content: str | bytes, arguments: dict[str, Any], message: str
) -> None:
    path = write(content)
    with pytest.raises(iq.TraceError, match=message) as raised:
        iq.read_trace(path, **arguments)
    assert str(path) in str(raised.value)


def test_missing_and_irregular_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(iq.TraceError, match="no such file"):
        iq.read_trace(tmp_path / "absent.csv")
    with pytest.raises(iq.TraceError, match="is not a file"):
        iq.read_trace(tmp_path)
    with pytest.raises(iq.ConfigError, match="path: must be a path"):
        iq.read_trace(5)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(iq.TraceError, match="not a file"):
        iq.read_trace(tmp_path / "pipe")


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_that_does_not_fit_is_an_error(samples: Path, format: str) -> None:
    path = samples / (
        "azure_2023.csv" if format in ("mooncake", "sharegpt", "longbench", "dolly") else "dolly.jsonl"
    )
    arguments = TEXT if format in ("sharegpt", "longbench", "dolly") else {}
    arguments = {"columns": {"prompt_tokens": "context"}} if format == "table" else arguments
    messages = {
        "inferq": "has no column for prompt_tokens",
        "table": "context is 'basin",
        "servegen": "is a file; servegen requires a folder",
    }
    mismatch = rf"is \w+; {format} must be|does not match {format}"
    with pytest.raises(iq.TraceError, match=messages.get(format, mismatch)):
        iq.read_trace(path, format, **arguments)


@pytest.mark.parametrize(
    "name",
    ["azure_2023.csv", "burstgpt.csv", "mooncake.jsonl", "sharegpt.json", "dolly.jsonl", "inferq.parquet"],
)
def test_damaged_files_never_crash(samples: Path, write: Callable[[bytes], Path], name: str) -> None:
    whole = (samples / name).read_bytes()
    chance = random.Random(name)
    arguments = TEXT if name in ("sharegpt.json", "dolly.jsonl") else {}
    errors = 0
    for _ in range(60):
        damaged = bytearray(whole[: int(chance.random() * len(whole))] if chance.random() < 0.5 else whole)
        for _ in range(int(chance.random() * 5)):
            if damaged:
                damaged[int(chance.random() * len(damaged))] = int(chance.random() * 256)
        try:
            work = iq.read_trace(write(bytes(damaged)), **arguments)
            iq.Workload(work.frame)
        except (iq.TraceError, iq.ConfigError):
            errors += 1
    assert errors > 10


# Real traces: published numbers

SUMMARY = [
    ("azure_llm_2023_code", 8819, 3435.9, (2048, 1469, 5188, 7436), (28, 13, 55, 251)),
    ("azure_llm_2023_conv", 19366, 3501.7, (1155, 1020, 2734, 4142), (211, 129, 424, 601)),
    ("mooncake_conversation", 12031, 3537.0, (12035, 6909, 27367, 85400), (343, 350, 597, 1119)),
    ("mooncake_synthetic", 3993, 1022.0, (15325, 11587, 38611, 66456), (149, 69, 389, 768)),
    ("openchat_sharegpt4_8k", 30731, None, (2340, 1730, 5696, 7434), (439, 415, 834, 998)),
    ("sharegpt_v3_first_turn_partial", 17400, None, (318, 134, 751, 2578), (195, 121, 484, 771)),
    ("sharegpt_v3_multiturn_partial", 61243, None, (796, 725, 1616, 1940), (280, 254, 549, 769)),
    ("longbench_v2", 480, None, (151393, 94700, 350631, 1131184), None),
    ("longbench_v2_trunc120k", 503, None, (80982, 98607, 120000, 120000), None),
    ("arxiv_summarization_4k", 28257, None, (2588, 2730, 3702, 3933), (291, 167, 372, 3271)),
    ("bilingual_web_book_4k", 33768, None, (1067, 1037, 1453, 1800), (1613, 1601, 2149, 2533)),
    ("lmsys_chat_1m_output_only", 85482, None, None, (177, 140, 397, 502)),
    ("dolly_15k_first6400_instruction_only", 6400, None, (15, 12, 28, 67), (54, 42, 116, 128)),
]


@pytest.mark.parametrize(
    ("name", "rows", "span", "prompt", "output"), SUMMARY, ids=[row[0] for row in SUMMARY]
)
def test_real_traces_have_the_published_lengths(
    shared: Path,
    name: str,
    rows: int,
    span: float | None,
    prompt: tuple[int, ...] | None,
    output: tuple[int, ...] | None,
) -> None:
    work = iq.read_trace(shared / "traces" / f"{name}.parquet")
    left_out = sum(work.metadata["rows_left_out"].values())
    assert work.frame.height + left_out == rows
    # Only ShareGPT has empty messages: 7 prompts and 6 answers in first turns, 7 answers in all turns.
    assert left_out == {"sharegpt_v3_first_turn_partial": 13, "sharegpt_v3_multiturn_partial": 7}.get(name, 0)
    table = {row["column"]: row for row in work.describe().rows(named=True)}
    for column, expected in (("prompt_tokens", prompt), ("output_tokens", output)):
        assert (column in table) == (expected is not None)
        if expected is not None:
            actual = [table[column][quantity] for quantity in ("mean", "p50", "p90", "p99")]
            # The published numbers are rounded and include empty messages.
            assert actual == pytest.approx(expected, abs=0.5 if not left_out else 1.5)
    if span is None:
        assert "arrival_s" not in work.frame.columns
    else:
        arrivals = work.frame["arrival_s"]
        assert arrivals[0] == 0 and arrivals[-1] == pytest.approx(span, abs=0.1)


def test_azure_2023_has_the_published_rate_and_burstiness(shared: Path) -> None:
    for name, rate, cv in (("code", 2.57, 13.2), ("conv", 5.53, 1.09)):
        table = iq.read_trace(shared / f"traces/raw/AzureLLMInferenceTrace_{name}.csv").describe()
        quantities = {row["column"]: row for row in table.rows(named=True)}
        assert quantities["rate_per_s"]["mean"] == pytest.approx(rate, abs=0.005)
        assert quantities["gap_s"]["cv"] == pytest.approx(cv, abs=0.05)


@pytest.mark.parametrize(
    ("raw", "parquet"),
    [
        ("AzureLLMInferenceTrace_code.csv", "azure_llm_2023_code"),
        ("AzureLLMInferenceTrace_conv.csv", "azure_llm_2023_conv"),
        ("splitwise_code.csv", "azure_llm_2023_code"),
        ("splitwise_conv.csv", "azure_llm_2023_conv"),
        ("conversation_trace.jsonl", "mooncake_conversation"),
        ("synthetic_trace.jsonl", "mooncake_synthetic"),
        ("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", "arxiv_summarization_4k"),
        ("bwb_stats_llama2_tokenizer_filtered_v2.csv", "bilingual_web_book_4k"),
        ("sharegpt_8k_filtered_stats_llama2_tokenizer.csv", "openchat_sharegpt4_8k"),
    ],
)
def test_raw_files_equal_their_parquet_versions(shared: Path, raw: str, parquet: str) -> None:
    original = iq.read_trace(shared / "traces/raw" / raw).frame
    converted = iq.read_trace(shared / f"traces/{parquet}.parquet").frame
    names = [name for name in ("prompt_tokens", "output_tokens", "prefix_hashes") if name in original.columns]
    assert original.select(names).equals(converted.select(names))
    if "arrival_s" in original.columns:
        gaps = (original["arrival_s"] - converted["arrival_s"]).abs()
        assert gaps.max() < 1e-9  # type: ignore[operator]


def test_azure_2023_arrivals_equal_the_times_of_the_file(shared: Path) -> None:
    path = shared / "traces/raw/AzureLLMInferenceTrace_conv.csv"
    arrivals = iq.read_trace(path).frame["arrival_s"]
    times = [row[0] for row in csv.reader(io.StringIO(path.read_text()))][1:]

    def seconds(time: str) -> Decimal:
        hours, minutes, rest = time.split(" ")[1].split(":")
        return 3600 * int(hours) + 60 * int(minutes) + Decimal(rest)

    first = seconds(times[0])
    assert [Decimal(repr(arrival)) for arrival in arrivals] == [seconds(time) - first for time in times]


def test_azure_2024_rows_of_the_official_notebook(shared: Path) -> None:
    frame = iq.read_trace(shared / "traces/raw/AzureLLMInferenceTrace_code_1week.first5_last5.csv").frame
    assert frame.height == 10
    # From 2024-05-10 00:00:00.009930 to 2024-05-16 23:59:59.929501.
    assert frame["arrival_s"][-1] == 7 * 86_400 - 0.070499 - 0.009930
    assert frame.row(4)[1:] == (7670, 8)


def test_burstgpt_rows_match_the_published_ones(shared: Path) -> None:
    frame = iq.read_trace(shared / "traces/raw/BurstGPT_1.first3.csv").frame
    assert frame["arrival_s"].to_list() == [0.0, 40.0, 113.0]
    assert frame.row(2)[1:] == (417, 276, "Conversation log")


def test_sharegpt_text_gives_the_lengths_of_the_multiturn_file(shared: Path) -> None:
    # Every message of the raw file is replaced by as many words as it had tokens.
    raw = iq.read_trace(shared / "traces/raw/sharegpt_v3_first40.redacted.json", **TEXT)
    whole = iq.read_trace(shared / "traces/sharegpt_v3_multiturn_partial.parquet").frame
    assert raw.metadata["conversations"] == 40
    assert raw.frame.height > 100
    assert raw.frame.equals(whole.head(raw.frame.height))


def test_longbench_layout(shared: Path, write: Callable[[str], Path]) -> None:
    path = shared / "traces/raw/longbench_v2_sample5.redacted.json"
    frame = iq.read_trace(path, **TEXT).frame
    # The five shortest prompts; their documents are replaced by about as many words as tokens.
    shortest = iq.read_trace(shared / "traces/longbench_v2.parquet").frame.sort("prompt_tokens").head(5)
    assert sorted(frame["class"].cast(pl.String)) == sorted(shortest["class"].cast(pl.String))
    assert sorted(frame["prompt_tokens"]) == pytest.approx(shortest["prompt_tokens"].to_list(), rel=0.02)
    lines = "\n".join(map(json.dumps, json.loads(path.read_text())))
    assert iq.read_trace(write(lines), **TEXT).frame.equals(frame)


def test_what_is_no_trace_is_refused_by_name(shared: Path) -> None:
    folder = shared / "traces"
    for path in [*folder.glob("servegen_*.parquet"), *folder.glob("raw/servegen/data/*/*/*")]:
        with pytest.raises(iq.TraceError, match="is part of ServeGen"):
            iq.read_trace(path)
    for path in [*folder.glob("raw/*_cdf.json"), folder / "raw/burstgpt_1_by_time_bin.csv"]:
        with pytest.raises(iq.TraceError):
            iq.read_trace(path)
