"""Pages of runs and experiments: their numbers, their layout on any screen, and no external resources."""

import base64
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.display import document
from inferq.display.style import DARK, INK
from inferq.display.text import number, percent, seconds, sentence
from inferq.reports import run_data
from inferq.reports.stability import in_the_long_run
from inferq.scenario import Scenario

from .browser import Browser, chromium
from .lin2026 import cluster
from .markup import Page
from .pictured import ENGINE, SHORT, run_of_a_fleet, synthetic

NAMES = ("chat", "code <completion> of everybody & all")
PARTS = [
    "Setup",
    "Latency",
    "Queue and memory",
    "Inter-token latency",
    "Capacity",
    "Replicas",
    "Reproduce",
]
SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]


@pytest.fixture(scope="module")
def fleet() -> iq.Result:
    return run_of_a_fleet(*NAMES)


@pytest.fixture(scope="module")
def page(fleet: iq.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return iq.report(fleet, tmp_path_factory.mktemp("report") / "fleet.html", title="A fleet & its <queue>")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium to look at a page (Debian: apt-get install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_a_page_stands_alone(page: Path):
    text = page.read_text(encoding="utf-8")
    held = Page(text)
    assert len(set(held.names)) == len(held.names)
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(held.tags)
    # one script, which the page knows by its hash; the rest is data
    scripts = re.findall(r"<script( type=\"application/json\")?>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == held.tags.count("script") and [kind for kind, _ in scripts].count("") == 1
    (script,) = (held for kind, held in scripts if not kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and not re.search(r"fetch|import\(|XMLHttp|eval", script)
    assert all(json.loads(held) is not None for kind, held in scripts if kind)
    assert all(link.startswith("#") and link[1:] in held.names for link in held.links)
    without_names_of_spaces = re.sub(r'xmlns(:\w+)?="[^"]*"|const SVG = "[^"]*"', "", text)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", without_names_of_spaces)
    assert "default-src 'none'" in text
    assert held.of("title") == held.of("h1") == ["A fleet & its <queue>"]
    assert len(text) < 500_000


def test_the_parts_come_in_order(page: Path):
    held = Page(page.read_text(encoding="utf-8"))
    assert held.of("h2") == PARTS
    # each as wide as the page, and as wide as a phone
    assert held.tags.count("svg") == 2 * held.tags.count("figure") == 14
    assert held.of("summary") == ["Scenario as JSON", "Theory in detail"]


def test_numbers_are_those_of_the_summary(fleet: iq.Result, page: Path):
    held = Page(page.read_text(encoding="utf-8"))
    whole = fleet.summary().row(0, named=True)
    facts = dict(zip(held.of("dt"), held.of("dd"), strict=True))
    assert facts["finished"] == f"{whole['completed']:,}"
    assert facts["output tokens/s"] == number(whole["output_throughput"])
    assert facts["TTFT P99"] == seconds(whole["ttft_p99"])
    assert facts["ITL P99"] == seconds(whole["itl_p99"])
    cells = " | ".join(held.of("td"))
    groups = [*fleet.summary(by="class").rows(named=True), {"class": "all", **whole}]
    for row in groups:
        for latency in ("ttft", "itl", "tpot", "e2e", "queue"):
            told = [seconds(row[f"{latency}_{one}"]) for one in ("mean", "p50", "p90", "p95", "p99", "max")]
            assert " | ".join([str(row["class"]), *told]) in cells, (row["class"], latency)
    for row in fleet.summary(by="replica").rows(named=True):
        assert f"{row['replica']} | {row['completed']:,} | {row['failed']:,}" in cells


def test_the_scenario_on_the_page_repeats_the_run(fleet: iq.Result, page: Path):
    scenario, theory = Page(page.read_text(encoding="utf-8")).of("pre")
    assert json.loads(scenario) == json.loads(fleet.scenario)
    assert theory.startswith(iq.theory.stability(fleet._workload, fleet._system).verdict)


def test_findings_are_above_the_numbers_with_the_tightest_bound(tmp_path: Path):
    drowning = iq.simulate(synthetic(2000, 60, 400, 100).with_patience(20.0), ENGINE, seed=1)
    assert drowning.findings
    held = Page(iq.report(drowning, tmp_path / "page.html").read_text(encoding="utf-8"))
    told = held.of("li")
    for finding in drowning.findings:
        assert any(sentence(finding) in one for one in (*told, *held.of("p")))
    said = iq.theory.stability(drowning._workload, drowning._system)
    assert any(said.binding.name in one and number(said.binding.capacity_per_s) in one for one in told)
    texts = [text for _, text in held.texts]
    assert max(map(texts.index, told)) < texts.index(PARTS[0])


def test_an_unstable_run_is_called_so(tmp_path: Path):
    drowning = iq.simulate(synthetic(3000, 60, 400, 100), ENGINE, seed=1)
    told = Page(iq.report(drowning, tmp_path / "page.html").read_text(encoding="utf-8")).of("li")
    assert iq.theory.observed(drowning).verdict == "unstable"
    assert any(one.startswith("The queue grew: ") for one in told)
    assert any(
        one.startswith("The queue is unstable in the long run: 60 requests per second") for one in told
    )


def test_a_comparison_has_a_page(tmp_path: Path):
    from inferq.experiments.comparison.compare import compare
    from inferq.experiments.comparison.tables import difference

    whole = iq.Engine(timing=ENGINE.timing, scheduler=iq.VllmV0(), kv=ENGINE.kv)
    systems = {"sarathi": ENGINE, "vllm-v0": whole}
    found = compare(synthetic(300, 8, 600, 60), systems, seeds=range(3), metrics=["ttft_p99", "itl_p99"])
    held = Page(iq.report(found, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert held.of("h1") == ["vllm-v0 against sarathi"]
    assert held.tags.count("svg") == 2
    for row in found.frame.filter(system="vllm-v0").rows(named=True):
        line = held.of("td")[held.of("td").index(row["metric"]) :][:5]
        assert line[2] == seconds(row["mean"]) and line[4] == row["verdict"]
        words = {"better": "better in", "worse": "worse in"}.get(row["verdict"])
        words = words or f"shows no significant difference in {row['metric']} ({difference(row)})"
        assert any(words in one and row["metric"] in one for one in held.of("li"))
    for finding in found.findings:
        assert any(finding.message[:40] in one for one in held.of("li"))
    scenario = json.loads(held.of("pre")[-1])
    assert scenario["systems"]["vllm-v0"] == whole.to_json()
    assert scenario["seeds"] == [0, 1, 2] and scenario["workload"] == synthetic(300, 8, 600, 60).to_json()
    times = synthetic(300, 8, 600, 60).draw(0).frame["arrival_s"]
    rate = number(299 / (times[-1] - times[0]))
    assert f"300 requests drawn from distributions at {rate} per second in the first run" in held.of("p")[0]
    assert "3 seeds, 0 to 2." in " ".join(held.of("p"))
    trace = iq.read_trace(Path(__file__).parent.parent / "traces" / "azure_2023.csv").at_rate(9)
    few = compare(trace.head(40), systems, metrics=["ttft_p99", "failed_share"])  # no interval: not judged
    text = iq.report(few, tmp_path / "few.html").read_text(encoding="utf-8")
    # The trace is scaled to 9/s, its first 40 requests arrive at another rate.
    times = trace.head(40).frame["arrival_s"]
    assert f"40 requests from azure_2023.csv at {number(39 / (times[-1] - times[0]))} per second" in text
    assert "vllm-v0 differs, without a verdict, in ttft_p99" in text
    assert "is equal in all" not in text and "not distinguishable" not in text


def test_a_capacity_has_a_page(tmp_path: Path):
    from inferq.experiments.capacity_search.capacity import capacity
    from inferq.results.slo import Slo

    plan = capacity(synthetic(300, 8, 600, 60), ENGINE, Slo(ttft_p50=0.5), seeds=range(2), precision=0.5)
    held = Page(iq.report(plan, tmp_path / "page.html").read_text(encoding="utf-8"))
    facts = dict(zip(held.of("dt"), held.of("dd"), strict=True))
    assert facts["capacity, requests/s"] == number(plan.rate, 4)
    answer = f"ttft_p50 ≤ 500.0 ms is met up to {number(plan.rate, 4)} per second with 95 % confidence."
    assert f"✓ {answer}" in held.of("p")
    assert all(one[0].isupper() and one.endswith(".") for one in held.of("li"))
    assert held.of("h1") == [f"{number(plan.rate, 4)} requests per second: 1 replica with Sarathi"]
    assert plan.theory is not None and plan.theory.load is not None
    at_rate = percent(plan.rate / plan.theory.binding.capacity_per_s)
    assert any(one.startswith(f"{at_rate} of the upper bound") for one in held.of("td"))
    assert json.loads(held.of("pre")[-1])["system"] == ENGINE.to_json()
    for probe in plan.probed:
        assert f"{probe.rate:.4g}" in held.of("td")
    assert held.tags.count("svg") == 2


def test_the_same_run_gives_the_same_page(fleet: iq.Result, page: Path, tmp_path: Path):
    again = iq.report(fleet, tmp_path / "again.html", title="A fleet & its <queue>")
    assert again.read_bytes() == page.read_bytes()


def test_the_verdict_on_objectives_is_first(fleet: iq.Result, tmp_path: Path):
    row = fleet.summary().row(0, named=True)
    kept = iq.Slo(ttft_p99=2 * row["ttft_p99"], itl_p99=1.5 * row["itl_p99"])
    held = Page(iq.report(fleet, tmp_path / "kept.html", slo=kept).read_text(encoding="utf-8"))
    met = f"ITL P99 ≤ {seconds(1.5 * row['itl_p99'])} and TTFT P99 ≤ {seconds(2 * row['ttft_p99'])}"
    assert held.of("p")[0] == f"✓ SLO met: {met}."
    assert held.of("td")[:5] == [
        "ITL P99",
        seconds(1.5 * row["itl_p99"]),
        seconds(row["itl_p99"]),
        "−33.3 %",
        "✓ met",
    ]
    broken = iq.Slo(ttft_p99=row["ttft_p99"] / 2)
    text = iq.report(fleet, tmp_path / "broken.html", slo=broken).read_text(encoding="utf-8")
    held = Page(text)
    limit = seconds(row["ttft_p99"] / 2)
    said = f"✗ SLO missed: TTFT P99 is {seconds(row['ttft_p99'])}, the limit is {limit}."
    assert held.of("p")[0] == said and held.of("td")[4] == "✗ missed"
    assert f"limit {limit}, dashed" in text
    assert dict(zip(held.of("dt"), held.of("dd"), strict=True))["Objectives"] == f"TTFT P99 ≤ {limit}"
    with pytest.raises(iq.ConfigError, match=r"^slo: must be an Slo"):
        iq.report(fleet, tmp_path / "page.html", slo={"ttft_s": 1})  # type: ignore[arg-type]


def test_the_page_says_model_hardware_engine_and_trace(tmp_path: Path):
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=2, server="vllm-0.33")
    trace = iq.read_trace(Path(__file__).parent.parent / "traces" / "azure_2023.csv").at_rate(9)
    result = iq.simulate(trace, iq.Cluster(engine, replicas=3, router=iq.RoundRobin()))
    text = iq.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    held = Page(text)
    assert held.of("h1") == ["llama-3.1-8b on 6 × h100-80gb, vllm-0.33 at 9.00 requests/s"]
    ran = dict(zip(held.of("dt"), held.of("dd"), strict=True))
    assert ran["Model"] == "llama-3.1-8b" and ran["Hardware"] == "6 × h100-80gb (2 per replica)"
    assert ran["Engine"].startswith("vllm-0.33 (VllmV1), up to 8,192 tokens and 1,024 sequences per batch")
    assert ran["Fleet"] == "3 replicas behind RoundRobin" and "Apache-2.0" in ran["Timing"]
    assert ran["Requests"].startswith("300 from azure_2023.csv; mean prompt ")


def test_several_runs_stand_side_by_side(fleet: iq.Result, tmp_path: Path):
    other = iq.simulate(synthetic(500, 20, 300, 80), ENGINE, seed=1)
    runs = {"three": fleet, "one": other}
    held = Page(iq.report(runs, tmp_path / "both.html").read_text(encoding="utf-8"))
    assert held.of("h1") == ["three and one: 2 runs side by side"]
    cells, (a, b) = held.of("td"), (one.summary().row(0, named=True) for one in runs.values())
    for name in ("ttft_p99", "e2e_p50"):
        line = cells[cells.index(f"{name[:-4].upper()} {name[-3:].upper()}") :][:4]
        assert line[1:] == [seconds(a[name]), seconds(b[name]), percent(b[name] / a[name] - 1, sign=True)]
    assert held.tags.count("svg") == 2 * 4
    assert any(one.startswith("Each system has one run") for one in held.of("li"))
    for wrong, said in (
        ({"a": fleet}, "2 to 6 runs"),
        ([fleet, 3], "run 2 must be a Result"),
        ({1: fleet, 2: other}, "non-empty text"),
    ):
        with pytest.raises(iq.ConfigError, match=said):
            iq.report(wrong, tmp_path / "page.html")


def test_runs_with_little_to_show_have_a_page_too(tmp_path: Path):
    rejected = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [5000], "output_tokens": [3]}, SHORT)
    held = Page(iq.report(rejected, tmp_path / "rejected.html").read_text(encoding="utf-8"))
    assert "svg" not in held.tags
    assert any("Rejected: 1 of 1" in one for one in held.of("p"))
    one = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]}, SHORT)
    assert "svg" in Page(iq.report(one, tmp_path / "one.html").read_text(encoding="utf-8")).tags


