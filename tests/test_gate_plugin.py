"""Does the fixture `inferq_gate` do in a test suite what `inferq gate` does in a shell?"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferq.experiments.gates.baseline import DEFAULT_FILE, read_baseline

pytest_plugins = ["pytester"]

MODULE = "inferq.experiments.gates.pytest_plugin"
LOAD = ("-p", MODULE)

SUITE = """
import inferq as iq

SECONDS = 0.02

def system():
    return iq.Engine(timing=iq.Constant(SECONDS), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())

def chat():
    return iq.Workload.synthetic(
        requests=100, arrivals=iq.dist.Poisson(5), prompt=iq.dist.Fixed(50), output=iq.dist.Geometric(mean=20)
    )

def test_chat(inferq_gate):
    report = inferq_gate("chat", chat(), system, seeds=3, tolerance={"e2e_mean": "1%"}, warmup=5)
    assert report.passed
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other plugin, and this one by name, whether it is installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def suite(pytester: pytest.Pytester):
    """Write the suite, with replacements, and run it."""

    def run(*arguments: str, replaced: tuple[str, str] = ("", ""), more: str = "") -> pytest.RunResult:
        pytester.makepyfile(test_suite=SUITE.replace(*replaced) + more)
        return pytester.runpytest_subprocess(*LOAD, "-p", "no:cacheprovider", *arguments, timeout=100)

    return run


def test_it_passes_what_is_identical_and_fails_what_is_worse(suite, pytester: pytest.Pytester):
    result = suite("--inferq-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*inferq gate*", "updated: 1 metric of 1 scenario is new"])
    baseline = pytester.path / DEFAULT_FILE
    assert list(read_baseline(baseline)) == ["chat"]
    before = baseline.read_bytes()

    result = suite()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["passed: 1 metric of 1 scenario is identical"])

    worse = suite("--inferq-summary", "gate.md", replaced=("SECONDS = 0.02", "SECONDS = 0.021"))
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(
        [
            '*inferq_gate("chat"*',  # where the test is wrong, and no line of inferq
            "*Failed: failed: 1 metric of 1 scenario is worse than tolerated",
            "*chat: e2e_mean worse: *tolerance 1 %",
        ]
    )
    worse.stdout.no_fnmatch_line("*plugin.py*")
    assert "pytest --inferq-update" in (pytester.path / "gate.md").read_text()
    assert baseline.read_bytes() == before


def test_the_numbers_are_those_of_the_command_line(suite, pytester: pytest.Pytester):
    from typer.testing import CliRunner

    from inferq.cli import app

    suite("--inferq-update")
    scenario = """
    [workload]
    requests = 100
    arrivals = { kind = "Poisson", rate = 5 }
    prompt = { kind = "Fixed", tokens = 50 }
    output = { kind = "Geometric", mean = 20 }
    [engine]
    timing = { kind = "Constant", seconds = 0.02 }
    scheduler = { kind = "Sarathi" }
    kv = "unlimited"
    [run]
    warmup = 5
    [gate]
    seeds = 3
    tolerance = { e2e_mean = "1%" }
    """
    (pytester.path / "chat.toml").write_text(scenario)
    result = CliRunner().invoke(app, ["gate", "chat.toml"])
    assert (result.exit_code, result.stdout) == (0, "passed: 1 metric of 1 scenario is identical\n")


def test_without_a_baseline_it_says_how_to_make_one(suite):
    result = suite()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*does not exist; create it with pytest --inferq-update and commit it"])


def test_where_the_baseline_lies(suite, pytester: pytest.Pytester):
    (pytester.path / "deep").mkdir()
    pytester.makeini("[pytest]\ninferq_baseline = deep/chat.json")
    suite("--inferq-update").assert_outcomes(passed=1)
    assert (pytester.path / "deep" / "chat.json").exists()
    assert not (pytester.path / DEFAULT_FILE).exists()
    result = suite("--inferq-update", "--inferq-baseline", "no/where.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["inferq_gate: *no?where.json: directory *no does not exist"])
    result.stdout.no_fnmatch_line("*where.json.*part*")
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*baseline.py*")


def test_a_name_stands_for_one_scenario(suite):
    again = "\ndef test_again(inferq_gate):\n    inferq_gate('chat', chat(), system)\n"
    result = suite("--inferq-update", more=again)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*'chat' is already used by test_suite.py::test_chat"])


def test_a_wrong_argument_is_named(suite):
    wrong = {
        "system, warm_up=5": "*ConfigError: warm_up: unknown option of simulate; did you mean warmup?",
        "system, seeds=0": "*ConfigError: seeds: must be an integer from 1 to 10000, got 0",
        "system, tolerance={'e2e_maen': '1%'}": "*unknown metric 'e2e_maen'; did you mean e2e_mean?",
        "7": "*ConfigError: system: must be an instance of Engine, *, got 7",
        "lambda: 8": "*system: must be an instance of Engine, *, got 8",
    }
    tests = "".join(
        f"\ndef test_wrong_{number}(inferq_gate):\n    inferq_gate('wrong {number}', chat(), {arguments})\n"
        for number, arguments in enumerate(wrong)
    )
    unnamed = "\ndef test_unnamed(inferq_gate):\n    inferq_gate('', chat(), system)\n"
    result = suite("--inferq-update", more=tests + unnamed)
    result.assert_outcomes(passed=1, failed=6)
    for said in (*wrong.values(), "*name: must be a non-empty text, got ''"):
        result.stdout.fnmatch_lines([said])


def test_the_test_that_the_guide_shows_passes(pytester: pytest.Pytester):
    page = (Path(__file__).parent.parent / "docs" / "guides" / "gate-in-ci.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (block,) = (text for text in blocks if "inferq_gate" in text)
    pytester.makepyfile(test_guide=block)
    for arguments in (["--inferq-update"], []):
        pytester.runpytest_subprocess(*LOAD, *arguments, timeout=100).assert_outcomes(passed=1)


def test_several_processes_do_not_write_one_file(pytester: pytest.Pytester):
    pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--dist', default='no')\n")
    result = pytester.runpytest_subprocess(*LOAD, "--dist", "load", "--inferq-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--inferq-update is not supported with several processes; run without -n"])


def test_a_suite_without_the_fixture_does_not_notice(pytester: pytest.Pytester):
    pytester.makepyfile("def test_one():\n    pass\n")
    result = pytester.runpytest_subprocess(*LOAD)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*inferq gate*")


def test_it_loads_nothing_that_takes_time():
    heavy = ("polars", "numpy", "scipy", "altair", "inferq._core", "inferq.results.result")
    code = f"import sys, pytest, {MODULE}; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_entry_point_is_declared():
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, which Python 3.11 has")
    import tomllib

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"inferq": MODULE}
