"""Damaged and hostile files, and concurrent writers."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.files import locked, write_table
from inferq.inputs import guarded, parsed_json, parsed_toml
from inferq.results import store
from inferq.scenario import ScenarioFile

from .arriving import arriving
from .damaged import command, ended, in_bytes, in_json
from .night import NIGHT, chance, seeds
from .wrong_inputs import TOML, wrong

ROOT = Path(__file__).parent.parent
ENGINE = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
NASTY = ("\x00", "\x01", "\x0b", "\x1b[2J", "\x7f", "\x9b", "\u202e", "\ufffe", "\uffff", "</script>", "<!--")
HIDDEN = "\x00\x01\x0b\x1b\x7f\x9b\u202e\ufffe\uffff"


def written(out: Path) -> iq.Result:
    return iq.simulate(arriving(40, 50.0, 3, 3), ENGINE, out=out)


def run(*arguments: object, **given: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "inferq.cli", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, **given)


# What is read back


def refused_or_equal(place: Path, whole: iq.Result) -> bool:
    """Whether reading a stored result fails; otherwise it must equal the original."""
    try:
        read = iq.Result.read(place)
    except iq.ConfigError as error:
        assert str(place) in str(error)
        return True
    assert read.requests.collect().equals(whole.requests.collect())
    assert read.summary().equals(whole.summary()) and read.itl.equals(whole.itl)
    assert read.findings == whole.findings and read.totals == whole.totals
    return False


def test_every_damage_of_a_stored_result_is_named(tmp_path: Path) -> None:
    """Changed bytes in every file, and changed fields in JSON files."""
    whole = written(tmp_path / "whole")
    files = sorted(file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*.*"))
    draw, refused, tried = chance("stored"), 0, 0
    for seed in seeds(300):
        file = files[seed % len(files)]
        place = tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", place)
        content = (place / file).read_bytes()
        if file.suffix == ".json" and seed % 3:
            changed = json.dumps(in_json(json.loads(content), draw), indent=2).encode() + b"\n"
        else:
            changed = in_bytes(content, draw)
        if changed == content:
            continue
        (place / file).write_bytes(changed)
        refused += refused_or_equal(place, whole)
        tried += 1
        shutil.rmtree(place)
    assert refused > 0.97 * tried > 200


def rewritten(place: Path, **fields: Any) -> None:
    """Replace fields of a manifest and update its hash."""
    import hashlib

    record = json.loads((place / "manifest.json").read_text())
    record.pop("sha256")
    record.update(fields)
    record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    (place / "manifest.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"complete": "no"}, "complete: must be true or false"),
        ({"written": 3}, "written: is 3, but the parts have 40 rows"),
        ({"written": 10**13}, "written: is 10,000,000,000,000"),
        ({"rows": "40"}, "rows: must be an integer or null"),
        ({"parts": []}, "written: is 40, but the parts have 0 rows"),
        ({"scenario_sha256": "0" * 64}, "scenario.json: differs from the scenario_sha256"),
        ({"files": {}}, "files: requests/part-00000.parquet is missing"),
        ({"more": 1}, "more: unknown"),
        ({"workload": 5}, "workload: must be a text or null"),
    ],
)
def test_a_forged_manifest_is_refused_by_its_field(tmp_path: Path, fields: Any, said: str) -> None:
    written(tmp_path / "out")
    rewritten(tmp_path / "out", **fields)
    with pytest.raises(iq.ResultError) as error:
        iq.Result.read(tmp_path / "out")
    assert said in str(error.value) and ".json: " in str(error.value)


def test_a_part_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "out")
    (part,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["parts"]
    rewritten(tmp_path / "out", parts=[part, part], written=80)
    with pytest.raises(iq.ResultError, match=r"parts\[1\]\.file: must be 'requests/part-00001"):
        iq.Result.read(tmp_path / "out")


def chat(rate: float) -> Any:
    return arriving(20, rate, 3, 3), ENGINE


def points(tmp_path: Path) -> Path:
    """A finished sweep."""
    iq.sweep(chat, resume=tmp_path / "points.parquet", rate=[2.0, 4.0], seeds=[1, 2])
    return tmp_path / "points.parquet"


def again(path: Path) -> pl.DataFrame:
    return iq.sweep(chat, resume=path, rate=[2.0, 4.0], seeds=[1, 2])


def _with(name: str, value: Any, kind: Any = None) -> Any:
    def change(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[name].to_list()
        values[1] = value
        return frame.with_columns(pl.Series(name, values, dtype=kind or frame.schema[name]))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_with("fingerprint", None), "fingerprint: row 1 is null"),
        (_with("ttft_p99", float("nan")), "ttft_p99: row 1 is nan"),
        (
            lambda frame: frame.with_columns(pl.col("ttft_p99").cast(pl.String)),
            "ttft_p99: must be Float64, got String",
        ),
        (_with("status", "zzz"), "status: row 1 is 'zzz'"),
        (_with("completed", -1), "completed: row 1 is negative: -1"),
        (_with("seed", None), "seed: row 1 is null"),
        (lambda frame: pl.concat([frame, frame]), "duplicate point"),
        (lambda frame: frame.drop("findings"), "is not a file of a sweep"),
    ],
)
def test_a_damaged_file_of_a_sweep_is_refused_by_column_and_row(
    tmp_path: Path, change: Any, said: str
) -> None:
    path = points(tmp_path)
    change(pl.read_parquet(path)).write_parquet(path)
    with pytest.raises(iq.ConfigError) as error:
        again(path)
    assert said in str(error.value) and "points.parquet" in str(error.value)


def test_bytes_that_turn_in_the_file_of_a_sweep_never_crash_it(tmp_path: Path) -> None:
    content, draw = points(tmp_path).read_bytes(), chance("sweep")
    for _ in seeds(40):
        (tmp_path / "points.parquet").write_bytes(in_bytes(content, draw))
        try:
            assert again(tmp_path / "points.parquet").height == 4
        except iq.ConfigError as error:
            assert "points.parquet" in str(error)


# One writer at a time


def test_a_second_run_is_told_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another scenario starts before the first run has written anything."""
    finish, says = store.Store.finish, []

    def second(self: store.Store, tables: Any, more: Any) -> None:
        with pytest.raises(iq.ConfigError) as error:
            iq.simulate(arriving(20, 50.0, 3, 3), ENGINE, seed=8, out=tmp_path / "out")
        says.append(str(error.value))
        finish(self, tables, more)

    monkeypatch.setattr(store.Store, "finish", second)
    first = written(tmp_path / "out")
    assert f"is being written by process {os.getpid()} on " in says[0] and " since 20" in says[0]
    assert iq.Result.read(tmp_path / "out").requests.collect().height == 40 == sum(first._tables.statuses)
    assert not list((tmp_path / "out").glob(".*"))


