"""Wrong input in tables: what is given, and what the error must say of it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import inferq as iq

Test = Callable[..., None]


Kind = type[Exception] | tuple[type[Exception], ...]


def refused(
    *cases: tuple[Any, ...], error: Kind = iq.ConfigError, says: str = "{}"
) -> Callable[[Test], Test]:
    """Call the test with all but the last entry of each case, as its first arguments: it must raise.

    Args:
        cases: arguments, and what the error says: a regular expression, which is also the case's name; before
            it the kind of error where it is another than `error`.
        error: the kind of error.
        says: the whole expression, with that of the case at the braces.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_case(kind_of_error: Kind, said: str, **given: Any) -> None:
            with pytest.raises(kind_of_error, match=says.replace("{}", said)):
                test(**given)

        rows = []
        for *given, said in cases:
            own = isinstance(given[-1], type) and issubclass(given[-1], Exception)
            rows.append((*(given[:-1] if own else given), given[-1] if own else error, said))
        known = inspect.signature(test).parameters
        names = [*list(known)[: len(rows[0]) - 2], "kind_of_error", "said"]
        added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names[-2:]]
        over_case.__signature__ = inspect.Signature([*known.values(), *added])  # type: ignore[attr-defined]
        ids = [row[-1].strip("^$").replace("\\", "") for row in rows]
        return pytest.mark.parametrize(names, rows, ids=ids)(over_case)

    return decorate
