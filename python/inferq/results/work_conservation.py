"""Work conservation: iterations that could have loaded more tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.results.tables import Columns


class WorkConservation(float):
    """The share of iterations that broke work conservation, with the limits that bound other iterations.

    `Result.work_conservation` returns it. Shares refer to all iterations of the run.

    Example:
        >>> import inferq as iq
        >>> share = iq.WorkConservation(0.25, cap_share=0.5, memory_share=0.0, budget=512, iterations=40)
        >>> share < 0.5, share.cap_share
        (True, 0.5)
    """

    cap_share: float
    """Share with fewer tokens than `budget` because of the sequence limit."""
    memory_share: float
    """Share with fewer tokens than `budget` because KV blocks were short."""
    budget: int
    """Tokens that an iteration should load."""
    iterations: int
    """All iterations of the run."""

    def __new__(
        cls,
        share: float,
        *,
        cap_share: float = 0.0,
        memory_share: float = 0.0,
        budget: int = 0,
        iterations: int = 0,
    ) -> WorkConservation:
        """Store the parts as attributes of the number."""
        number = super().__new__(cls, share)
        parts = {"cap_share": cap_share, "memory_share": memory_share}
        vars(number).update(parts, budget=budget, iterations=iterations)
        return number

    @property
    def share(self) -> float:
        """Share with fewer tokens than `budget` although more work was available."""
        return float(self)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"WorkConservation({float(self)!r}, {parts})"


def work_conservation(work: Columns | None, system: object, budget: int | None) -> WorkConservation:
    """Work conservation of a run; see `Result.work_conservation`.

    Args:
        work: the table of loads from the core; None without iterations.
        system: JSON-ready data with the descriptions of all schedulers.
        budget: tokens that an iteration should load. Default: the budget of the schedulers.

    Raises:
        ConfigError: naming `budget`.
    """
    if work is None:
        raise ConfigError("work_conservation", "runs with exponential services have no iterations")
    tokens = _common_budget(system) if budget is None else whole("budget", budget, 1)
    below = work["load"] < min(tokens, 2**63)
    iterations = int(work["iterations"].sum())
    share, cap, memory = (
        int(work[name][below].sum()) / max(iterations, 1) for name in ("broken", "cap", "memory")
    )
    return WorkConservation(share, cap_share=cap, memory_share=memory, budget=tokens, iterations=iterations)


def _common_budget(system: object) -> int:
    """The common token budget of all schedulers of a run."""
    budgets: dict[int, None] = {}
    for scheduler in _schedulers(system):
        while "inner" in scheduler:
            scheduler = scheduler["inner"]
        budget = scheduler.get("token_budget")
        if budget is None:
            raise ConfigError("budget", f"required, because {scheduler['kind']} has no token budget")
        budgets[budget] = None
    if len(budgets) > 1:
        several = ", ".join(map(str, budgets))
        raise ConfigError("budget", f"required, because the schedulers have different budgets: {several}")
    if not budgets:
        raise ConfigError("budget", "required, because slots have no token budget")
    return next(iter(budgets))


def _schedulers(system: object) -> Iterator[Mapping[str, Any]]:
    """Descriptions of all schedulers in the description of a system."""
    if isinstance(system, Mapping):
        if "scheduler" in system and "first_token" in system:  # an engine
            yield system["scheduler"]
        else:
            for value in system.values():
                yield from _schedulers(value)
    elif isinstance(system, list):
        for value in system:
            yield from _schedulers(value)