def test_every_kind_of_system_has_a_page(tmp_path: Path):
    chain = iq.Workflow(
        "chain",
        stages={
            "draft": iq.Stage("large", prompt=50, output=iq.dist.Geometric(20)),
            "check": iq.Stage("small", prompt=30, output=10, after="draft", includes="draft"),
        },
    )
    network = iq.Network(
        {"large": iq.Cluster(ENGINE, replicas=2, router=iq.Random()), "small": ENGINE}, [chain]
    )
    jobs = iq.simulate(iq.Workload.synthetic(requests=60, arrivals=iq.dist.Poisson(3)), network, seed=1)
    held = Page(iq.report(jobs, tmp_path / "network.html").read_text(encoding="utf-8"))
    assert "Stages" in held.of("h2")
    ran = dict(zip(held.of("dt"), held.of("dd"), strict=True))
    assert ran["Requests"].startswith("120 drawn from distributions in 60 jobs")
    assert ran["Fleet"] == "network of the engines large and small"
    facts = dict(zip(held.of("dt"), held.of("dd"), strict=True))
    took_s = jobs.jobs["e2e_s"]
    assert facts["finished jobs"] == "60" and facts["finished stages"] == "120"
    assert facts["E2E of a job, P99"] == seconds(took_s.quantile(0.99, "linear"))
    assert held.of("h3")[:2] == ["Jobs", "Stages"]
    cells = " | ".join(held.of("td"))
    told = [took_s.mean(), *(took_s.quantile(p / 100, "linear") for p in (50, 90, 95, 99)), took_s.max()]
    assert cells.startswith(" | ".join(["all", "60", "0", *map(seconds, told)]))

    link = iq.Link(latency_s=0.001, bytes_per_s=25e9, bytes_per_token=131_072)
    handed = iq.simulate(
        synthetic(60, 10, 100, 20), iq.Disaggregated(prefill=(ENGINE, 1), decode=(ENGINE, 2), link=link)
    )
    held = Page(iq.report(handed, tmp_path / "handed.html").read_text(encoding="utf-8"))
    assert "1 prefill replica, 2 decode replicas" in held.of("dd")

    plan = iq.research.Allocation(prefill={"default": 0.1}, prefill_queue={"default": 0.3})
    held = Page(
        iq.report(
            iq.simulate(synthetic(60, 3, 300, 30), cluster(plan, replicas=5)), tmp_path / "slots.html"
        ).read_text("utf-8")
    )
    assert held.of("h1")[0].startswith("5 replicas with GateAndRoute at ")


