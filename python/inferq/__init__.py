"""A bit-exact simulator of LLM inference serving, fast enough for real traces.

The road of a request: workload → router → replica (scheduler + KV cache + timing) → results.

Example:
    >>> import inferq as iq
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    >>> workload = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]})
    >>> iq.simulate(workload, engine).requests.select("first_token_s", "finish_s").rows()
    [(1.0, 3.0)]
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferq import theory, timing
    from inferq.cluster import Cluster
    from inferq.disaggregated import Disaggregated, Link
    from inferq.engine import Engine, KvCache, Overhead
    from inferq.errors import ConfigError, SimulationError, SweepInterrupted, SweepStopped, TraceError
    from inferq.experiment.comparing.comparison import compare
    from inferq.experiment.gating.runs import gate
    from inferq.experiment.planning.objective import Slo
    from inferq.experiment.planning.plan import capacity
    from inferq.experiment.sweeping.grid import sweep
    from inferq.gate_and_route import Allocation, GateAndRoute, Prices
    from inferq.law import (
        Deterministic,
        Empirical,
        Exponential,
        Fixed,
        Gamma,
        Geometric,
        Lognormal,
        LogUniform,
        OnOff,
        Poisson,
        PoissonLength,
        TimeVarying,
        Uniform,
        Weibull,
    )
    from inferq.network import Network, Stage, Workflow
    from inferq.picture.pages import report
    from inferq.result import Result
    from inferq.router import (
        Arrival,
        BySession,
        Fleet,
        LeastKv,
        LeastRequests,
        LeastTokens,
        PowerOfTwo,
        PrefixAffinity,
        PrefixHash,
        Random,
        RoundRobin,
        Router,
    )
    from inferq.scheduler import (
        Batch,
        ByKey,
        ClassPriority,
        DynamicOffset,
        FasterTransformer,
        KFcfs,
        NestedWait,
        Orca,
        Rad,
        RadPhased,
        Recompute,
        Sarathi,
        Scheduler,
        Sglang,
        Slai,
        SlotGreedy,
        Swap,
        View,
        VllmV0,
        VllmV1,
        Wait,
    )
    from inferq.simulation import simulate
    from inferq.streaming.stored import StoredResult
    from inferq.timing import (
        Constant,
        MemoryLinear,
        MixedSolo,
        PiecewiseLinear,
        Roofline,
        TiledGemm,
        TimingTable,
    )
    from inferq.trace import read_trace
    from inferq.work import WorkConservation
    from inferq.workload import Workload

    __version__: str

__all__ = [  # noqa: RUF022  # in the order of the road
    "Workload",
    "read_trace",
    "Poisson",
    "Gamma",
    "Weibull",
    "Deterministic",
    "OnOff",
    "TimeVarying",
    "Fixed",
    "Uniform",
    "LogUniform",
    "Lognormal",
    "Geometric",
    "PoissonLength",
    "Empirical",
    "Exponential",
    "Cluster",
    "RoundRobin",
    "Random",
    "LeastRequests",
    "LeastTokens",
    "PowerOfTwo",
    "LeastKv",
    "BySession",
    "PrefixAffinity",
    "PrefixHash",
    "Router",
    "Arrival",
    "Fleet",
    "Disaggregated",
    "Link",
    "Network",
    "Workflow",
    "Stage",
    "Engine",
    "Sarathi",
    "VllmV1",
    "VllmV0",
    "Sglang",
    "Orca",
    "FasterTransformer",
    "KFcfs",
    "Rad",
    "RadPhased",
    "Slai",
    "DynamicOffset",
    "Wait",
    "NestedWait",
    "SlotGreedy",
    "ClassPriority",
    "ByKey",
    "Scheduler",
    "View",
    "Batch",
    "Recompute",
    "Swap",
    "KvCache",
    "Overhead",
    "Constant",
    "PiecewiseLinear",
    "MemoryLinear",
    "MixedSolo",
    "TiledGemm",
    "TimingTable",
    "Roofline",
    "GateAndRoute",
    "Allocation",
    "Prices",
    "simulate",
    "Result",
    "StoredResult",
    "WorkConservation",
    "report",
    "theory",
    "timing",
    "compare",
    "capacity",
    "Slo",
    "sweep",
    "gate",
    "ConfigError",
    "TraceError",
    "SimulationError",
    "SweepStopped",
    "SweepInterrupted",
    "__version__",
]

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise take any name for an attribute
    _HOMES = {
        "cluster": ("Cluster",),
        "disaggregated": ("Disaggregated", "Link"),
        "engine": ("Engine", "KvCache", "Overhead"),
        "errors": ("ConfigError", "SimulationError", "SweepInterrupted", "SweepStopped", "TraceError"),
        "experiment.comparing.comparison": ("compare",),
        "experiment.gating.runs": ("gate",),
        "experiment.planning.objective": ("Slo",),
        "experiment.planning.plan": ("capacity",),
        "experiment.sweeping.grid": ("sweep",),
        "picture.pages": ("report",),
        "gate_and_route": ("Allocation", "GateAndRoute", "Prices"),
        "law": (
            "Deterministic",
            "Empirical",
            "Exponential",
            "Fixed",
            "Gamma",
            "Geometric",
            "LogUniform",
            "Lognormal",
            "OnOff",
            "Poisson",
            "PoissonLength",
            "TimeVarying",
            "Uniform",
            "Weibull",
        ),
        "network": ("Network", "Stage", "Workflow"),
        "result": ("Result",),
        "router": (
            "Arrival",
            "BySession",
            "Fleet",
            "LeastKv",
            "LeastRequests",
            "LeastTokens",
            "PowerOfTwo",
            "PrefixAffinity",
            "PrefixHash",
            "Random",
            "RoundRobin",
            "Router",
        ),
        "scheduler": (
            "Batch",
            "ByKey",
            "ClassPriority",
            "DynamicOffset",
            "FasterTransformer",
            "KFcfs",
            "NestedWait",
            "Orca",
            "Rad",
            "RadPhased",
            "Recompute",
            "Sarathi",
            "Scheduler",
            "Sglang",
            "Slai",
            "SlotGreedy",
            "Swap",
            "View",
            "VllmV0",
            "VllmV1",
            "Wait",
        ),
        "simulation": ("simulate",),
        "streaming.stored": ("StoredResult",),
        "timing": (
            "Constant",
            "MemoryLinear",
            "MixedSolo",
            "PiecewiseLinear",
            "Roofline",
            "TiledGemm",
            "TimingTable",
        ),
        "trace": ("read_trace",),
        "work": ("WorkConservation",),
        "workload": ("Workload",),
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name):
        """Import a public name when it is first used, so that `import inferq` costs nothing."""
        from importlib import import_module, metadata

        if name == "__version__":
            value = metadata.version("inferq")
        elif name in ("theory", "timing"):
            value = import_module(f"inferq.{name}")
        elif name in _HOME:
            value = getattr(import_module(f"inferq.{_HOME[name]}"), name)
        else:
            raise AttributeError(f"module 'inferq' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
