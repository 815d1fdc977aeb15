"""System: what a workload may be sent through."""

from __future__ import annotations

from typing import TypeAlias, get_args

from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network

System: TypeAlias = Engine | Cluster | Disaggregated | Network | GateAndRoute
"""What a workload may be sent through."""

SYSTEMS = get_args(System)
"""Its classes."""