def told_of(result: iq.Result, folder: Path) -> tuple[Page, list[str], dict[str, str]]:
    """The page of a run, its notes, and its facts."""
    held = Page(iq.report(result, folder / "page.html").read_text(encoding="utf-8"))
    return held, held.of("li"), dict(zip(held.of("dt"), held.of("dd"), strict=True))


def test_a_run_that_its_horizon_cut_says_so(tmp_path: Path):
    cut = iq.simulate(synthetic(3000, 20, 400, 100), ENGINE, seed=1, horizon_s=30.0)
    status = cut.requests["status"].value_counts().rows()
    under_way = dict(status)["unfinished"]
    _, told, facts = told_of(cut, tmp_path)
    assert told[0] == (
        f"The run ended at its horizon of 30.00 s: {under_way:,} requests were unfinished and "
        f"{3000 - cut.requests.height:,} of 3,000 had not arrived."
    )
    assert facts["unfinished at the end"] == f"{under_way:,}"
    before = iq.simulate({"arrival_s": [5.0], "prompt_tokens": [5], "output_tokens": [3]}, SHORT, horizon_s=1)
    held, _, facts = told_of(before, tmp_path)
    assert held.of("p")[0].startswith(
        "✗ Nothing-arrived: the run ended at 1 s, before the first of 1 request"
    )
    assert facts["finished"] == "0"
    whole = iq.simulate({"arrival_s": [5.0], "prompt_tokens": [5], "output_tokens": [3]}, SHORT, horizon_s=99)
    assert not any("horizon" in one for one in told_of(whole, tmp_path)[1])


