"""What became of the requests of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferq._lazy import NDArray, np, pl
from inferq._version import __version__
from inferq.display.notebook import Viewed
from inferq.display.text import number, seconds
from inferq.errors import ConfigError, NotThereError
from inferq.files import frame_into, replacing_all, text_into
from inferq.inputs import path_of
from inferq.results import perfetto, store
from inferq.results.charts import Charts
from inferq.results.costs import as_columns, costs
from inferq.results.finding import Finding
from inferq.results.findings import all_findings
from inferq.results.recorded_system import recorded_system
from inferq.results.run_facts import RunFacts, common_facts
from inferq.results.summary import summary
from inferq.results.tables import FRAMES, STATUSES, RunTables, as_frame
from inferq.results.work_conservation import WorkConservation, work_conservation
from inferq.systems.pools import pools_of
from inferq.systems.prices import Prices
from inferq.workload import rows
from inferq.workload.columns import sha256

if TYPE_CHECKING:
    import os

    from inferq.results.stored_result import StoredResult
    from inferq.systems.system import System
    from inferq.workload.workload import Workload


@dataclass(frozen=True, eq=False, repr=False)
class Result(Viewed):
    """What became of every request of a run; made by `inferq.simulate`.

    All times are in seconds from the workload's time 0. Frames are polars, made when first asked for.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine)
        >>> result
        Result(2 requests: 2 finished; ttft p50 1.25 s, p99 1.50 s; e2e p99 2.98 s; 0.667 requests/s;
               0 findings)
        >>> result.requests["finish_s"].to_list()
        [3.0, 2.0]
    """

    _tables: RunTables
    _options: dict[str, Any]
    """The arguments of `simulate`, the description of the system among them."""
    _workload: Workload | None = None
    """As for `_system`."""
    _system: System | None = None
    """What served them; None where only its description is kept."""

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> StoredResult:
        """The result of a finished run with `simulate(..., out=directory)` or of `write`: see `StoredResult`.

        Raises:
            ConfigError: the directory holds no such run, or one that was stopped; it says how far that came.
            ResultError: a file in it is missing, or is not as the run wrote it; it names the file and the
                field. Every byte is looked at, about a second for 10⁷ requests.
        """
        from inferq.results.stored_result import StoredResult

        return StoredResult.opened(directory)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row for each request that arrived by the horizon; what never happened is null.

        `id` (its row in the workload), `class`, `replica`, `status` (finished, rejected, abandoned,
        unfinished, lost), `measured` (false for what warm-up and cool-down cut), `arrival_s`, `admitted_s`
        (start of its first iteration), `first_token_s`, `finish_s` (last token), `left_s` (whatever the
        status), `queue_s` (admitted − arrival), `ttft_s` (first token − arrival), `tpot_s` ((last − first
        token) / (output tokens − 1), null for one token), `max_itl_s` (longest gap between two of its
        tokens), `e2e_s` (last token − arrival), `prompt_tokens`, `output_tokens`, `preemptions`,
        `cached_tokens`; with `Restart` also `discarded_tokens` (emitted and thrown away); with `Speculation`
        also `drafted_tokens` (verified) and `accepted_tokens` (of these, tokens of its output); with
        `Failures` also `retries` (how often it was sent again because its replica had died).

        A request that waits for others (a turn with `think_s`, a later stage of a job) is here once they have
        finished; `arrival_s` is the instant at which it then arrived.

        With `Disaggregated`, `replica` is the last one that a request was on, and there are `prefill_replica`
        (null if it was not handed off), `prefilled_s` (end of the prompt's last iteration) and `handoff_s`
        (from then to the start of its first iteration on the decode replica; null if there was none).

        For a network a row is a stage of a job: `id` numbers all stages, job by job, each in the order of its
        workflow, and `job` (row of the workload), `stage` and `engine` follow it.
        """
        return as_frame(self._tables.requests, self._tables.names)

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row for each job of a network that arrived by the horizon; what never happened is null.

        `job` (row of the workload), `workflow`, `status`, `measured`, `arrival_s`, `finish_s` (of the last
        stage), `left_s` (`finish_s`; of a rejected, abandoned or lost job the instant when the last of its
        stages that arrived left), `e2e_s` (finish − arrival), `stages` (that arrived), `finished_stages`,
        `prompt_tokens`, `output_tokens` (of the stages that arrived).

        A job is rejected if one of its stages was, else abandoned or lost if one was, finished if all have
        finished, and else unfinished. One of which no stage has arrived yet is not measured.

        Raises:
            ConfigError: the run was not over a network.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
            >>> chain = iq.Workflow("chain", stages={
            ...     "draft": iq.Stage("chat", prompt=10, output=3),
            ...     "check": iq.Stage("chat", prompt=5, output=2, after="draft", includes="draft"),
            ... })
            >>> result = iq.simulate({"arrival_s": [0.0]}, iq.Network({"chat": engine}, [chain]))
            >>> result.requests.select("stage", "arrival_s", "finish_s", "prompt_tokens").rows()
            [('draft', 0.0, 3.0, 10), ('check', 3.0, 5.0, 8)]
            >>> result.jobs.select("job", "workflow", "status", "e2e_s", "stages").rows()
            [(0, 'chain', 'finished', 5.0, 2)]
        """
        return self._tables.frame("jobs")

    @cached_property
    def itl(self) -> pl.DataFrame:
        """Histogram of the gaps between successive tokens of measured requests, non-empty bins only.

        `class`, `lower_s`, `upper_s`, `count`. A bin is at most 1/128 wide relative to its edge, with the
        same edges in every run. Gaps over a preemption and over a hand-off are included, with `Restart` also
        those of tokens that were thrown away.

        Counts in all frames are signed, Int64 or Int32, so that numpy and differences take them; ids, codes
        and replicas are unsigned.
        """
        return self._tables.frame("itl")

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """Samples taken while the run went on, every `timeline_s`, one row for each replica.

        `time_s`, `replica`, `waiting`, `running` (requests), `kv_used_tokens`, `tokens_in_system` (prompt
        tokens not computed and output tokens not emitted, of the requests that wait or run here: of a session
        or a network the turns and stages that have arrived), `prefill_tokens_per_s`, `output_tokens_per_s`,
        `cached_tokens_per_s` (over the time since the sample before; the last are the tokens that admissions
        found in a prefix cache, so that the hit rate is their share of them and the prefilled ones). Under
        `GateAndRoute`: `time_s`, `class`, and how many of it are where in the cluster: `prefill_queue`,
        `prefill`, `decode_queue`, `mixed` (decodes beside a prefill), `solo` (other decodes).
        """
        return self._tables.frame("timeline")

    @cached_property
    def block_operations(self) -> pl.DataFrame:
        """What the prefix caches did, in blocks: one row for each replica whose KV cache has one.

        `replica`, `hit_blocks` (that admissions took over, those after a preemption too), `cached_blocks`
        (that entered the cache: with `prefix_cache="blocks"` every whole block that was computed, with
        `"radix"` every page that was not in the tree yet), `evicted_blocks` (cached and free, until others
        needed the memory). What was cached and not evicted is in the cache at the end.

        Their sum is what a prefix cache costs the simulation: everything else takes time by the request.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=64, block=16, prefix_cache="blocks")
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(), kv=kv)
            >>> workload = {
            ...     "arrival_s": [0.0, 10.0],
            ...     "prompt_tokens": [40, 50],
            ...     "output_tokens": [1, 1],
            ...     "prefix_hashes": [[1, 2, 3], [1, 2, 4, 5]],
            ...     "prefix_block_tokens": [16, 16],
            ... }
            >>> iq.simulate(workload, engine).block_operations.rows()
            [(0, 2, 3, 0)]
        """
        return self._tables.frame("block_operations")

    @cached_property
    def fleet_events(self) -> pl.DataFrame:
        """What happened to replicas, where a `Cluster` has an autoscaler or failures: one row for each event.

        `at_s`, `replica`, `event`, and behind it `open`, `starting` and `draining`: how many replicas of its
        cluster take requests, come (under repair or starting), and finish what they have. Events: `"asked"`
        for, `"ready"` to take requests, `"drains"`, `"ended"`, `"died"`. Replicas that are there at the
        beginning are ready at 0; one that is still there at the end of the run has no event for it.

        Raises:
            ConfigError: no replica came or went.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
            >>> plan = iq.BySchedule([(2, 2), (4, 1)])
            >>> scaler = iq.Autoscaler(plan, max=2, every_s=1, startup_s=1)
            >>> workload = {"arrival_s": [0.0, 6.0], "prompt_tokens": [9, 9], "output_tokens": [2, 2]}
            >>> result = iq.simulate(workload, iq.Cluster(engine, autoscaler=scaler))
            >>> for event in result.fleet_events.select("at_s", "replica", "event", "open").iter_rows():
            ...     print(event)
            (0.0, 0, 'ready', 1)
            (2.0, 1, 'asked', 1)
            (3.0, 1, 'ready', 2)
            (4.0, 1, 'drains', 1)
            (4.0, 1, 'ended', 1)
            >>> result.replica_s
            10.0
        """
        return self._tables.frame("fleet_events")

    @property
    def replica_s(self) -> float:
        """Seconds of replicas paid for: of each from the asking to its end, its death or the end of the run.

        Raises:
            ConfigError: no replica came or went: they are as many as the cluster has, for `totals["end_s"]`.
        """
        whole = self._tables.totals.get("replica_time_as")
        if whole is None:
            raise NotThereError("replica_s", "only runs of a Cluster with an autoscaler or failures have it")
        return float(whole / 10**18)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """One row for each stretch of identical iterations, in order of their start.

        `start_s`, `replica`, `count` (iterations), `first_s` (length of the first), `growth_s` (added by each
        further one), `prefill_tokens`, `decodes`, `context_tokens`, `kv_used_tokens` (all of the first).

        Raises:
            ConfigError: the run did not record them.
        """
        return self._tables.frame("iterations")

    def single_iterations(self) -> pl.DataFrame:
        """One row for each iteration, in order of their start, as `timing.fit` takes them.

        With them a rich timing model can be put into the words of a simple one that a theory knows.

        Returns:
            `start_s`, `duration_s`, `prefill_tokens`, `decodes`, `context_tokens`.

        Raises:
            ConfigError: the run did not record its iterations.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache.unlimited()
            >>> engine = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(), kv=kv)
            >>> workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}
            >>> run = iq.simulate(workload, engine, iterations=True)
            >>> run.single_iterations().select("start_s", "prefill_tokens", "context_tokens").rows()
            [(0.0, 10, 0), (0.5, 0, 10), (1.0, 0, 11)]
        """
        place = pl.int_ranges(pl.col("count")).alias("place")
        each = self.iterations.with_columns(place).explode("place").filter(pl.col("place").is_not_null())
        j = pl.col("place")
        return each.select(
            start_s=pl.col("start_s") + j * pl.col("first_s") + (j * (j - 1) // 2) * pl.col("growth_s"),
            duration_s=pl.col("first_s") + j * pl.col("growth_s"),
            prefill_tokens=pl.col("prefill_tokens").cast(pl.Int64),
            decodes=pl.col("decodes").cast(pl.Int64),
            context_tokens=pl.col("context_tokens").cast(pl.Int64) + j * pl.col("decodes").cast(pl.Int64),
        )

    @cached_property
    def batches(self) -> pl.DataFrame:
        """One row for each request in the batch of each stretch.

        `iteration` (row of `iterations`), `request` (its `id` in `requests`), `tokens` (that one iteration
        computes), `emits` (whether it emits a token at the end; that of a row that a policy planned ahead
        behind a stop token is dropped); with `Speculation` also `emitted_tokens` (that the client gets, 0 for
        a dropped row).

        Raises:
            ConfigError: the run did not record them.
        """
        return self._tables.frame("batches")

    @cached_property
    def has_prefix_cache(self) -> bool:
        """Whether prompts could be found in a prefix cache: some `KvCache` had a `prefix_cache`."""
        return _has_prefix_cache(self._options)

    @property
    def has_jobs(self) -> bool:
        """Whether the run was one over a `Network`, and has `jobs`."""
        return self._tables.has("jobs")

    @property
    def is_priced(self) -> bool:
        """Whether the run was one of a `GateAndRoute`, and has `occupancy` and `revenue`."""
        return self._tables.has("revenue")

    @cached_property
    def occupancy(self) -> pl.DataFrame:
        """Where the requests of each class were, on average over the time after the warm-up, per replica.

        `class`, `prefill_queue`, `prefill`, `decode_queue`, `mixed` (decodes beside a prefill), `solo` (other
        decodes): the q_p, x, q_d, y_m and y_s of an `Allocation`. Null where no time was measured.

        Raises:
            ConfigError: the run was not one of a `GateAndRoute`.
        """
        return self._tables.frame("occupancy")

    @cached_property
    def revenue(self) -> pl.DataFrame:
        """What was earned since the warm-up, at every sample of the timeline after it and at the end.

        `time_s`, `bundled` (recognized when a request is finished), `separate` (at the end of each prefill
        and each decode), and the same per replica and second: `bundled_per_replica_s`,
        `separate_per_replica_s`.

        Raises:
            ConfigError: the run was not one of a `GateAndRoute`.
        """
        return self._tables.frame("revenue")

    @property
    def plot(self) -> Charts:
        """Altair charts of the run: `latency`, `timeline`, `itl`, `queue`, `throughput`.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=1000)
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=kv)
            >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
            >>> chart = iq.simulate(workload, engine).plot.itl()
            >>> chart.to_dict()["width"]
            360
        """
        module = import_module("inferq.reports.run_charts")  # it needs theory, which needs results
        charts: Charts = module.RunCharts(self)
        return charts

    def to_perfetto(self, path: str | os.PathLike[str], requests: int | Iterable[int] | None = None) -> Path:
        """Write the run as a trace that Perfetto's viewer opens: iterations, queue, KV cache, requests.

        See `inferq.results.perfetto.write` for what it holds.

        Args:
            path: the file, of JSON; it is replaced. A name that ends in `.gz` is compressed, which the viewer
                opens too.
            requests: how many are shown, the slowest by `e2e_s`, or the `id`s of those that are; None shows
                the 50 slowest.

        Returns:
            The path.

        Raises:
            ConfigError: the run did not record its iterations (`simulate(..., iterations=True)`), there is no
                request of that id, or no such folder.
            OSError: the file cannot be written.
        """
        return perfetto.write(self._tables, path, requests)

    @property
    def findings(self) -> list[Finding]:
        """Observations that qualify the numbers, the most severe first."""
        return list(self._findings)

    @cached_property
    def _findings(self) -> list[Finding]:
        assert self._workload is not None and self._system is not None
        tables, drawn = self._tables, self._tables.workload
        facts = RunFacts(
            **common_facts(tables, self._workload, self._system, self._options),
            requests=tables.requests,
            rows=drawn.height,
            columns=drawn.columns,
            column=lambda name: iter([drawn[name]]),
        )
        return all_findings(facts)

    @property
    def totals(self) -> dict[str, Any]:
        """Whole-number totals of the run, times in attoseconds where the name ends in `_as`."""
        return dict(self._tables.totals)

    @cached_property
    def drained(self) -> pl.Series:
        """The `id`s of the requests that were still here when nothing was left to come.

        Policies that wait for company (`Wait`, `NestedWait`) then serve below their thresholds, so that every
        request ends; these requests do not tell how the policy does in the long run. Empty under policies
        that never let a request wait while they could serve it.

        Example:
            >>> import inferq as iq
            >>> scheduler = iq.research.Wait(thresholds=2)
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
            >>> workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [1]}
            >>> iq.simulate(workload, engine).drained.to_list()
            [0]
        """
        return pl.Series("id", self._tables.drained, dtype=pl.UInt32)

    @property
    def stretched_share(self) -> float:
        """The share of iterations that were advanced in stretches of two or more, 0 where there are none.

        It says how much of the run went fast, and nothing about the requests.
        """
        totals = self._tables.totals
        return float(totals["stretched_iterations"] / max(totals["iterations"], 1))

    def work_conservation(self, budget: int | None = None) -> WorkConservation:
        """The share of iterations that loaded fewer tokens than `budget` although another could be added.

        An iteration below the budget breaks work conservation when a request could have loaded one more
        token: one that has begun and was left out, or got less of its prompt than it owes, and needs no block
        or finds a free one; or one that waits while a seat and a block are free and the policy did not ask
        for it. Where the policy asked and was refused, or could not have asked, the cap on sequences
        (`cap_share`) or the memory (`memory_share`) bound the iteration. What is left had nothing more to
        load, or was full.

        Source: li2025 (2.6), whose Theorem 1 says that policies that never break it are throughput optimal.
            The paper has neither a cap nor a memory limit; what they bind does not count as broken.

        Args:
            budget: tokens that an iteration should load, at least 1; None takes the scheduler's
                `token_budget`, for `ClassPriority` that of its `inner`. Where there are several engines, all
                of them must have the same.

        Returns:
            `share`, `cap_share`, `memory_share`, `budget` and `iterations`; all shares are of all iterations,
            and 0 where there are none.

        Raises:
            ConfigError: a budget that is no whole number above 0, or none where a scheduler has none or where
                the budgets of several engines differ.

        Example:
            vLLM's first scheduler computes the second prompt alone and leaves the first decode out:

            >>> import inferq as iq
            >>> scheduler = iq.VllmV0(token_budget=8)
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
            >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [4, 4], "output_tokens": [3, 1]}
            >>> iq.simulate(workload, engine).work_conservation()
            WorkConservation(0.25, cap_share=0.0, memory_share=0.0, budget=8, iterations=4)
        """
        return work_conservation(self._tables.work, self._options, budget)

    @cached_property
    def scenario(self) -> str:
        """JSON that says what was run: the workload, what served it, and the options.

        `Scenario.read` reads it back, and `Scenario.read(result.scenario).run()` repeats the run; see there
        for the rows of frames. `write` puts the requests themselves (for a network: the jobs) beside it.
        """
        assert self._workload is not None
        return scenario_of(self._workload, self._options)

    def summary(
        self,
        by: str | Iterable[str] | None = None,
        slo: Mapping[str, float | None] | None = None,
        prices: Prices | str | os.PathLike[str] | None = None,
    ) -> pl.DataFrame:
        """One row for each group of measured requests: counts, throughput, goodput and latencies.

        | column | meaning |
        |---|---|
        | the columns of `by` | the group, such as `"replica"`, `"stage"`, `"engine"`; groups are sorted |
        | `completed` | finished requests |
        | `failed` | rejected, abandoned and lost requests; the unfinished are in neither count |
        | `lost` | those of them that died with their replicas |
        | `duration_s` | first arrival to last finish of all measured requests; null when nothing finished |
        | `request_throughput` | completed requests per second of `duration_s`; 0 when nothing finished |
        | `output_throughput` | output tokens of completed requests per second |
        | `total_token_throughput` | prompt and output tokens of completed requests per second |
        | `request_goodput` | finished with `ttft_s` and `max_itl_s` within objectives, per second |
        | `ttft_mean`, then `_p50`, `_p90`, `_p95`, `_p99`, `_max` | seconds, of those that have it, or null |
        | the same six of `itl`, `tpot`, `e2e`, `queue` | |
        | `api_mean` | seconds of `ttft_mean` and of `e2e_mean` that are the API's, of the finished |
        | `cached_tokens` | prompt tokens that admitted requests found in a prefix cache |
        | `hit_rate` | their share of all prompt tokens of admitted requests |

        The last two are null where there is no prefix cache; `hit_rate` also where none was admitted.
        `api_mean` is null where none finished; of a stored run whose policy was written in Python it is not
        known.

        With `prices` there follow `gpus`, `nodes`, `cost_per_hour`, `cost_per_request`,
        `cost_per_million_output_tokens`, `watts`, `joules_per_request`, `joules_per_million_output_tokens`
        and `revenue_per_hour` (null unless tokens have a price). A replica is busy in the share of the
        samples of `timeline` in which it runs a request; where it is not known what a card takes that waits,
        it is taken to be what one takes that computes, so that energy is an upper bound.

        `duration_s` counts as vLLM's benchmark does and is the same for every group, so that the throughputs
        of groups add up to that of the whole.

        Percentiles are linear between the two nearest values. Those of `itl` are over all token gaps, not
        over requests: from the histogram, the upper edge of the bin that holds the percentile; count, mean
        and maximum are exact. The histogram is kept by class: with a `by` other than None or `"class"` the
        `itl` columns are null.

        Args:
            by: a column of `requests`, or several; None makes one group of all.
            slo: objectives in seconds, `{"ttft_s": …, "itl_s": …}`, instead of the workload's columns
                `ttft_slo_s` and `itl_slo_s`. An objective that is null is met; without any, goodput is
                throughput.
            prices: of GPUs and tokens, or the path of their file, for all requests together: not beside `by`.

        Raises:
            ConfigError: an unknown column or objective, or an objective that is no number of seconds; prices
                beside `by`, without that of a card, or of an engine that says no card.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=1000)
            >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=kv)
            >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
            >>> summary = iq.simulate(workload, engine).summary(slo={"ttft_s": 1.0})
            >>> summary.select("completed", "duration_s", "output_throughput", "ttft_mean").rows()
            [(2, 3.0, 1.3333333333333333, 1.25)]
            >>> summary["request_goodput"].item() == 1 / 3
            True
        """
        priced = Prices.of(prices)
        cached = self.has_prefix_cache
        found = summary(self._tables, by, slo, has_prefix_cache=cached, api_s=self._api_s)
        if priced is None:
            return found
        if by is not None:
            raise ConfigError("prices", "are of the whole fleet; leave out by")
        return found.with_columns(
            as_columns(costs(self._tables, self._served, priced, found.row(0, named=True)))
        )

    @cached_property
    def _api_s(self) -> NDArray[np.float64]:
        """Seconds between a client and each replica; one 0 where no engine takes any; NaN: not known."""
        if '"api_s"' not in self.scenario:
            return np.zeros(1)
        try:
            pools = pools_of(self._served)
        except ConfigError:
            return np.full(1, np.nan)
        each = (
            np.full(count, engine.api_s)
            for pool in pools
            for engine, count in zip(pool.engines, pool.counts, strict=True)
        )
        return np.concatenate(list(each))

    @cached_property
    def system(self) -> System | None:
        """The system that served the run. None for a stored run with a user-defined class."""
        return self._system if self._system is not None else recorded_system(self._options)

    @cached_property
    def _served(self) -> System:
        """What served them, of a stored run as its description says.

        Raises:
            ConfigError: it had a class of the user's, of which the name alone is kept.
        """
        if self.system is None:
            raise ConfigError(
                "prices", "a stored run keeps only the name of a policy written in Python, so it has no costs"
            )
        return self.system

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write each frame and the workload as Parquet, the scenario and the findings as JSON.

        Files of an earlier run in the same directory are replaced once all of this run are on the disk; those
        that this run did not record are removed.

        Args:
            directory: made where it is missing.

        Returns:
            The directory, which `Result.read` opens. It holds `requests.parquet`, `itl.parquet`,
            `timeline.parquet`, `block_operations.parquet` and `findings.json`; `jobs.parquet` for a network;
            `occupancy.parquet` and `revenue.parquet` of a `GateAndRoute`; `iterations.parquet` and
            `batches.parquet` where recorded; what repeats the run: `scenario.json` and `workload.parquet`,
            the requests or jobs as they were drawn; and `totals.json` and `manifest.json`.

        Raises:
            ConfigError: it is no path, or holds a run of `simulate(..., out=…)`.
            OSError: the directory cannot be made or written; what was in it is as it was.
        """
        place = path_of("directory", directory, "directory")
        if (place / "requests").is_dir():
            raise ConfigError(
                "directory", f"{place} holds a run of simulate(..., out=…); take another directory"
            )
        place.mkdir(parents=True, exist_ok=True)
        names = [name for name in FRAMES if self._tables.has(name)]
        drawn = self._tables.workload
        frames = {f"{name}.parquet": getattr(self, name) for name in ("requests", *names)}
        frames["workload.parquet"] = drawn
        for frame in () if self._workload is None else self._workload.rows_beside():
            if frame is not drawn:
                frames[rows.file_name(sha256(frame))] = frame
        totals = store.totals_of(self._tables, self._tables.statuses)
        texts = {
            "scenario.json": self.scenario + "\n",
            "findings.json": json.dumps([finding.to_json() for finding in self.findings], indent=2) + "\n",
            "totals.json": json.dumps(totals, indent=2) + "\n",
        }
        with replacing_all(place) as parts:
            manifest = parts("manifest.json")  # the first to be opened takes its place last
            files = {}
            for name, frame in frames.items():
                part = parts(name)
                files[name] = frame_into(part, frame)
            for name, text in texts.items():
                part = parts(name)
                text_into(part, text)
                files[name] = store.about(part)
            del files["scenario.json"]  # of which the manifest has a hash of its own
            text_into(manifest, store.whole_manifest(self.scenario, self.requests.height, files))
        for name in FRAMES:
            if name not in names:
                (place / f"{name}.parquet").unlink(missing_ok=True)
        return place

    def __repr__(self) -> str:
        counts = self._tables.statuses
        by_status = ", ".join(f"{n:,} {status}" for n, status in zip(counts, STATUSES, strict=True) if n)
        told = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        requests = f"{sum(counts):,} requests{': ' if by_status else ''}{by_status}"
        return f"{type(self).__name__}({'; '.join([requests, *self._main(), told])})"

    def _main(self) -> list[str]:
        """The numbers that matter most, in words; none where nothing was served."""
        row = self.summary().row(0, named=True)
        if row["ttft_p50"] is None or row["e2e_p99"] is None:
            return []
        ttft = f"ttft p50 {seconds(row['ttft_p50'])}, p99 {seconds(row['ttft_p99'])}"
        return [ttft, f"e2e p99 {seconds(row['e2e_p99'])}", f"{number(row['request_throughput'])} requests/s"]


