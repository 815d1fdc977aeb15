"""Which rows of a result count, and what is in them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from inferq._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Measured(Mapping[str, "NDArray[Any]"]):
    """The columns of the measured requests, each cut out when it is asked for."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns
        flags = columns["measured"]
        self.height = int(np.count_nonzero(flags))
        first = int(flags.argmax()) if self.height else 0
        # warm-up and cool-down cut the ends: as a rule the measured are a range, whose columns are views
        self.rows: slice | NDArray[np.intp] = slice(first, first + self.height)
        if not flags[self.rows].all():
            self.rows = np.flatnonzero(flags)

    def __getitem__(self, name: str) -> NDArray[Any]:
        cut: NDArray[Any] = self._columns[name][self.rows]
        return cut

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
