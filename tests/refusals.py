"""Tables of wrong input with the expected errors."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import inferq as iq

Test = Callable[..., None]


Kind = type[Exception] | tuple[type[Exception], ...]


def refused(
    *cases: tuple[Any, ...], error: Kind = iq.ConfigError, pattern: str = "{}"
) -> Callable[[Test], Test]:
    """Parametrize a test that must raise. All entries of a case except the last are its first arguments.

    Args:
        cases: arguments and the expected text of the error, a regular expression, which is also the id of the
            case; before it the exception, if it differs from `error`.
        error: the exception.
        pattern: the whole expression, with that of the case in place of the braces.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_case(kind_of_error: Kind, expected: str, **given: Any) -> None:
            with pytest.raises(kind_of_error, match=pattern.replace("{}", expected)):
                test(**given)

        rows = []
        for *given, expected in cases:
            own = isinstance(given[-1], type) and issubclass(given[-1], Exception)
            rows.append((*(given[:-1] if own else given), given[-1] if own else error, expected))
        known = inspect.signature(test).parameters
        names = [*list(known)[: len(rows[0]) - 2], "kind_of_error", "expected"]
        added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names[-2:]]
        over_case.__signature__ = inspect.Signature([*known.values(), *added])  # type: ignore[attr-defined]
        ids = [row[-1].strip("^$").replace("\\", "") for row in rows]
        return pytest.mark.parametrize(names, rows, ids=ids)(over_case)

    return decorate
