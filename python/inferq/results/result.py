"""Results of a simulation run."""

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
from inferq.display.text import counted, number, seconds
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
    """Results of a simulation run; `inferq.simulate` returns it.

    Times are in seconds from time 0 of the workload. Frames are polars frames, which are computed on first
    access.

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
    """The arguments of `simulate` with the description of the system."""
    _workload: Workload | None = None
    """None for a stored run."""
    _system: System | None = None
    """None for a stored run, which has its description."""

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> StoredResult:
        """The result of a complete run that `simulate(..., out=directory)` or `write` stored.

        All files are checked against their hashes, which takes about 1 s for 10⁷ requests.

        Raises:
            ConfigError: the directory contains no run, or an interrupted one.
            ResultError: a file is missing or was changed; the error names the file and the field.
        """
        from inferq.results.stored_result import StoredResult

        return StoredResult.opened(directory)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request that arrived by the horizon; events that did not happen are null.

        `id` (row of the workload), `class`, `replica`, `status` (finished, rejected, abandoned, unfinished,
        lost), `measured` (false during warm-up and cool-down), `arrival_s`, `admitted_s` (start of the first
        iteration), `first_token_s`, `finish_s` (last token), `left_s` (end with any status), `queue_s`
        (admission − arrival), `ttft_s` (first token − arrival), `tpot_s` ((last − first token) / (output
        tokens − 1), null for one token), `max_itl_s` (longest gap between two tokens), `e2e_s` (last token −
        arrival), `prompt_tokens`, `output_tokens`, `preemptions`, `cached_tokens`. With `Restart` also
        `discarded_tokens` (emitted and discarded), with `Speculation` also `drafted_tokens` (verified) and
        `accepted_tokens` (of these), with `Failures` also `retries`.

        A request that waits for others (a turn with `think_s`, a later stage of a job) has a row after they
        finish; `arrival_s` is its own arrival.

        With `Disaggregated`, `replica` is the last replica of a request, and there are `prefill_replica`
        (null without hand-off), `prefilled_s` (end of the last prefill iteration) and `handoff_s` (from then
        to the start of the first iteration on the decode replica).

        For a network a row is a stage of a job: `id` numbers the stages job by job in the order of the
        workflow, followed by `job` (row of the workload), `stage` and `engine`.
        """
        return as_frame(self._tables.requests, self._tables.names)

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per job of a network that arrived by the horizon; events that did not happen are null.

        `job` (row of the workload), `workflow`, `status`, `measured`, `arrival_s`, `finish_s` (last stage),
        `left_s` (`finish_s`, or the end of the last arrived stage of a failed job), `e2e_s` (finish −
        arrival), `stages` (arrived), `finished_stages`, `prompt_tokens`, `output_tokens` (of arrived stages).

        A job is rejected if a stage is, else abandoned or lost if a stage is, finished if all stages are, and
        else unfinished. A job without an arrived stage is not measured.

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
        """Histogram of inter-token latency of measured requests, non-empty bins only.

        `class`, `lower_s`, `upper_s`, `count`. Bins have a relative width of at most 1/128 and the same edges
        in every run. Gaps include preemptions and hand-offs, with `Restart` also discarded tokens.

        Counts in all frames are signed (Int64 or Int32), so that differences are safe; ids, codes and
        replicas are unsigned.
        """
        return self._tables.frame("itl")

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """Samples every `timeline_s`, one row per replica.

        `time_s`, `replica`, `waiting`, `running` (requests), `kv_used_tokens`, `tokens_in_system` (prompt
        tokens to compute and output tokens to emit, of waiting and running requests),
        `prefill_tokens_per_s`, `output_tokens_per_s`, `cached_tokens_per_s` (since the previous sample; the
        cache hit rate is cached / (cached + prefill)). With `GateAndRoute`: `time_s`, `class`, and requests
        by location: `prefill_queue`, `prefill`, `decode_queue`, `mixed` (decodes next to a prefill), `solo`
        (other decodes).
        """
        return self._tables.frame("timeline")

    @cached_property
    def block_operations(self) -> pl.DataFrame:
        """Operations of prefix caches in blocks, one row per replica with a prefix cache.

        `replica`, `hit_blocks` (reused by admissions, also after a preemption), `cached_blocks` (added to the
        cache: with `prefix_cache="blocks"` every computed full block, with `"radix"` every new page),
        `evicted_blocks` (unreferenced blocks whose memory was reused). Cached minus evicted blocks are in the
        cache at the end.

        The simulation time of a prefix cache is proportional to their sum.

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
        """Events of replicas of a `Cluster` with an autoscaler or failures, one row per event.

        `at_s`, `replica`, `event`, and the numbers of replicas after it: `open` (accept requests), `starting`
        (or under repair) and `draining`. Events: `"asked"` (requested), `"ready"`, `"drains"`, `"ended"`,
        `"died"`. Initial replicas are ready at 0; replicas that exist at the end of the run have no last
        event.

        Raises:
            ConfigError: the run has no fleet events.

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
        """Paid replica seconds: of each replica from its request to its end, failure or the end of the run.

        Raises:
            ConfigError: the run has no fleet events; then all replicas are paid for `totals["end_s"]`.
        """
        whole = self._tables.totals.get("replica_time_as")
        if whole is None:
            raise NotThereError("replica_s", "only runs of a Cluster with an autoscaler or failures have it")
        return float(whole / 10**18)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """One row per stretch of identical iterations, in order of start.

        `start_s`, `replica`, `count` (iterations), `first_s` (duration of the first), `growth_s` (increase
        per further iteration), `prefill_tokens`, `decodes`, `context_tokens`, `kv_used_tokens` (of the
        first).

        Raises:
            ConfigError: the run did not record them.
        """
        return self._tables.frame("iterations")

    def single_iterations(self) -> pl.DataFrame:
        """One row per iteration in order of start, in the format of `timing.fit`.

        Use them to fit a simple timing model to a detailed one, for example for theory.

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
        """One row per request in the batch of each stretch.

        `iteration` (row of `iterations`), `request` (`id` in `requests`), `tokens` (computed per iteration),
        `emits` (whether it emits a token at the end; tokens planned ahead after a stop token are dropped).
        With `Speculation` also `emitted_tokens` (sent to the client, 0 for a dropped row).

        Raises:
            ConfigError: the run did not record them.
        """
        return self._tables.frame("batches")

    @cached_property
    def has_prefix_cache(self) -> bool:
        """Whether a `KvCache` has a `prefix_cache`."""
        return _has_prefix_cache(self._options)

    @property
    def has_jobs(self) -> bool:
        """Whether the run was over a `Network` and has `jobs`."""
        return self._tables.has("jobs")

    @property
    def is_priced(self) -> bool:
        """Whether the run was of a `GateAndRoute` and has `occupancy` and `revenue`."""
        return self._tables.has("revenue")

    @cached_property
    def occupancy(self) -> pl.DataFrame:
        """Mean requests by class and location after the warm-up, per replica.

        `class`, `prefill_queue`, `prefill`, `decode_queue`, `mixed` (decodes next to a prefill), `solo`
        (other decodes): q_p, x, q_d, y_m and y_s of an `Allocation`. Null without measured time.

        Raises:
            ConfigError: the run was not of a `GateAndRoute`.
        """
        return self._tables.frame("occupancy")

    @cached_property
    def revenue(self) -> pl.DataFrame:
        """Revenue since the warm-up, at every sample of the timeline and at the end.

        `time_s`, `bundled` (recognized when a request finishes), `separate` (at the end of each prefill and
        each decode), and both per replica and second: `bundled_per_replica_s`, `separate_per_replica_s`.

        Raises:
            ConfigError: the run was not of a `GateAndRoute`.
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
        """Write the run as a trace for the Perfetto viewer: iterations, queue, KV cache, requests.

        `inferq.results.perfetto.write` documents the content.

        Args:
            path: the JSON file; an existing file is replaced. A name that ends in `.gz` is compressed.
            requests: the number of the slowest requests by `e2e_s`, or their `id`s. Default: 50.

        Returns:
            The path.

        Raises:
            ConfigError: the run did not record its iterations (`simulate(..., iterations=True)`), an unknown
                id, or a missing folder.
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
        """Totals of the run; names that end in `_as` are integers in attoseconds."""
        return dict(self._tables.totals)

    @cached_property
    def drained(self) -> pl.Series:
        """The `id`s of the requests that were still waiting after the last arrival.

        Policies with thresholds (`Wait`, `NestedWait`) then serve below them, so that every request ends.
        These requests do not represent the long-run behavior. Empty for other policies.

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
        """The share of iterations that were simulated in stretches of two or more; 0 without iterations.

        It describes the speed of the simulation, not the requests.
        """
        totals = self._tables.totals
        return float(totals["stretched_iterations"] / max(totals["iterations"], 1))

    def work_conservation(self, budget: int | None = None) -> WorkConservation:
        """The share of iterations with fewer tokens than `budget` although more work was available.

        Such an iteration breaks work conservation if a request could have loaded one more token: a started
        request that was left out or got less of its prompt than possible, or a waiting request while a
        sequence slot and a block were free. If the sequence limit or the memory prevented it, the iteration
        counts in `cap_share` or `memory_share`. Other iterations were full or had no more work.

        Source: li2025 (2.6), whose Theorem 1 states that work-conserving policies are throughput optimal. The
            paper has no sequence limit and no memory limit; iterations that they bind do not count as broken.

        Args:
            budget: tokens that an iteration should load, at least 1. Default: `token_budget` of the
                scheduler (of `inner` for `ClassPriority`), which must be the same for all engines.

        Returns:
            `share`, `cap_share`, `memory_share`, `budget` and `iterations`; shares refer to all iterations,
            and are 0 without iterations.

        Raises:
            ConfigError: a budget that is not a positive integer, or no common budget of the schedulers.

        Example:
            vLLM's V0 scheduler computes the second prompt without the decode of the first request:

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
        """The workload, the system and the options of the run as JSON.

        `Scenario.read(result.scenario).run()` repeats the run; `Scenario` documents workloads from frames.
        `write` stores the requests (for a network: the jobs) as well.
        """
        assert self._workload is not None
        return scenario_of(self._workload, self._options)

    def summary(
        self,
        by: str | Iterable[str] | None = None,
        slo: Mapping[str, float | None] | None = None,
        prices: Prices | str | os.PathLike[str] | None = None,
    ) -> pl.DataFrame:
        """One row per group of measured requests: counts, throughput, goodput and latencies.

        | column | meaning |
        |---|---|
        | columns of `by` | the group, such as `"replica"`, `"stage"`, `"engine"`; sorted |
        | `completed` | finished requests |
        | `failed` | rejected, abandoned and lost requests; unfinished requests are in neither count |
        | `lost` | requests that failed with their replicas |
        | `duration_s` | first arrival to last finish of all measured requests; null if nothing finished |
        | `request_throughput` | completed requests per second of `duration_s`; 0 if nothing finished |
        | `output_throughput` | output tokens of completed requests per second |
        | `total_token_throughput` | prompt and output tokens of completed requests per second |
        | `request_goodput` | completed with `ttft_s` and `max_itl_s` within objectives, per second |
        | `ttft_mean`, then `_p50`, `_p90`, `_p95`, `_p99`, `_max` | seconds, or null |
        | the same for `itl`, `tpot`, `e2e`, `queue` | seconds, or null |
        | `api_mean` | API overhead in `ttft_mean` and `e2e_mean`, seconds |
        | `cached_tokens` | prompt tokens of admitted requests that were in the prefix cache |
        | `hit_rate` | share of `cached_tokens` in the prompt tokens of admitted requests |

        The last two are null without a prefix cache. `api_mean` is null if nothing finished, and for a stored
        run with a policy written in Python.

        With `prices` the columns `gpus`, `nodes`, `cost_per_hour`, `cost_per_request`,
        `cost_per_million_output_tokens`, `watts`, `joules_per_request`, `joules_per_million_output_tokens`
        and `revenue_per_hour` (null without token prices) follow. A replica is busy in the share of samples
        of `timeline` at which it runs a request. Unknown idle power is taken as busy power, so that energy is
        an upper bound.

        `duration_s` is defined as in vLLM's benchmark and equal for all groups, so that throughputs of groups
        add up to the total.

        Percentiles interpolate linearly. Those of `itl` are over all token gaps, not over requests: the upper
        edge of the histogram bin that contains the percentile, at most the maximum. Count, mean and maximum
        are exact, and so is the comparison of a percentile with `itl_limits_s` of the run. The histogram has
        classes only, so with another `by` the `itl` columns are null.

        Args:
            by: one or several columns of `requests`. Default: one group.
            slo: objectives in seconds, `{"ttft_s": …, "itl_s": …}`. Default: the columns `ttft_slo_s` and
                `itl_slo_s` of the workload. A null objective is met; without objectives, goodput equals
                throughput.
            prices: prices of GPUs and tokens, or the path of their file; not available with `by`.

        Raises:
            ConfigError: an unknown column or objective, an objective that is not a number of seconds, prices
                with `by`, a GPU without a price, or an engine without a GPU.

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
        frame = summary(self._tables, by, slo, has_prefix_cache=cached, api_s=self._api_s)
        if priced is None:
            return frame
        if by is not None:
            raise ConfigError("prices", "apply to the whole fleet; omit by")
        return frame.with_columns(
            as_columns(costs(self._tables, self._served, priced, frame.row(0, named=True)))
        )

    @cached_property
    def _api_s(self) -> NDArray[np.float64]:
        """API overhead of each replica in seconds; a single 0 if no engine has one; NaN if unknown."""
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
        """The system of the run. None for a stored run with a user-defined class."""
        return self._system if self._system is not None else recorded_system(self._options)

    @cached_property
    def _served(self) -> System:
        """The system of the run.

        Raises:
            ConfigError: a stored run with a user-defined class, of which only the name is kept.
        """
        if self.system is None:
            raise ConfigError(
                "prices", "a stored run keeps only the name of a policy written in Python, so it has no costs"
            )
        return self.system

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the current attribute for inter-token latency."""
            if name == "tbt":
                raise AttributeError("tbt: inter-token latency is the attribute `itl`")
            return object.__getattribute__(self, name)  # it raises the error of a property again

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write frames and workload as Parquet, scenario and findings as JSON.

        Files of an earlier run are replaced after all new files are on disk, or removed if this run has none.

        Args:
            directory: the directory, created if missing.

        Returns:
            The directory, which `Result.read` opens. It contains `requests.parquet`, `itl.parquet`,
            `timeline.parquet`, `block_operations.parquet` and `findings.json`; `jobs.parquet` for a network;
            `occupancy.parquet` and `revenue.parquet` for a `GateAndRoute`; `iterations.parquet` and
            `batches.parquet` if recorded; `scenario.json` and `workload.parquet` (drawn requests or jobs) to
            repeat the run; `totals.json` and `manifest.json`.

        Raises:
            ConfigError: not a path, or a directory with a run of `simulate(..., out=…)`.
            OSError: the directory cannot be created or written; its content is unchanged.
        """
        place = path_of("directory", directory, "directory")
        if (place / "requests").is_dir():
            raise ConfigError(
                "directory", f"{place} contains a run of simulate(..., out=…); use another directory"
            )
        place.mkdir(parents=True, exist_ok=True)
        names = [name for name in FRAMES if self._tables.has(name)]
        drawn = self._tables.workload
        frames = {f"{name}.parquet": getattr(self, name) for name in ("requests", *names)}
        frames["workload.parquet"] = drawn
        for frame in () if self._workload is None else self._workload.hashed_rows():
            if frame is not drawn:
                frames[rows.file_name(sha256(frame))] = frame
        totals = store.totals_of(self._tables, self._tables.statuses)
        texts = {
            "scenario.json": self.scenario + "\n",
            "findings.json": json.dumps([finding.to_json() for finding in self.findings], indent=2) + "\n",
            "totals.json": json.dumps(totals, indent=2) + "\n",
        }
        with replacing_all(place) as parts:
            manifest = parts("manifest.json")  # the first file to be opened is renamed last
            files = {}
            for name, frame in frames.items():
                part = parts(name)
                files[name] = frame_into(part, frame)
            for name, text in texts.items():
                part = parts(name)
                text_into(part, text)
                files[name] = store.about(part)
            del files["scenario.json"]  # the manifest has its hash
            text_into(manifest, store.whole_manifest(self.scenario, self.requests.height, files))
        for name in FRAMES:
            if name not in names:
                (place / f"{name}.parquet").unlink(missing_ok=True)
        return place

    def __repr__(self) -> str:
        counts = self._tables.statuses
        by_status = ", ".join(f"{n:,} {status}" for n, status in zip(counts, STATUSES, strict=True) if n)
        findings = counted(len(self.findings), "finding")
        requests = f"{sum(counts):,} requests{': ' if by_status else ''}{by_status}"
        return f"{type(self).__name__}({'; '.join([requests, *self._main(), findings])})"

    def _main(self) -> list[str]:
        """The main metrics as text; empty if nothing was served."""
        row = self.summary().row(0, named=True)
        if row["ttft_p50"] is None or row["e2e_p99"] is None:
            return []
        ttft = f"ttft p50 {seconds(row['ttft_p50'])}, p99 {seconds(row['ttft_p99'])}"
        return [ttft, f"e2e p99 {seconds(row['e2e_p99'])}", f"{number(row['request_throughput'])} requests/s"]


