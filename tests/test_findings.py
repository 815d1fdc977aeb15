"""Are the things that spoil a run's numbers said in words?"""

import inferq as iq


def _engine(**changes: object) -> iq.Engine:
    parts: dict[str, object] = {
        "timing": iq.Constant(0.01),
        "scheduler": iq.Sarathi(token_budget=64, max_seqs=8, watermark=0.0),
        "kv": iq.KvCache(tokens=1000),
    }
    return iq.Engine(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_request_that_is_preempted_a_hundred_times_is_thrash():
    """While the first emits 780 tokens, the prompt of the second never fits, but its first chunk does."""
    workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [200, 950], "output_tokens": [780, 1]}
    scheduler = iq.VllmV1(token_budget=512, max_seqs=8, reserve_full_prompt=False)
    result = iq.simulate(workload, _engine(scheduler=scheduler, kv=iq.KvCache(tokens=1000, block=1)))
    times = result.requests["preemptions"][1]
    assert times >= 100
    (said,) = result.findings
    assert said.startswith("thrash: ") and f" {times} times" in said
    roomy = iq.simulate(workload, _engine(scheduler=scheduler, kv=iq.KvCache(tokens=2000, block=1)))
    assert roomy.findings == []


def test_a_queue_that_grows_all_the_time_is_overload():
    """Each request needs ten iterations of the only place, 0.1 s; 20 arrive in a second."""
    rows = 200
    workload = {
        "arrival_s": [row / 20 for row in range(rows)],
        "prompt_tokens": [1] * rows,
        "output_tokens": [10] * rows,
    }
    one_place = _engine(scheduler=iq.Sarathi(max_seqs=1))
    assert [finding.split(":")[0] for finding in iq.simulate(workload, one_place).findings] == ["overload"]
    assert iq.simulate(workload, _engine()).findings == []


def test_what_can_never_fit_is_rejected_and_said_with_the_first_of_them():
    workload = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [10, 1200, 10**7], "output_tokens": [5, 5, 5]}
    result = iq.simulate(workload, _engine())
    assert result.requests["status"].to_list() == ["finished", "rejected", "rejected"]
    (said,) = result.findings
    assert said.startswith("rejected: 2 of 3 requests (the first is 1)")
    assert result.requests["left_s"].to_list()[1:] == [1.0, 2.0]
