"""What does `Sglang` refuse, what does it say, and what becomes of requests for which memory is short?"""

import random
from typing import Any

import pytest

import inferq as iq

from .refusals import refused


def _engine(kv: iq.KvCache, **scheduler: Any) -> iq.Engine:
    return iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sglang(**{"overlap": False, **scheduler}), kv=kv)


def _pages(tokens: int, page: int = 1, cache: Any = "radix") -> iq.KvCache:
    return iq.KvCache(tokens=tokens, block=page, prefix_cache=cache)


@refused(
    (_pages(1000, 16), {}, r"^kv\.block: must divide the 1000 tokens of the cache, got 16"),
    (_pages(1024, 16, "blocks"), {}, r"^kv\.prefix_cache: .*radix"),
    (
        _pages(1024, 16),
        {"chunk_tokens": 8},
        r"^scheduler\.chunk_tokens: must be at least the page size \(16\), got 8",
    ),
)
def test_a_cache_that_does_not_go_with_it_is_named(kv: iq.KvCache, parameters: dict[str, Any]) -> None:
    _engine(kv, **parameters)


def _run(engine: iq.Engine | iq.Disaggregated, *rows: tuple[float, int, int], **options: Any) -> iq.Result:
    arrival_s, prompt_tokens, output_tokens = zip(*rows, strict=True)
    columns = {"arrival_s": arrival_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return iq.simulate({name: list(column) for name, column in columns.items()}, engine, **options)


def test_what_has_no_effect_is_a_finding() -> None:
    (finding,) = _run(_engine(_pages(64, cache=None), policy="lpm"), (0, 8, 2)).findings
    assert finding.kind == "lpm-without-cache"
    (finding,) = _run(_engine(_pages(64), mixed=True, chunk_tokens=None), (0, 8, 2)).findings
    assert finding.kind == "mixed-without-chunks"
    assert _run(_engine(_pages(64), policy="lpm"), (0, 8, 2)).findings == []


@pytest.mark.parametrize(
    ("page", "ignore_eos", "served", "refused"),
    [
        (1, False, (54, 8), (55, 8)),
        (4, False, (51, 8), (52, 8)),
        (1, True, (53, 8), (54, 8)),
        (4, True, (48, 10), (45, 11)),
    ],
)
def test_what_can_never_be_admitted_is_rejected(
    page: int, ignore_eos: bool, served: tuple[int, int], refused: tuple[int, int]
) -> None:
    # Alone, a request is admitted if prompt, output and one page are less than the cache; with ignore_eos and
    # no prefix cache, if the pages of the prompt, the output, a page and a token are.
    engine = _engine(_pages(64, page, None), ignore_eos=ignore_eos)
    result = _run(engine, (0, *served), (100, *refused), (200, *served))
    assert result.requests["status"].to_list() == ["finished", "rejected", "finished"]
    assert any(finding.startswith("rejected: 1 of 3") for finding in result.findings)


def test_no_more_of_an_output_is_asked_for_than_is_reserved() -> None:
    # 100 + 4,096 tokens and a page of 128 are less than 8,192; 8,000 + 64 and a page are not.
    result = _run(_engine(_pages(8192, 128, None)), (0, 100, 8028), (1000, 8000, 64))
    assert result.requests["status"].to_list() == ["finished", "rejected"]


def test_nothing_is_reserved_for_a_request_that_was_taken_back() -> None:
    # 0.7 of the 874 tokens that were left, and of 389, are too many beside 16 + 400 and a page, in 1,024.
    columns = {"arrival_s": [0, 100, 110.5], "prompt_tokens": [16] * 3, "output_tokens": [900, 400, 400]}
    engine = _engine(_pages(1024, 1, None))
    result = iq.simulate({**columns, "cancel_s": [25.5, None, None]}, engine)
    assert result.requests["status"].to_list() == ["abandoned", "finished", "finished"]
    assert result.requests["admitted_s"].to_list() == [0, 100, 111]


@pytest.mark.parametrize("seed", range(60))
def test_everybody_finishes_where_the_engine_would_run_out_of_memory(seed: int) -> None:
    # Chunks that are no whole pages, next to nothing reserved, and caches that hold two requests: the prompt
    # that is cut may find no page, and the last decode none beside it.
    draw = random.Random(seed)
    page = draw.choice([1, 4, 16])
    tokens = page * draw.randint(160 // page, 260 // page)
    rows = [(draw.random() * 30, draw.randint(1, 90), draw.randint(1, 36)) for _ in range(25)]
    engine = _engine(
        _pages(tokens, page, draw.choice(["radix", None])),
        policy=draw.choice(["fcfs", "lpm"]),
        chunk_tokens=draw.choice([17, 25, 40]),
        max_seqs=draw.choice([4, 12]),
        mixed=draw.random() < 0.5,
        conservativeness=draw.choice([0.0, 0.05]),
        ignore_eos=draw.random() < 0.3,
    )
    result = _run(engine, *sorted(rows))
    assert result.requests["status"].to_list() == ["finished"] * 25
    stepped = _run(engine, *sorted(rows), stepping=True)
    assert result.requests.equals(stepped.requests)


@pytest.mark.parametrize("seed", range(30))
def test_everybody_finishes_on_another_replica_than_that_of_the_prompt(seed: int) -> None:
    # A context that comes from elsewhere needs its own pages and no others: seed 0 has 8 + 48 tokens and one
    # more in a cache of 65.
    draw = random.Random(seed)
    page = 1 if seed == 0 else draw.choice([1, 4, 16])
    engine = _engine(
        _pages(65 if seed == 0 else page * (128 // page), page, draw.choice(["radix", None])),
        chunk_tokens=16,
        max_prefill_tokens=16,
        max_seqs=8,
        conservativeness=0.05,
        ignore_eos=seed > 0 and draw.random() < 0.3,
    )
    link = iq.Link(latency_s=0.5, bytes_per_s=10, bytes_per_token=1.0)
    system = iq.Disaggregated(prefill=(engine, 1), decode=(engine, 2), link=link)
    rows = [(0.0, 8, 48)]
    if seed > 0:
        rows = sorted((draw.random() * 30, draw.randint(1, 40), draw.randint(1, 30)) for _ in range(20))
    result = _run(system, *rows)
    assert result.requests["status"].unique().to_list() == ["finished"]
    assert result.requests.equals(_run(system, *rows, stepping=True).requests)
