"""Vidur's event loop on the workload of `compare.py`; runs in Vidur's own environment.

Vidur fetches the profiles of its kernels from a hub when it runs. Here iterations take the linear time of
`compare.py` instead, which costs less than its random forests: the loop is timed, not the model.
"""

import sys

from vidur._native.entities import ExecutionTime
from vidur.execution_time_predictor import BaseExecutionTimePredictor, ExecutionTimePredictorRegistry
from vidur.main import main
from vidur.types import ExecutionTimePredictorType

BASE_MS, PER_TOKEN_MS, KNEE = 6.0, 0.032, 200


class Linear(BaseExecutionTimePredictor):
    """6 ms, and 32 µs for each token above 200."""

    def get_execution_time(self, batch, pipeline_stage):
        """All of it as one part of each layer."""
        whole = BASE_MS + PER_TOKEN_MS * max(0, sum(batch.num_q_tokens) - KNEE)
        layers = self._num_layers_per_pipeline_stage
        return ExecutionTime(layers, *[0.0] * 6, whole / layers, *[0.0] * 7)


Linear.__abstractmethods__ = frozenset()
ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, Linear)

if __name__ == "__main__":
    sys.exit(main())
