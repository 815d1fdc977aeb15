"""Make the samples of this folder: made-up numbers and filler text in each format that `read_trace` knows.

Run `python traces/make_samples.py [FOLDER]`. The same files come out on every machine: draws are those of
Python's Mersenne Twister, rounded well above the last bit of a float.
"""

from __future__ import annotations

import datetime
import json
import math
import random
import sys
from pathlib import Path

WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll")


def filler(chance: random.Random, words: int) -> str:
    """A text of so many words without meaning."""
    return " ".join(WORDS[int(chance.random() * len(WORDS))] for _ in range(words))


def length(chance: random.Random, median: float, spread: float, most: int) -> int:
    """A lognormal length, at least 1 and at most `most`."""
    # the sum of twelve uniforms less 6 is near enough to a normal draw, and needs no library function
    normal = sum(chance.random() for _ in range(12)) - 6
    return max(1, min(most, round(median * math.exp(spread * normal))))


def gaps(chance: random.Random, count: int, rate: float) -> list[float]:
    """Arrival times of a Poisson process that starts with its first arrival at 0."""
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now -= math.log(1 - chance.random()) / rate
    return times


def azure_2023(folder: Path) -> None:
    """Chat lengths, 5 requests a second for a minute; 7 fractional digits, CRLF, no newline at the end."""
    chance = random.Random("azure 2023")
    start = datetime.datetime(2023, 11, 16, 18, 15, 46)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for time in gaps(chance, 300, 5.0):
        ticks = round(time * 10_000_000) + 6_805_900
        when = start + datetime.timedelta(seconds=ticks // 10_000_000)
        prompt, output = length(chance, 900, 0.9, 4100), length(chance, 140, 0.8, 1000)
        lines.append(f"{when:%Y-%m-%d %H:%M:%S}.{ticks % 10_000_000:07d},{prompt},{output}")
    (folder / "azure_2023.csv").write_bytes("\r\n".join(lines).encode())


def azure_2024(folder: Path) -> None:
    """Times with an offset and 6 fractional digits, or none where the second is whole."""
    chance = random.Random("azure 2024")
    start = datetime.datetime(2024, 5, 12, tzinfo=datetime.timezone.utc)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for time in gaps(chance, 100, 40.0):
        micros = round(time * 1e6)
        if micros % 1_000_000 < 25_000:
            micros -= micros % 1_000_000
        when = start + datetime.timedelta(microseconds=micros)
        lines.append(f"{when},{length(chance, 1100, 0.9, 8000)},{length(chance, 60, 1.1, 1500)}")
    (folder / "azure_2024.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def burstgpt(folder: Path) -> None:
    """Whole seconds, two kinds of log, every ninth request failed."""
    chance = random.Random("burstgpt")
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for row, time in enumerate(gaps(chance, 120, 0.05)):
        prompt = length(chance, 400, 1.0, 4000)
        output = 0 if row % 9 == 4 else length(chance, 150, 1.0, 2000)
        model = "GPT-4" if row % 3 == 2 else "ChatGPT"
        kind = "API log" if row % 4 == 1 else "Conversation log"
        lines.append(f"{5 + int(time)},{model},{prompt},{output},{prompt + output},{kind}")
    (folder / "burstgpt.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def mooncake(folder: Path) -> None:
    """Milliseconds and block ids: all prompts share their first block, every third continues another."""
    chance = random.Random("mooncake")
    lines: list[str] = []
    prompts: list[list[int]] = []
    fresh = 1
    for row, time in enumerate(gaps(chance, 80, 2.0)):
        earlier = prompts[int(chance.random() * row)] if row % 3 == 2 else [0]
        new = 1 + int(chance.random() * 12)
        hashes = [*earlier, *range(fresh, fresh + new)]
        fresh += new
        prompts.append(hashes)
        tokens = 512 * len(hashes) - int(chance.random() * 512)
        record = {"timestamp": round(time * 1000), "input_length": tokens}
        record |= {"output_length": length(chance, 300, 0.6, 2000), "hash_ids": hashes}
        lines.append(json.dumps(record))
    (folder / "mooncake.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def sharegpt(folder: Path) -> None:
    """Conversations of one to four turns; one in ten begins with an answer, three answers are empty."""
    chance = random.Random("sharegpt")
    talks = []
    for talk in range(50):
        messages = [{"from": "gpt", "value": filler(chance, 20)}] if talk % 10 == 7 else []
        for turn in range(1 + int(chance.random() * 4)):
            answer = "" if talk % 20 == 3 and turn == 0 else filler(chance, length(chance, 30, 0.7, 150))
            messages.append({"from": "human", "value": filler(chance, length(chance, 12, 0.8, 80))})
            messages.append({"from": "gpt", "value": answer})
        talks.append({"id": f"sample{talk:02d}_0", "conversations": messages})
    (folder / "sharegpt.json").write_text(json.dumps(talks, indent=1) + "\n", encoding="utf-8", newline="\n")


def longbench(folder: Path) -> None:
    """Documents of a few hundred words, as a list and line by line."""
    chance = random.Random("longbench")
    entries = []
    for question in range(50):
        entry = {
            "_id": f"sample{question:02d}",
            "domain": ("Single-Document QA", "Multi-Document QA")[question % 2],
        }
        entry |= {"sub_domain": "Made up", "difficulty": "easy", "length": "short"}
        entry |= {"question": filler(chance, 9) + "?"}
        entry |= {f"choice_{letter}": filler(chance, 3) for letter in "ABCD"}
        entry |= {"answer": "ABCD"[question % 4], "context": filler(chance, length(chance, 200, 0.5, 600))}
        entries.append(entry)
    listed = json.dumps(entries, indent=1) + "\n"
    (folder / "longbench_v2.json").write_text(listed, encoding="utf-8", newline="\n")
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "longbench_v2.jsonl").write_text(lines, encoding="utf-8", newline="\n")


def dolly(folder: Path) -> None:
    """Instructions, every third with a context."""
    chance = random.Random("dolly")
    lines = []
    for row in range(60):
        entry = {"instruction": filler(chance, length(chance, 10, 0.5, 40)) + "?"}
        entry |= {"context": filler(chance, length(chance, 80, 0.5, 200)) if row % 3 == 0 else ""}
        entry |= {"response": filler(chance, length(chance, 40, 0.8, 200))}
        entry |= {"category": "closed_qa" if row % 3 == 0 else "open_qa"}
        lines.append(json.dumps(entry))
    (folder / "dolly.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def tables(folder: Path) -> None:
    """One load three times: with inferq's columns, with Vidur's, and with names that only a map explains."""
    chance = random.Random("tables")
    rows = [
        (
            f"{time:.6f}",
            length(chance, 500, 0.8, 4000),
            length(chance, 120, 0.7, 1000),
            ("chat", "code")[row % 2],
        )
        for row, time in enumerate(gaps(chance, 100, 4.0))
    ]
    files = {
        "inferq.csv": ("arrival_s,prompt_tokens,output_tokens,class", lambda row: row),
        "vidur.csv": ("arrived_at,num_prefill_tokens,num_decode_tokens", lambda row: row[:3]),
        "table.csv": ("when,input_len,output_len,kind", lambda row: row),
    }
    for name, (header, fields) in files.items():
        lines = [header, *(",".join(map(str, fields(row))) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def parquet(folder: Path) -> None:
    """The load of `inferq.csv` as Parquet; its bytes depend on the version of polars, its values do not."""
    import polars as pl

    kinds = {
        "arrival_s": pl.Float64,
        "prompt_tokens": pl.Int32,
        "output_tokens": pl.Int32,
        "class": pl.String,
    }
    pl.read_csv(folder / "inferq.csv", schema=kinds).write_parquet(folder / "inferq.parquet")


def servegen(folder: Path) -> None:
    """Four clients in windows of 10 minutes: steady, bursty, with images, and one without lengths."""
    chance = random.Random("servegen")
    clients = [
        ("Gamma", 1.0, (0.3, 0.3, 0.3, 0.0)),
        ("Weibull", 0.5, (0.0, 0.1, 0.2, 0.4)),
        ("Gamma", 0.7, (0.1, 0.0, 0.0, 0.1)),
        ("Weibull", 1.2, (0.2, 0.2, 0.2, 0.2)),
    ]
    inner = folder / "servegen"
    inner.mkdir(exist_ok=True)
    for client, (family, shape, rates) in enumerate(clients):
        mean, square = shape, shape * (1 + shape)  # of a gap with scale 1
        if family == "Weibull":
            mean, square = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
        lines = []
        for window, rate in enumerate(rates):
            variation = round(math.sqrt(square / mean**2 - 1), 3)
            gaps = f"{rate},{variation},{family},{shape},{round(1 / rate / mean, 3)}" if rate else "0,0,,0,0"
            lines.append(f"{600 * window},{gaps}")
        windows: dict[str, dict[str, str]] = {}
        for start in (0, 1200):
            prompt = "text_tokens" if client == 2 else "input_tokens"
            fields = {prompt: histogram(chance, 300 * (client + 1)), "output_tokens": histogram(chance, 80)}
            if client == 2:
                fields |= {"image_count": "{1: 0.75, 2: 0.25}", "image_tokens": "{256: 0.5, 1024: 0.5}"}
            unknown = client == 3 or (client == 0 and start)
            windows[str(start)] = dict.fromkeys(fields, "{}") if unknown else fields
        texts = {"trace.csv": "\n".join(lines), "dataset.json": json.dumps(windows, indent=1)}
        for kind, text in texts.items():
            (inner / f"chunk-{client}-{kind}").write_text(text + "\n", encoding="utf-8", newline="\n")


def histogram(chance: random.Random, median: float) -> str:
    """Shares of 20 lognormal lengths, written as a Python dict without quotes."""
    lengths = sorted(length(chance, median, 0.6, 8000) for _ in range(20))
    return "{" + ", ".join(f"{one}: {lengths.count(one) / 20}" for one in sorted(set(lengths))) + "}"


def main(folder: Path) -> None:
    """Write every sample into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for make in (
        azure_2023,
        azure_2024,
        burstgpt,
        mooncake,
        sharegpt,
        longbench,
        dolly,
        tables,
        parquet,
        servegen,
    ):
        make(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
