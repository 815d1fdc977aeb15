"""Did the scheduler leave work undone that it could have done?"""

from __future__ import annotations

from typing import Any


class WorkConservation(float):
    """The share of iterations that broke work conservation, a number, with what bound the others.

    Made by `Result.work_conservation`. All shares are of all iterations of the run.

    Example:
        >>> import inferq as iq
        >>> share = iq.WorkConservation(0.25, cap_share=0.5, memory_share=0.0, budget=512, iterations=40)
        >>> share < 0.5, share.cap_share
        (True, 0.5)
    """

    __slots__ = ("_budget", "_cap_share", "_iterations", "_memory_share")
    _budget: int
    _cap_share: float
    _iterations: int
    _memory_share: float

    def __new__(
        cls, share: float, *, cap_share: float, memory_share: float, budget: int, iterations: int
    ) -> WorkConservation:
        """Keep the parts beside the number."""
        made = super().__new__(cls, share)
        made._cap_share, made._memory_share = cap_share, memory_share
        made._budget, made._iterations = budget, iterations
        return made

    @property
    def share(self) -> float:
        """Loaded fewer tokens than `budget` although another could have been added."""
        return float(self)

    @property
    def cap_share(self) -> float:
        """Loaded fewer tokens than `budget` because no further request may run."""
        return self._cap_share

    @property
    def memory_share(self) -> float:
        """Loaded fewer tokens than `budget` because blocks were short."""
        return self._memory_share

    @property
    def budget(self) -> int:
        """Tokens that an iteration should load."""
        return self._budget

    @property
    def iterations(self) -> int:
        """All iterations of the run."""
        return self._iterations

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("cap_share", "memory_share", "budget", "iterations")}

    def __reduce__(self) -> tuple[Any, ...]:
        return _work_conservation, (float(self), self._parts())

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self._parts().items())
        return f"WorkConservation({float(self)!r}, {parts})"


def _work_conservation(share: float, parts: dict[str, Any]) -> WorkConservation:
    """The inverse of `WorkConservation.__reduce__`."""
    return WorkConservation(share, **parts)
