"""Numbers, tables, charts and pages in the common style.

| what | names |
|---|---|
| palette of charts | `BLUE`, `SKY`, `ORANGE`, `VERMILION`, `GREEN`, `PURPLE`, `GRAY`, `INK` |
| Altair charts | `colored` (a color channel), `styled`, `svg` |
| HTML pages | `shell`, `table`, `figure` with a `Chart` |
| numbers | `number`, `rounded` (with a confidence interval) |

Example:
    >>> from inferq import display
    >>> display.number(131000.4, 5), display.rounded(3.2581, 0.0123)
    ('131,000', ('3.258', '± 0.012'))
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
