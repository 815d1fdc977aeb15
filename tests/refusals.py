"""Wrong input in tables: what is given, and what the error must say of it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import inferq as iq

Test = Callable[..., None]


def refused(
    *cases: tuple[Any, ...], error: type[Exception] = iq.ConfigError, says: str = "{}"
) -> Callable[[Test], Test]:
    """Call the test with all but the last entry of each case, as its first arguments: it must raise.

    Args:
        cases: arguments, and what the error says: a regular expression, which is also the case's name.
        error: its kind.
        says: the whole expression, with that of the case at the braces.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_case(said: str, **given: Any) -> None:
            with pytest.raises(error, match=says.replace("{}", said)):
                test(**given)

        said = inspect.Parameter("said", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [*inspect.signature(test).parameters.values(), said]
        over_case.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        names = [*list(inspect.signature(test).parameters)[: len(cases[0]) - 1], "said"]
        ids = [case[-1].strip("^$").replace("\\", "") for case in cases]
        return pytest.mark.parametrize(names, cases, ids=ids)(over_case)

    return decorate