def test_goodput_is_told_where_there_are_objectives(tmp_path: Path):
    plain = synthetic(60, 3, 30, 10)
    assert "goodput, requests/s" not in told_of(iq.simulate(plain, ENGINE), tmp_path)[2]
    asked = {"arrival_s": [0.0, 0.1], "prompt_tokens": [50, 9], "output_tokens": [5, 5]}
    bound = iq.simulate({**asked, "ttft_slo_s": [0.001, 0.5]}, ENGINE)
    facts = told_of(bound, tmp_path)[2]
    assert facts["goodput, requests/s"] == number(bound.summary()["request_goodput"].item())


def test_a_handful_of_requests_is_no_word_about_the_long_run(tmp_path: Path):
    batch = {"arrival_s": [0.0, 0.05, 0.1], "prompt_tokens": [900] * 3, "output_tokens": [400] * 3}
    slow = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
    _, told, _ = told_of(iq.simulate(batch, slow), tmp_path)
    assert not any("long run" in one for one in told)
    assert any(
        one.startswith("If requests continue to arrive at this rate, the queue is unstable") for one in told
    )


def test_findings_are_sentences(fleet: iq.Result, page: Path):
    told = Page(page.read_text(encoding="utf-8")).of("li")
    assert told and all(one[0].isupper() and one.endswith(".") for one in told)


