"""The core's input: a scenario as JSON and requests as columns.

A whole workload and a part of one have the same columns and the same codes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError, TraceError
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import Pool, keys, pools_of, user_defined
from inferq.systems.routers import BySession, PrefixHash
from inferq.systems.system import System
from inferq.workload.dependencies import NO_SESSION, sessions
from inferq.workload.prefixes import Contents

ONE_CLASS = "default"
"""The class of requests without a class."""


class CoreInput:
    """The core's description of a system, and the conversion of requests to columns.

    Args:
        system: the system.
        columns: names of the workload's columns.
        takes_commands: whether replicas of a cluster accept commands to fail, drain and start.
    """

    def __init__(self, system: System, columns: Sequence[str], *, takes_commands: bool = False) -> None:
        self.pools: Sequence[Pool] = pools_of(system)
        if takes_commands:
            self.pools = [replace(pool, takes_commands=True) for pool in self.pools]
        self.control = system.to_json() if isinstance(system, GateAndRoute) else None
        self._alone = isinstance(system, Engine)
        by_session = any(isinstance(pool.router, BySession) for pool in self.pools)
        if by_session and "session_id" not in columns:
            raise ConfigError("router", "BySession requires the column session_id, which the workload lacks")
        user_defined = any(pool.router is not None and pool.router.is_user_defined() for pool in self.pools)
        hashes = any(isinstance(pool.router, PrefixHash) for pool in self.pools)
        engines = [engine for pool in self.pools for engine in pool.engines]
        self.knows_prefixes = hashes or any(engine.kv.prefix_cache for engine in engines)
        speculations = [engine.scheduler.speculative_decoding() for engine in engines]
        self._recorded = [
            speculation
            for speculation in speculations
            if speculation is not None and speculation.acceptance is None
        ]
        if self._recorded and "accepted" not in columns:
            raise ConfigError(
                "speculation.acceptance",
                "None reads acceptance from the column accepted, which the workload lacks; set a probability",
            )
        self._reads_proposal_rates = any(
            speculation is not None and speculation.proposed_share() is None for speculation in speculations
        )
        self._reads_output_limits = any(engine.scheduler.reads_output_limits() for engine in engines)
        self._wants_sessions = (by_session or user_defined) and "session_id" in columns

    def scenario(self, options: dict[str, Any]) -> str:
        """The scenario as JSON."""
        pools = [pool.to_json() for pool in self.pools]
        return json.dumps({"pools": pools, "gate_and_route": self.control, **options})

    def user_defined(self) -> dict[str, list[Any]]:
        """The user-defined schedulers and routers, as Python objects."""
        return user_defined(self.pools, alone=self._alone)

    def columns(
        self,
        frame: pl.DataFrame,
        entered: NDArray[np.uint32] | None = None,
        first: int = 0,
        coded: Callable[[pl.Series], NDArray[np.uint32]] = sessions,
        contents: Contents | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Convert a canonical frame to the core's columns.

        Args:
            frame: the requests, or a part of them.
            entered: the pool that each request enters. None: the first pool.
            first: number of the first row.
            coded: converts session ids to codes.
            contents: numbers the prefixes of prompts. None: the frame is the whole workload.
        """
        columns = {name: frame[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")}
        if "class" in frame.columns:
            columns["class"] = frame["class"].to_physical().cast(pl.UInt32).to_numpy()
        if "priority" in frame.columns:
            columns["priority"] = frame["priority"].to_numpy()
        if "max_output_tokens" in frame.columns and self._reads_output_limits:
            columns["max_output_tokens"] = frame["max_output_tokens"].fill_null(0).to_numpy()
        if self._recorded:
            drafts = max(speculation.tokens for speculation in self._recorded)
            columns.update(_accepted(frame, drafts, first))
        if "proposal_rate" in frame.columns and self._reads_proposal_rates:
            columns["proposal_rate"] = frame["proposal_rate"].to_numpy()
        for name in ("patience_s", "cancel_s", "ttft_slo_s", "itl_slo_s"):
            if name in frame.columns:
                columns[name] = frame[name].fill_null(math.nan).to_numpy()
        if self._wants_sessions:
            columns["session"] = coded(frame["session_id"])
        queue_key = keys(self.pools, frame, entered, first)
        if queue_key is not None:
            columns["queue_key"] = queue_key
        if entered is not None:
            columns["pool"] = entered
        if self.knows_prefixes:
            chains = Contents().linked(frame) if contents is None else contents.of(frame, first)
            if chains is not None:
                columns.update(chains.columns())
        return columns


class SessionCodes:
    """Session codes across the parts of a workload, equal to those of the whole."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}

    def __call__(self, session_id: pl.Series) -> NDArray[np.uint32]:
        """Return the codes of the next rows."""
        codes = self._codes
        numbers = (
            NO_SESSION if session is None else codes.setdefault(session, len(codes))
            for session in session_id.to_list()
        )
        return np.fromiter(numbers, dtype=np.uint32, count=session_id.len())


_MOST_ACCEPTED = 2**16 - 1
"""Upper limit of accepted drafts in the core."""


def _accepted(frame: pl.DataFrame, drafts: int, first: int) -> dict[str, NDArray[Any]]:
    """The column `accepted` in the core's format, for requests with `drafts` drafts per step."""
    lists = frame["accepted"]
    each = lists.list
    numbers = lists.explode().drop_nulls()
    wrong = (
        lists.is_null()
        | (each.len() != each.drop_nulls().list.len())
        | (each.min() < 0).fill_null(False)
        | (each.max() > _MOST_ACCEPTED).fill_null(False)
    )
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise TraceError(
            f"row {first + at}",
            f"accepted must be a list of integers from 0 to {_MOST_ACCEPTED}, one per step that emits, "
            f"got {lists[at] if lists[at] is None else lists[at].to_list()}",
        )
    # The first step has no drafts; each further step emits one token and the accepted drafts.
    emitted = frame.select(
        pl.col("accepted").list.slice(1).list.eval(pl.element().clip(upper_bound=drafts) + 1).list.sum() + 1
    ).to_series()
    short = emitted.fill_null(0) < frame["output_tokens"]
    if short.any():
        at = int(short.to_numpy().argmax())
        raise TraceError(
            f"row {first + at}",
            f"accepted has {lists[at].len()} entries, which emit {emitted[at]} of "
            f"{frame['output_tokens'][at]} output tokens with {drafts} drafts per step",
        )
    lengths = each.len().to_numpy().astype(np.uint64)
    start = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(lengths, dtype=np.uint64)])
    return {"accepted_start": start, "accepted_drafts": numbers.to_numpy().astype(np.uint16)}
