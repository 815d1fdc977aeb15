"""System: any of the systems that can serve a workload."""

from __future__ import annotations

from typing import TypeAlias, get_args

from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network

System: TypeAlias = Engine | Cluster | Disaggregated | Network | GateAndRoute
"""A system that serves a workload."""

SYSTEMS = get_args(System)
"""Classes of `System`."""
