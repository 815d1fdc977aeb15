"""Gate and route with the slots, the times and the prices of lin2026, section 6."""

from typing import Any

import inferq as iq

TIMING = iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.022)
PRICES = iq.Prices(prefill=0.1, decode=0.2)
SLOTS: dict[str, Any] = {"timing": TIMING, "slots": 16, "chunk": 256, "prices": PRICES}


def cluster(allocation: Any = None, **fields: Any) -> iq.research.GateAndRoute:
    """Two replicas, half a prefill on each, unless said."""
    plan = allocation or iq.research.Allocation(prefill={"default": 0.5})
    return iq.research.GateAndRoute(plan, **{"replicas": 2, **SLOTS, **fields})
