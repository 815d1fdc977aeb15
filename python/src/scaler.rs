//! User-defined autoscaling policies in Python: `wanted(fleet)` is called at every evaluation.

use inferq_core::autoscaler::{Figures, ScalingPolicy};
use inferq_core::error::{Kind, Result};
use pyo3::intern;
use pyo3::prelude::*;

use crate::border::{Raised, SimulationError};

/// A policy implemented in Python.
pub(crate) struct PythonScaler {
    pub(crate) object: Py<PyAny>,
    pub(crate) raised: Raised,
}

impl ScalingPolicy for PythonScaler {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        Python::attach(|py| {
            let answer = self.object.bind(py).call_method1(intern!(py, "wanted"), (FleetFigures(*figures),));
            let answer = answer.map_err(|raised| self.raised.keep(raised))?;
            // Any integer type, numpy's included, but no boolean.
            let replicas = if answer.is_instance_of::<pyo3::types::PyBool>() {
                None
            } else {
                answer.call_method0(intern!(py, "__index__")).and_then(|index| index.extract::<usize>()).ok()
            };
            replicas.ok_or_else(|| {
                let shown = answer.repr().map_or_else(|_| String::new(), |shown| shown.to_string());
                let at_s = figures.now.seconds();
                let rule = format!(
                    "the autoscaler violated a rule at {at_s} s: wanted() must return a non-negative integer, got {shown}"
                );
                self.raised.keep(SimulationError::new_err(rule));
                Kind::Stopped.into()
            })
        })
    }
}

/// State of the replicas as a policy sees it.
#[pyclass(frozen, module = "inferq", name = "FleetFigures")]
pub(crate) struct FleetFigures(Figures);

#[pymethods]
impl FleetFigures {
    /// Current time in seconds.
    #[getter]
    fn now_s(&self) -> f64 {
        self.0.now.seconds()
    }

    /// Replicas that take requests.
    #[getter]
    fn open(&self) -> usize {
        self.0.open
    }

    /// Replicas that are starting, including those under repair.
    #[getter]
    fn starting(&self) -> usize {
        self.0.starting
    }

    /// Replicas that finish their requests before they end.
    #[getter]
    fn draining(&self) -> usize {
        self.0.draining
    }

    /// Waiting requests of open replicas, plus requests without a replica.
    #[getter]
    fn waiting(&self) -> u64 {
        self.0.waiting
    }

    /// Running requests of open replicas.
    #[getter]
    fn running(&self) -> u64 {
        self.0.running
    }

    /// Sequence slots of all open replicas.
    #[getter]
    fn seats(&self) -> u64 {
        self.0.seats
    }

    /// Used KV blocks of open replicas.
    #[getter]
    fn used_blocks(&self) -> u64 {
        self.0.used_blocks
    }

    /// Total KV blocks of open replicas.
    #[getter]
    fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Requests that have arrived since the start of the run.
    #[getter]
    fn arrived(&self) -> u64 {
        self.0.arrived
    }
}