_RUN = ("seed", "horizon_s", "warmup", "cooldown", "timeline_s", "iterations", "batches", "stepping")
_RUN_IF_GIVEN = ("max_in_flight", "itl_limits_s")
"""The options of `simulate` that change a result; the second group is recorded if given."""


def scenario_of(workload: Workload, options: Mapping[str, Any]) -> str:
    """The workload, the system and the options of a run as JSON."""
    named = (*_RUN, *(name for name in _RUN_IF_GIVEN if name in options))
    run = {name: _given(options[name]) for name in named}
    system = {name: value for name, value in options.items() if name not in named}
    record = {"inferq": __version__, "workload": workload.to_json(), **system, "run": run}
    return json.dumps(record, indent=2)


def _given(option: Any) -> Any:
    """An option of `simulate` as a user writes it: warm-up and cool-down as requests or `"30s"`."""
    if not isinstance(option, dict):
        return option
    return option["requests"] if "requests" in option else f"{Decimal(repr(option['seconds'])):f}s"


def _has_prefix_cache(described: Any) -> bool:
    """Whether a KV cache in the description of a system has a prefix cache; slots have none."""
    if isinstance(described, dict):
        if described.get("service") == "exponential":
            return False
        return described.get("prefix_cache") is not None or any(map(_has_prefix_cache, described.values()))
    return isinstance(described, list) and any(map(_has_prefix_cache, described))