def test_a_lock_of_a_dead_process_is_in_nobodys_way(tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from inferq.files import locked
place = pathlib.Path({str(tmp_path)!r})
with locked("out", place, place / ".lock"):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 9
    assert (tmp_path / ".lock").exists() and (tmp_path / ".lock.json").exists()
    assert written(tmp_path).requests.collect().height == 40  # as D8 leaves it: no manifest yet
    with locked("out", tmp_path, tmp_path / ".lock"), pytest.raises(iq.ConfigError, match="being written"):
        written(tmp_path)


def test_a_run_that_was_killed_in_its_first_instant_starts_again(tmp_path: Path) -> None:
    for number, left in enumerate(
        (["requests"], ["requests", ".manifest.json.7-0.part"], [".lock", ".lock.json"])
    ):
        place = tmp_path / str(number)
        place.mkdir()
        for name in left:
            (place / name).mkdir() if name == "requests" else (place / name).touch()
        assert written(place).requests.collect().height == 40


def test_a_sweep_holds_its_file_alone(tmp_path: Path) -> None:
    path, went = tmp_path / "points.parquet", threading.Event()

    def waiting_chat(rate: float) -> Any:
        if not went.is_set():
            went.set()
            with pytest.raises(iq.ConfigError, match=r"resume: .*points\.parquet is being written by"):
                iq.sweep(waiting_chat, key="chat", resume=path, rate=[1.0])
        return arriving(20, rate, 3, 3), ENGINE

    assert iq.sweep(waiting_chat, key="chat", resume=path, rate=[2.0, 4.0])["status"].to_list() == [
        "done",
        "done",
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["points.parquet"]


KILLED = """
import sys
import inferq as iq
from inferq.workload import parts
from inferq.results import store
parts.ROWS, store.PART_ROWS = 512, 1000
length, kind, out, seed = iq.dist.Fixed(3), sys.argv[1], sys.argv[2], int(sys.argv[3])
engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
def work(n, rate):
    return iq.Workload.synthetic(requests=n, arrivals=iq.dist.Poisson(rate), prompt=length, output=length)
if kind == "out":
    iq.simulate(work(12_000, 50), engine, out=out, seed=seed)
else:
    def chat(rate):
        return work(2000, rate), engine
    iq.sweep(chat, resume=out, rate=range(1, 13), seeds=[seed])
"""


def killed(kind: str, out: Path, seeds_of: tuple[int, ...], after_s: float) -> list[int]:
    """Start processes in one directory, kill them after a while, and return their statuses."""
    line = [sys.executable, "-W", "ignore", "-c", KILLED, kind, str(out)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([*line, str(seed)], **quiet) for seed in seeds_of]  # type: ignore[call-overload]
    time.sleep(after_s)
    for process in processes:
        process.kill()
    return [process.wait(timeout=60) for process in processes]


@pytest.mark.skipif(not NIGHT, reason="minutes of processes that are killed; at night")
def test_kills_lose_and_mix_nothing(tmp_path: Path) -> None:
    """Runs, sweeps, and two runs in one directory; see `kills`."""
    for seed in range(9):
        kills(tmp_path / str(seed), seed, random.Random(f"{NIGHT}{seed}"))


def kills(folder: Path, number: int, draw: random.Random) -> str:
    """Kill writers at random instants and complete them; the files must equal those of an undisturbed run."""
    folder.mkdir()
    kind, both = ("out", "sweep", "out")[number % 3], number % 3 == 2
    place = folder / ("points.parquet" if kind == "sweep" else "out")
    for _ in range(2):
        statuses = killed(kind, place, (7, 8) if both else (7,), draw.uniform(0.3, 2.0))
        assert not both or kind == "sweep" or statuses.count(0) < 2, "two runs of two scenarios at one place"
    for seed in (7, 8) if both else (7,):
        line = [sys.executable, "-W", "ignore", "-c", KILLED, kind, str(place), str(seed)]
        ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=110)
        if kind == "out" and ended.returncode:
            assert "contains this run, complete" in ended.stderr or "another scenario" in ended.stderr
    length = iq.dist.Fixed(3)
    if kind == "sweep":
        frame = pl.read_parquet(place)
        assert frame.height == 12 and set(frame["status"]) == {"done"}
        assert frame["rate"].to_list() == list(range(1, 13)) and set(frame["seed"]) == {7}
        assert not list(folder.glob(".*"))
        return "sweep"
    read = iq.Result.read(place)
    seed = json.loads(read.scenario)["run"]["seed"]
    arrivals = {"arrivals": iq.dist.Poisson(50), "prompt": length, "output": length}
    alone = iq.simulate(iq.Workload.synthetic(requests=12_000, **arrivals), ENGINE, seed=seed)  # type: ignore[arg-type]
    assert read.requests.collect().equals(alone.requests) and seed in ((7, 8) if both else (7,))
    return "two" if both else "out"


# What is written


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (iq.simulate(arriving(rows, 50.0, 3, 3), ENGINE) for rows in (20, 90))
    small.write(tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    real, calls = os.fsync, iter(range(100))

    def full(number: int) -> None:
        if next(calls) == 3:
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        large.write(tmp_path / "out")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == set(before), "nothing half is left"


@pytest.mark.parametrize("out", ["", 5, b"x", "a\0b", "\ud800", None])
def test_what_is_no_path_is_refused(out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = iq.simulate(arriving(5, 50.0, 3, 3), ENGINE)
    with pytest.raises(iq.ConfigError, match="directory: must be the path of a directory"):
        result.write(out)
    with pytest.raises(iq.ConfigError, match="directory: must be the path of a directory"):
        iq.Result.read(out)
    if out is not None:
        with pytest.raises(iq.ConfigError, match="out: must be the path of a directory"):
            iq.simulate(arriving(5, 50.0, 3, 3), ENGINE, out=out)
    assert not list(tmp_path.iterdir())


def test_a_table_for_spreadsheets_has_no_formulas(tmp_path: Path) -> None:
    frame = pl.DataFrame({"class": ["=1+1", "@x", "-2", "+3", "chat", None], "value": [-1.5, 2, 3, 4, 5, 6]})
    write_table(tmp_path / "table.csv", frame)
    read = pl.read_csv(tmp_path / "table.csv")
    assert read["class"].to_list() == ["'=1+1", "'@x", "'-2", "'+3", "chat", None]
    assert read["value"].to_list() == frame["value"].to_list()


# What is read


def test_pipes_devices_and_endless_links_are_refused_at_once(tmp_path: Path, chat_toml: Path) -> None:
    """For every function that reads a file."""
    if sys.platform == "win32":
        pytest.skip("has no pipes with names in folders")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    reads: list[Any] = [iq.Scenario.read, ScenarioFile.read, iq.read_trace, iq.Workload.scan]
    reads += [iq.TimingTable.read, iq.timing.ModelShape.of]
    reads += [lambda path: iq.gate(chat_toml, path), lambda path: iq.gate(path, tmp_path / "none.json")]
    for name in ("pipe.toml", "loop.toml", "zero.toml"):
        for read in reads:
            with pytest.raises((iq.ConfigError, iq.TraceError, OSError)) as error:
                read(tmp_path / name)
            said = str(error.value)
            assert re.search("pipe or a device|does not exist|no such file|[Tt]oo many levels", said), said


def test_a_packed_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferq.workload.traces import source

    head = b"arrival_s,prompt_tokens,output_tokens\n"
    (tmp_path / "trace.gz").write_bytes(gzip.compress(head + b"1,1,1\n" * 2_000_000, 9))
    monkeypatch.setattr(source, "_MOST_UNPACKED", 1 << 20)
    with pytest.raises(iq.TraceError, match=r"unpacks to more than 1,048,576: decompress it first"):
        iq.read_trace(tmp_path / "trace.gz")
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(bytes(50_000_000), 9))
    with pytest.raises(iq.TraceError, match="neither Parquet nor text"):  # as its head says
        iq.read_trace(tmp_path / "zeros.gz")


def test_a_few_bytes_of_parquet_cannot_be_endless_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferq import inputs

    rows = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]}
    pl.concat([pl.DataFrame(rows)] * 200_000).write_parquet(tmp_path / "work.parquet")
    monkeypatch.setattr(inputs, "MOST_ROWS", 1000)
    for read in (iq.read_trace, iq.Workload.scan):
        with pytest.raises(iq.TraceError, match="states 200,000 rows in"):
            read(tmp_path / "work.parquet")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"workload": {}, "workload": {}}', "the key 'workload' occurs twice"),
        ("a.json", "[" * 100_000, "is nested too deeply"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "is not JSON: "),
        ("a.toml", "a = " + "9" * 5000, "is not TOML: "),
        ("a.toml", "a = " + "[" * 100_000, "is not TOML|nested too deeply"),
        ("a.toml", "a = " + "[" * 300 + "]" * 300, "nested too deeply"),
        ("a.toml", '[run]\nout = "x"\n[workload]', "run.out: not supported in a scenario"),
        ("a.json", '{"seed": 1, "seed": 2}', "is not JSON: the key 'seed' occurs twice in one object"),
    ],
)
def test_a_scenario_that_is_wrong_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(iq.ConfigError, match=said) as error:
        iq.Scenario.read(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_the_command_line_says_one_line_and_ends_with_2(tmp_path: Path) -> None:
    """Also for an unexpected error, with a hint to its traceback."""
    (tmp_path / "a.toml").write_text("a = " + "9" * 5000)
    ended = run("simulate", tmp_path / "a.toml")
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    program = (
        "import inferq.cli.theory as t, inferq.cli as c\n"
        "def broken(*a, **k): raise IndexError('no such')\n"
        "t.arguments.scenario = broken\nc.app(['theory', 'x.toml'])"
    )
    for value in ("", "1"):
        environment = {**os.environ, "INFERQ_TRACEBACK": value}
        line = [sys.executable, "-c", program]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        if value:
            assert "Traceback" in done.stderr
        else:
            assert (done.returncode, done.stderr) == (
                2, "inferq: IndexError: no such (INFERQ_TRACEBACK=1 shows the traceback)\n",
            )  # fmt: skip


TALK = {"id": "x", "conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "c"}]}


def test_a_panic_is_told_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the package; other text on standard error remains."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # but for those of pytest

    def panics() -> None:
        os.write(2, b"thread panicked at file.rs\n")
        raise pl.exceptions.PanicException("boom")

    with pytest.raises(iq.ConfigError, match="cannot be read as Parquet: boom"):
        guarded(panics)
    guarded(lambda: os.write(2, b"a warning\n"))
    assert capfd.readouterr().err == "a warning\n"


def test_a_page_reads_all_before_it_runs_any(tmp_path: Path) -> None:
    ended = run("report", ROOT / "docs" / "chat.toml", tmp_path / "absent.toml", "--out", tmp_path / "a.html")
    assert ended.returncode == 2 and "absent.toml" in ended.stderr and not ended.stdout


def test_lone_surrogates_and_decimals_are_read(tmp_path: Path) -> None:
    talk = {
        "id": "\ud800",
        "conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}],
    }
    (tmp_path / "talks.json").write_text(json.dumps([talk]))
    frame = iq.read_trace(tmp_path / "talks.json", tokens_per_word=1.0).frame
    assert frame["session_id"].to_list() == ["\\ud800"]
    columns = {"arrival_s": pl.Series([Decimal("0.5")]), "prompt_tokens": pl.Series([Decimal(7)])}
    frame = iq.Workload({**columns, "output_tokens": [1]}).frame
    assert frame.row(0) == (0.5, 7, 1)
    with pytest.raises(iq.TraceError, match=r"row 0: prompt_tokens is 7\.5, must be an integer"):
        iq.Workload({"arrival_s": [0.0], "prompt_tokens": pl.Series([Decimal("7.5")]), "output_tokens": [1]})


def test_a_tokenizer_that_breaks_is_named(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "talks.json").write_text(json.dumps([TALK]))
    with pytest.raises(iq.ConfigError, match=r"tokenizer\.json: cannot count the tokens of a text"):
        iq.read_trace(tmp_path / "talks.json", tokenizer=tmp_path / "tokenizer.json")


def test_a_tokenizer_that_panics_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # but for those of pytest
    tokenizers = pytest.importorskip("tokenizers")
    of_words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    endless = tokenizers.Regex("(a+)+b")
    of_words.pre_tokenizer = tokenizers.pre_tokenizers.Split(endless, "isolated")
    of_words.save(str(tmp_path / "tokenizer.json"))
    said = [{"from": "human", "value": 60 * "a"}, {"from": "gpt", "value": "c"}]
    (tmp_path / "talks.json").write_text(json.dumps([{"id": "x", "conversations": said}]))
    with pytest.raises(iq.ConfigError, match=r"cannot count the tokens of a text: .*retry-limit"):
        iq.read_trace(tmp_path / "talks.json", tokenizer=tmp_path / "tokenizer.json")
    assert not capfd.readouterr().err


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_readers_refuse_any_bytes_by_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file.json"
    path.write_bytes(content)
    for read in (iq.read_trace, iq.Scenario.read, iq.Workload.scan, iq.TimingTable.read):
        with pytest.raises((iq.ConfigError, iq.TraceError)):
            read(path)


def test_mutated_scenarios_are_read_or_refused_by_name(tmp_path: Path) -> None:
    draw = chance("toml")
    for _ in seeds(150):
        (tmp_path / "a.toml").write_bytes(in_bytes(draw.choice(TOML).encode(), draw))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                iq.Scenario.read(tmp_path / "a.toml")
            except (iq.ConfigError, iq.TraceError, FileNotFoundError) as error:
                assert str(error)


PLAIN = st.none() | st.booleans() | st.integers() | st.text()
NESTED = st.recursive(
    PLAIN, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3)
)


@given(NESTED)
def test_a_value_survives_our_json(value: Any) -> None:
    assert parsed_json(json.dumps(value)) == value
    assert parsed_toml("") == {}


@pytest.mark.parametrize("part", range(6))
@pytest.mark.skipif(not NIGHT or sys.platform == "win32", reason="minutes of processes with bounds; at night")
def test_no_wrong_file_aborts_hangs_or_takes_the_memory(part: int, tmp_path: Path) -> None:
    draw = chance(f"commands {part}")
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        arguments = wrong(draw, tmp_path / str(number))
        process = ended(command(*arguments), tmp_path / str(number))
        assert not process.fault, (process.fault, arguments, process.said)


# Names


def test_no_name_ends_a_picture_a_page_or_a_terminal(tmp_path: Path) -> None:
    names = [f"c{at}{nasty}{NASTY[-1 - at]}" for at, nasty in enumerate(NASTY[:6])] * 5
    work = {"arrival_s": [0.1 * at for at in range(30)], "prompt_tokens": [5] * 30, "output_tokens": [4] * 30}
    work = {**work, "class": names}
    result = iq.simulate(work, ENGINE)
    page = iq.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    assert not any(letter in page for letter in HIDDEN) and "\\u202e" in page
    chart = result.plot.latency()
    chart.save(tmp_path / "chart.svg")
    chart.save(tmp_path / "chart.html")
    text = (tmp_path / "chart.html").read_text(encoding="utf-8")
    assert text.count("</script>") == text.count("<script") and "<!--" not in text
    pl.DataFrame(work).write_parquet(tmp_path / "work.parquet")
    shown = run("replay", tmp_path / "work.parquet")
    assert shown.returncode == 0 and not any(letter in shown.stdout for letter in HIDDEN)
    assert "\\x1b[2J" in shown.stdout
