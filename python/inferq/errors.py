"""What can go wrong, and which exception says so?

| exception | raised when | parent |
|---|---|---|
| `ConfigError` | an argument or a field of a scenario is wrong; it names it | `ValueError` |
| `TraceError` | a workload or trace is wrong; it names file, row and column | `ValueError` |
| `SimulationError` | a run cannot go on: say, a policy breaks a rule; it names the rule | `RuntimeError` |

An exception raised in a user's own code, and `KeyboardInterrupt`, come back untouched.

Example:
    >>> import inferq as iq
    >>> try:
    ...     iq.Workload({"arrival_s": [0.0, 2.0, 1.0], "prompt_tokens": [5, 5, 5]})
    ... except iq.TraceError as error:
    ...     print(error)
    row 2: arrival_s is 1.0, before the 2.0 of row 1: sort the rows by arrival_s
"""

from inferq._core import ConfigError, SimulationError, TraceError

__all__ = ["ConfigError", "SimulationError", "TraceError"]
