"""Failures: replicas that fail, drain or start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq.description import Description, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.systems.autoscaler import pairs

RETRIES = 3
"""Default of `Failures.retries`."""
_MOST_RETRIES = 2**32 - 1
COMMANDS = {"die": "at", "drain": "drains", "start": "starts"}
"""The field with the times of each command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(Description):
    """Failures, drains and starts of the replicas of a cluster.

    A replica fails at the times in `at`, and with `mtbf_s` an exponential time after it opened, drawn from
    the seed of the run, the replica and the number of its starts. Iterations that end at that time count; the
    current one does not. Its cache is lost. After `repair_s` (and the `startup_s` of an autoscaler) a replica
    with an empty cache replaces it.

    Each of its requests is retried at that time, through the router, up to `retries` times; then its status
    is `"lost"`. The client keeps the tokens that it has: the new replica recomputes prompt and delivered
    tokens and continues with the next one, so that a request emits every token once. `arrival_s`, first
    token and admission do not change, and the request joins the new queue as a new arrival. If no replica is
    open, requests wait for one in the order of their ids; patience applies until the first admission. If no
    replica opens again, they remain unfinished, and a finding reports them.

    A draining replica accepts no further requests and stops after its last one; if it fails, it is not
    repaired. A started replica opens if its number is free, after the `startup_s` of an autoscaler if there
    is one. Events at equal times are ordered: failures, drains, starts.

    Source: requests that migrate with their tokens, as in NVIDIA Dynamo's fault tolerance
        (docs.nvidia.com/dynamo, "Request migration").

    Args:
        at: pairs of seconds and a replica that fails. A replica that is down or closed does not fail; a
            finding counts these events.
        mtbf_s: mean time between the start and the failure of a replica, above 0. None: only `at` applies.
        repair_s: seconds until a failed replica starts again, 0 or above. None: never, but an autoscaler may
            start another replica in its place.
        retries: maximum retries of a request. 0: it is lost with its replica.
        drains: pairs of seconds and a replica that drains. A replica that is starting does not open.
        starts: pairs of seconds and a replica that starts, if it is down or closed.

    Raises:
        ConfigError: no event, a number outside these ranges, a replica that the cluster lacks, or a duplicate
            event.

    Example:
        The replica fails during the second token. The other replica recomputes the prompt and the first token
        and emits the two missing tokens:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> failures = iq.Failures(at=[(1.5, 0)])
        >>> pair = iq.Cluster(engine, replicas=2, router=iq.LeastRequests(), failures=failures)
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}
        >>> result = iq.simulate(workload, pair)
        >>> result.requests.select("replica", "retries", "first_token_s", "finish_s").rows()
        [(1, 1, 1.0, 3.5)]
    """

    part = "failures"

    at: Sequence[Sequence[float]] = field(default=())
    mtbf_s: float | None = None
    repair_s: float | None = None
    retries: int = RETRIES
    drains: Sequence[Sequence[float]] = field(default=())
    starts: Sequence[Sequence[float]] = field(default=())

    def __post_init__(self) -> None:
        """Convert events to pairs of a time and an integer."""
        for name in COMMANDS.values():
            object.__setattr__(self, name, pairs(name, getattr(self, name), "(seconds, replica)"))
        if isinstance(self.retries, int) and self.retries > _MOST_RETRIES:
            raise ConfigError("retries", f"must be at most {_MOST_RETRIES}, got {self.retries}")
        Description.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """Return the failures as JSON-ready values; the inverse of `from_json`."""
        events = {name: [list(pair) for pair in getattr(self, name)] for name in COMMANDS.values()}
        described = {**fields_of(self), **events}
        return {name: value for name, value in described.items() if name not in ("drains", "starts") or value}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Failures:
        """Read the failures from a table of JSON or TOML.

        Raises:
            ConfigError: an unknown, missing or wrong field, with its path.
        """
        return read_fields("failures", description, cls)