def test_many_classes_are_shown_as_far_as_they_can_be_read(tmp_path: Path):
    long = "a class with a name that is far too long for a table of numbers on any screen"
    kinds = {f"class {place:02}": synthetic(30 - place, 5, 20, 5) for place in range(24)}
    many = iq.simulate(iq.Workload.mix({long: synthetic(40, 5, 20, 5), **kinds}), ENGINE, seed=1)
    text = iq.report(many, tmp_path / "page.html").read_text(encoding="utf-8")
    held = Page(text)
    assert sum("The 6 classes with the most requests, of 25." in one for one in held.of("figcaption")) == 3
    assert "class 18" in held.of("td") and "class 19" not in held.of("td")
    assert any(
        "the 20 classes with the most requests; Result.summary has all 25" in one.replace("`", "")
        for one in held.of("p")
    )
    assert f'title="{long}"' in text and long not in held.of("td")


def test_links_stay_and_devices_are_written_to(tmp_path: Path):
    result = iq.simulate(synthetic(30, 3, 30, 3), ENGINE, iterations=True)
    kept, link = tmp_path / "kept.html", tmp_path / "link.html"
    kept.write_text("old", encoding="utf-8")
    kept.chmod(0o640)
    link.symlink_to(kept)
    iq.report(result, link)
    assert link.is_symlink() and kept.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert kept.stat().st_mode & 0o777 == 0o640
    full = tmp_path / "full.json"
    if not Path("/dev/full").exists():
        pytest.skip("needs the device /dev/full")
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        result.to_perfetto(full)
    assert raised.value.filename == str(full)
    assert Path("/dev/full").is_char_device() and full.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full.json", "kept.html", "link.html"]


def test_a_scenario_too_long_to_read_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document, "MOST_LETTERS", 100)
    result = iq.simulate(synthetic(30, 3, 30, 3), ENGINE)
    scenario = Page(iq.report(result, tmp_path / "page.html").read_text(encoding="utf-8")).of("pre")[0]
    assert scenario.startswith(" ".join(result.scenario[:100].split())) and "more characters" in scenario


