"""Replicas that die, and those that are told to drain or to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq.description import Description, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.systems.autoscaler import pairs

RETRIES = 3
"""How often a request is sent again where nothing else is said."""
_MOST_RETRIES = 2**32 - 1
COMMANDS = {"die": "at", "drain": "drains", "start": "starts"}
"""What replicas are told, and the field that says when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(Description):
    """When replicas of a cluster die, drain or are started, and what becomes of their requests.

    A replica dies at the instants of `at`, and where `mtbf_s` is given at the end of an exponential time
    after it opened, drawn from the seed of the run by the replica and how often it has opened. Iterations
    that end at that instant count, the one under way does not. Its cache is gone, and after `repair_s` (and
    the `startup_s` of an autoscaler) another replica with an empty one takes its place.

    Each of its requests is sent again at that instant, through the router, up to `retries` times; then it is
    lost: status `"lost"`. What its client has, it keeps: the new replica computes prompt and delivered tokens
    once more and goes on with the next one, so that a request emits every token once. Its `arrival_s`, first
    token and admission stay what they were, and it waits in the new queue as one that has just come. Requests
    that have no replica, because none is open, wait for one in the order of their ids; patience goes on until
    the first admission. Where none will ever open they stay unfinished, and a finding says so.

    A replica that is told to drain takes no further request, and ends with the last that it has; one that is
    told to start comes where none is, after the `startup_s` of an autoscaler if there is one. At one instant
    replicas die, then drain, then start.

    Source: requests that migrate with their tokens, as in NVIDIA Dynamo's fault tolerance
        (docs.nvidia.com/dynamo, "Request migration").

    Args:
        at: pairs of seconds and a replica, which dies then. One that is not there at that instant, because it
            is dead or closed, does not die; a finding counts them.
        mtbf_s: the mean seconds for which a replica serves before it dies, above 0; None: it dies only as
            told.
        repair_s: seconds until a dead replica is started again, 0 or above; None: never, but an autoscaler
            may start another in its place.
        retries: how often a request is sent again; 0: it is lost with its replica.
        drains: pairs of seconds and a replica, which drains then. One that only comes does not come.
        starts: pairs of seconds and a replica, which is started then, where it is dead or closed.

    Raises:
        ConfigError: nothing happens, a number outside these ranges, a replica that the cluster does not have,
            one that is told the same twice at an instant.

    Example:
        The replica dies in the middle of the second token; the other one computes ten tokens and the first
        once more, and emits the two that are missing:

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
        """Turn what is told into pairs of a time and a whole number."""
        for name in COMMANDS.values():
            object.__setattr__(self, name, pairs(name, getattr(self, name), "(seconds, replica)"))
        if isinstance(self.retries, int) and self.retries > _MOST_RETRIES:
            raise ConfigError("retries", f"must be at most {_MOST_RETRIES}, is {self.retries}")
        Description.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """The failures as JSON-ready values; the inverse of `from_json`."""
        told = {name: [list(pair) for pair in getattr(self, name)] for name in COMMANDS.values()}
        every = {**fields_of(self), **told}
        return {name: value for name, value in every.items() if name not in ("drains", "starts") or value}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Failures:
        """The failures that a table describes, as read from JSON or TOML.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path.
        """
        return read_fields("failures", description, cls)
