"""Many scenarios of one idea in few tests: fifty to a test, and the one that fails is named."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def grouped(of: int = 50, **scenarios: Sequence[Any]) -> Callable[[Test], Test]:
    """Call the test for each value of its one argument named here, with so many values to an id."""
    ((name, values),) = scenarios.items()
    groups = [values[first : first + of] for first in range(0, len(values), of)]
    ids = [f"{name}={group[0]}..{group[-1]}" for group in groups]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_group(*args: Any, **kwargs: Any) -> None:
            for value in kwargs.pop(f"{name}s"):
                try:
                    test(*args, **kwargs, **{name: value})
                except Exception as error:
                    raise AssertionError(f"{name} {value}") from error

        signature = inspect.signature(test)
        parameters = [
            parameter.replace(name=f"{name}s") if parameter.name == name else parameter
            for parameter in signature.parameters.values()
        ]
        over_group.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize(f"{name}s", groups, ids=ids)(over_group)

    return decorate