def test_what_cannot_be_shown_or_written_is_refused(fleet: iq.Result, tmp_path: Path):
    for shown, path, title, said in (
        (fleet, tmp_path / "page.pdf", None, "must end in .html"),
        (fleet, tmp_path / "nowhere" / "page.html", None, "does not exist"),
        (fleet, tmp_path / "page.html", "  ", "title"),
        (fleet, tmp_path / "page\0.html", None, "^path: must be the path"),
        (fleet, 3, None, "^path: must be the path of a file, got 3"),
        (fleet, b"page.html", None, "^path: must be the path"),
        (fleet, tmp_path, None, "is a directory"),
        (fleet.requests, tmp_path / "page.html", None, "got a DataFrame"),
    ):
        with pytest.raises(iq.ConfigError, match=said):
            iq.report(shown, path, title=title)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = iq.simulate(synthetic(30, 3, 30, 3), ENGINE)
    page = iq.report(result, tmp_path / "page.html")
    old = page.read_bytes()

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as raised:
        iq.report(result, page, title="another")
    assert raised.value.filename == str(page)  # the name that was given, not that of the part
    assert page.read_bytes() == old
    assert list(tmp_path.iterdir()) == [page]


def test_the_command_writes_a_page_and_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(
        '[workload]\nrequests = 20\narrivals = { kind = "Poisson", rate = 1.0 }\n'
        'prompt = { kind = "Geometric", mean = 20 }\n'
        'output = { kind = "Geometric", mean = 5 }\n'
        '[engine]\nkv = "unlimited"\n[engine.timing]\nkind = "Constant"\nseconds = 0.1\n'
        '[engine.scheduler]\nkind = "Sarathi"\n',
        encoding="utf-8",
    )
    done = CliRunner().invoke(app, ["report", "short.toml", "--perfetto", "short.json"])
    assert done.exit_code == 0, done.output
    assert "written to short.html" in done.output and "written to short.json" in done.output
    held = Page(Path("short.html").read_text(encoding="utf-8"))
    assert held.of("h1")[0].startswith("short: 1 replica with Sarathi at ")
    assert json.loads(Path("short.json").read_text(encoding="utf-8"))["traceEvents"]
    monkeypatch.setattr(Scenario, "run", lambda *_, **__: pytest.fail("refused before the run"))
    for option, value, said in (
        ("--out", "nowhere/page.html", "out: directory 'nowhere' does not exist"),
        ("--out", "page.pdf", "out: must end in .html"),
        ("--perfetto", "nowhere/run.json", "perfetto: directory 'nowhere' does not exist"),
        ("--perfetto", "short.html", "perfetto: must differ from the page"),
        ("--title", " ", "title: must be a non-empty text"),
    ):
        refused = CliRunner().invoke(app, ["report", "short.toml", option, value])
        assert refused.exit_code == 2 and said in refused.output, (option, refused.output)


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_a_browser_shows_it_and_asks_for_nothing_else(browser: Browser, page: Path, width: int, dark: bool):
    browser.show(page, width=width, dark=dark)
    assert browser.asked_for() == [page.resolve().as_uri()]
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    # every picture has its place, no letter in it is cut, smaller than 11 of 12 pixels or over another
    seen = browser.value(
        """[...document.querySelectorAll("figure svg")].filter(svg => svg.clientWidth).map(svg => {
            const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
            const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
            const boxes = texts.map(text => text.getBoundingClientRect());
            const out = texts.filter((_, place) => {
                const at = boxes[place];
                return at.left < box.left - 1 || at.right > box.right + 1 ||
                    at.top < box.top - 1 || at.bottom > box.bottom + 1;
            });
            const over = [];
            boxes.forEach((one, first) => boxes.slice(first + 1).forEach((two, further) => {
                const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
                const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
                if (wide > 2 && high > 4) over.push(
                    texts[first].textContent + " | " + texts[first + 1 + further].textContent);
            }));
            return { width: box.width, scale, cut: out.map(text => text.textContent), over };
        })"""
    )
    assert len(seen) == 7
    for one in seen:
        assert one["width"] > 0.9 * min(width - 32, 920) and one["scale"] >= 0.92
        assert one["cut"] == [] and one["over"] == []
    letters = "getComputedStyle(document.querySelector('figure svg .role-axis-label text')).fill"
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert browser.value(letters) == rgb(DARK[INK] if dark else INK)
    assert browser.value(ground) == ("rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_the_pointer_reads_a_picture_off_and_widens_a_stretch_of_time(
    browser: Browser, page: Path, fleet: iq.Result
):
    browser.show(page, width=1280)
    picture = "[...document.querySelectorAll('figure')].find(one => /over time/.test(one.textContent))"
    browser.value(f"{picture}.scrollIntoView()")
    at = f"{picture}.querySelector('svg').getBoundingClientRect()"
    left, top = browser.value(f"{at}.x"), browser.value(f"{at}.y")

    def told() -> list[str]:
        boxes = "[...document.querySelectorAll('.values:not([hidden])')].map(one => one.innerText)"
        (text,) = browser.value(boxes)
        return text.splitlines()

    def move(kind: str, x: float, **more: object) -> None:
        browser.ask("Input.dispatchMouseEvent", type=f"mouse{kind}", x=left + x, y=top + 70, **more)

    samples = run_data.over_time(fleet)
    running = {f"{number(row['time_s'])} s": row["running"] for row in samples.rows(named=True)}
    move("Moved", 300)
    first, further, *_ = told()
    assert further == f"requests running: {number(running[first])}"
    labels = f"[...{picture}.querySelectorAll('.role-axis-label text')]"
    ticks = f"{labels}.filter(one => one.style.display != 'none').map(one => one.textContent)"
    before = browser.value(ticks)
    move("Pressed", 300, button="left", buttons=1, clickCount=1)
    move("Moved", 420, button="left", buttons=1)
    move("Released", 420, button="left", clickCount=1)
    assert browser.value(ticks) != before
    move("Moved", 500)
    inside, further, *_ = told()
    assert further == f"requests running: {number(running[inside])}"
    move("Moved", 70)
    assert abs(float(told()[0].removesuffix(" s")) - float(first.removesuffix(" s"))) < 1
    browser.value(f"{picture}.querySelector('svg').dispatchEvent(new MouseEvent('dblclick'))")
    assert browser.value(ticks) == before
    assert browser.complaints() == []