_RUN = ("seed", "horizon_s", "warmup", "cooldown", "timeline_s", "iterations", "batches", "stepping")
_RUN_IF_ASKED = ("max_in_flight",)
"""The options of `simulate` that change a result; the second ones are recorded where they are given."""


def scenario_of(workload: Workload, options: Mapping[str, Any]) -> str:
    """JSON that says what a run is: the workload, what serves it, the options."""
    named = (*_RUN, *(name for name in _RUN_IF_ASKED if name in options))
    run = {name: _as_given(options[name]) for name in named}
    system = {name: value for name, value in options.items() if name not in named}
    record = {"inferq": __version__, "workload": workload.to_json(), **system, "run": run}
    return json.dumps(record, indent=2)


def _as_given(option: Any) -> Any:
    """An option of `simulate` as a user gives it: what is cut is a number of requests, or `"30s"`."""
    if not isinstance(option, dict):
        return option
    return option["requests"] if "requests" in option else f"{Decimal(repr(option['seconds'])):f}s"


def _has_prefix_cache(described: Any) -> bool:
    """Whether a KV cache in the description of what served a run knows prefixes; slots have none."""
    if isinstance(described, dict):
        if described.get("service") == "exponential":
            return False
        return described.get("prefix_cache") is not None or any(map(_has_prefix_cache, described.values()))
    return isinstance(described, list) and any(map(_has_prefix_cache, described))
