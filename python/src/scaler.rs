//! User-defined autoscaling policies, written in Python: `wanted(fleet)` is called at every look.

use inferq_core::autoscaler::{Figures, ScalingPolicy};
use inferq_core::error::{Kind, Result};
use pyo3::intern;
use pyo3::prelude::*;

use crate::border::{Raised, SimulationError};

/// A policy whose answers come from Python.
pub(crate) struct PythonScaler {
    pub(crate) object: Py<PyAny>,
    pub(crate) raised: Raised,
}

impl ScalingPolicy for PythonScaler {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        Python::attach(|py| {
            let answer = self.object.bind(py).call_method1(intern!(py, "wanted"), (FleetFigures(*figures),));
            let answer = answer.map_err(|raised| self.raised.keep(raised))?;
            // A whole number in any dress, numpy's too, but no truth value.
            let wanted = if answer.is_instance_of::<pyo3::types::PyBool>() {
                None
            } else {
                answer.call_method0(intern!(py, "__index__")).and_then(|index| index.extract::<usize>()).ok()
            };
            wanted.ok_or_else(|| {
                let shown = answer.repr().map_or_else(|_| String::new(), |shown| shown.to_string());
                let at_s = figures.now.seconds();
                let rule = format!(
                    "the autoscaler broke a rule at {at_s} s: it wants {shown} replicas, must be a whole number, 0 or above"
                );
                self.raised.keep(SimulationError::new_err(rule));
                Kind::Stopped.into()
            })
        })
    }
}

/// What a policy sees of its replicas at a look.
#[pyclass(frozen, module = "inferq", name = "FleetFigures")]
pub(crate) struct FleetFigures(Figures);

#[pymethods]
impl FleetFigures {
    /// The instant of the look, in seconds.
    #[getter]
    fn now_s(&self) -> f64 {
        self.0.now.seconds()
    }

    /// Replicas that take requests.
    #[getter]
    fn open(&self) -> usize {
        self.0.open
    }

    /// Replicas that come, those under repair among them.
    #[getter]
    fn starting(&self) -> usize {
        self.0.starting
    }

    /// Replicas that finish what they have.
    #[getter]
    fn draining(&self) -> usize {
        self.0.draining
    }

    /// Requests in the queues of open replicas, and those that have none.
    #[getter]
    fn waiting(&self) -> u64 {
        self.0.waiting
    }

    /// Requests admitted at open replicas.
    #[getter]
    fn running(&self) -> u64 {
        self.0.running
    }

    /// Requests that the open replicas admit at most.
    #[getter]
    fn seats(&self) -> u64 {
        self.0.seats
    }

    /// KV blocks that requests hold at open replicas.
    #[getter]
    fn used_blocks(&self) -> u64 {
        self.0.used_blocks
    }

    /// All KV blocks of open replicas.
    #[getter]
    fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Requests that have come since the run began.
    #[getter]
    fn arrived(&self) -> u64 {
        self.0.arrived
    }
}