def test_the_browser_refuses_what_a_page_would_fetch(browser: Browser, page: Path, tmp_path: Path):
    text = page.read_text(encoding="utf-8")
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("<footer>", '<img src="http://127.0.0.1:9/x.png"><footer>'), "utf-8")
    browser.show(changed, width=1280)
    browser.value("1")
    assert any("Content Security Policy" in one for one in browser.complaints())


def rgb(color: str) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def test_the_picture_in_the_guide_is_the_one_that_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    guides = Path(__file__).parent.parent / "docs" / "guides"
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (guides / "inspect-a-run.md").read_text("utf-8"), re.M | re.S
    )
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks[:2]:
        exec(compile(block, "inspect-a-run.md", "exec"), namespace)
    shown = guides / "inspect-a-run.svg"
    if os.environ.get("REWRITE_DOCS"):
        shown.write_bytes(Path("queue.svg").read_bytes())
    letters = [
        re.findall(r"<text[^>]*>([^<]*)", one.read_text("utf-8")) for one in (Path("queue.svg"), shown)
    ]
    assert letters[0] == letters[1] and len(letters[0]) > 5


def test_the_load_is_a_share_of_the_attainable_rate() -> None:
    # The upper bound is only named; the share refers to the guarantee with the fewest missing hypotheses.
    verdict = iq.theory.stability(synthetic(500, 8, 400, 100), ENGINE)
    lines = in_the_long_run(verdict, "requests")
    guarantees = [bound for bound in verdict.bounds if bound.kind == "guarantee"]
    least = min(sum(not need.met for need in bound.hypotheses) for bound in guarantees)
    best = max(
        bound.capacity_per_s
        for bound in guarantees
        if sum(not need.met for need in bound.hypotheses) == least
    )
    (limit,) = [line for line in lines if line.startswith("Tightest upper bound")]
    assert "%" not in limit and limit.endswith("which may not be attainable.")
    (attained,) = [line for line in lines if line.startswith("Attainable: ")]
    assert f"{number(best)} requests per second" in attained
    assert f"the load is {percent(verdict.rate / best)} of it" in attained


def test_a_load_above_a_guarantee_is_no_share_of_an_attainable_rate() -> None:
    # Between the guarantee and the upper bound no theorem decides.
    verdict = iq.theory.stability(synthetic(500, 8, 400, 100), ENGINE)
    best = max(bound.capacity_per_s for bound in verdict.bounds if bound.kind == "guarantee")
    above = iq.theory.stability(synthetic(500, (best + verdict.capacity_per_s) / 2, 400, 100), ENGINE)
    lines = in_the_long_run(above, "requests")
    assert any(line.startswith("Guaranteed: ") for line in lines)
    assert not any("Attainable" in line for line in lines)
