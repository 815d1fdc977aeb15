//! User-defined routers, written in Python.
//!
//! `route(request, fleet)` is called once per request, at its arrival. Its arguments are copies owned by Python.
//! Expensive values are computed on access, during the call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use inferq_core::clock::Instant;
use inferq_core::error::{Kind, Result};
use inferq_core::router::{Fleet, Router};
use inferq_core::workload::Arrival;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyAttributeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::border::{Raised, SimulationError};

/// A router whose choices are made in Python.
pub(crate) struct PythonRouter {
    object: Py<PyAny>,
    classes: Py<PyTuple>,
    raised: Raised,
}

impl PythonRouter {
    pub(crate) fn new(object: Py<PyAny>, classes: Py<PyTuple>, raised: Raised) -> PythonRouter {
        PythonRouter { object, classes, raised }
    }

    fn choose(&self, py: Python<'_>, arrival: &Arrival, fleet: &mut Fleet) -> PyResult<Option<usize>> {
        let class_name = self.classes.bind(py).get_item(arrival.class as usize)?.cast_into::<PyString>()?.unbind();
        let request = RoutedRequest {
            id: arrival.id,
            at: fleet.now(),
            prompt_tokens: arrival.prompt_tokens,
            class_name,
            session: arrival.session,
        };
        let state = (0..fleet.len()).map(|open| ReplicaState::of(fleet, fleet.nth_open(open)));
        let replicas = state.collect::<Result<_>>().map_err(|error| self.raised.explain(error))?;
        let shown = PyFleet { replicas, raised: self.raised.clone(), core: Mutex::default() };
        let shown = Py::new(py, shown)?;
        shown.get().core().replace(std::mem::take(fleet));
        let chosen = self.object.bind(py).call_method1(intern!(py, "route"), (request, &shown));
        *fleet = shown.get().core().take().unwrap_or_default();
        let chosen = chosen?;
        // Any integer type, numpy's included, but no boolean.
        let index = if chosen.is_instance_of::<pyo3::types::PyBool>() {
            None
        } else {
            chosen.call_method0(intern!(py, "__index__")).and_then(|index| index.extract::<usize>()).ok()
        };
        if index.is_none_or(|index| index >= fleet.len()) {
            let shown = chosen.repr()?.to_string();
            return Err(self.raised.explain(
                Kind::Route {
                    at_s: fleet.now().seconds().to_string(),
                    request: arrival.id,
                    answer: shown,
                    replicas: fleet.len(),
                }
                .into(),
            ));
        }
        Ok(index.map(|index| fleet.nth_open(index)))
    }
}

impl Router for PythonRouter {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Python::attach(|py| {
            let chosen = self.choose(py, arrival, fleet).map_err(|raised| self.raised.keep(raised))?;
            chosen.ok_or_else(|| Kind::Stopped.into())
        })
    }
}

/// The request to be routed.
#[pyclass(frozen, module = "inferq", name = "RoutedRequest")]
pub(crate) struct RoutedRequest {
    /// Its row in the workload.
    #[pyo3(get)]
    id: u32,
    at: Instant,
    /// Prompt length in tokens.
    #[pyo3(get)]
    prompt_tokens: u32,
    /// Name of its class.
    #[pyo3(get)]
    class_name: Py<PyString>,
    /// A code shared by all requests of a session, or None.
    #[pyo3(get)]
    session: Option<u32>,
}

#[pymethods]
impl RoutedRequest {
    /// When it arrives, in seconds.
    #[getter]
    fn arrival_s(&self) -> f64 {
        self.at.seconds()
    }

    /// Explains missing attributes. Routers do not see output lengths.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        let why = if name == "output_tokens" { ": the output length is not known at routing time" } else { "" };
        Err(PyAttributeError::new_err(format!(
            "RoutedRequest has no attribute {name}{why}; it has id, arrival_s, prompt_tokens, class_name and session"
        )))
    }
}

/// The visible state of a replica.
struct ReplicaState {
    number: u64,
    requests: u64,
    waiting: u64,
    tokens: u64,
    free_blocks: u64,
    used_blocks: u64,
}

impl ReplicaState {
    fn of(fleet: &Fleet, replica: usize) -> Result<ReplicaState> {
        let (free_blocks, used_blocks) = fleet.free_and_used_blocks(replica)?;
        Ok(ReplicaState {
            number: u64::from(fleet.number(replica)),
            requests: u64::from(fleet.requests()[replica]),
            waiting: fleet.waiting(replica),
            tokens: fleet.tokens(replica)?,
            free_blocks,
            used_blocks,
        })
    }
}

/// The replicas as a router sees them: one integer array per quantity.
#[pyclass(frozen, module = "inferq", name = "Fleet")]
pub(crate) struct PyFleet {
    replicas: Vec<ReplicaState>,
    raised: Raised,
    /// The core's fleet, only during a call of the router.
    core: Mutex<Option<Fleet>>,
}

impl PyFleet {
    fn core(&self) -> MutexGuard<'_, Option<Fleet>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn column<'py>(&self, py: Python<'py>, cell: impl Fn(&ReplicaState) -> u64) -> Bound<'py, PyArray1<i64>> {
        array(py, self.replicas.iter().map(cell))
    }
}

/// Returns a read-only integer array.
fn array(py: Python<'_>, cells: impl Iterator<Item = u64>) -> Bound<'_, PyArray1<i64>> {
    let array = PyArray1::from_vec(py, cells.map(|cell| i64::try_from(cell).unwrap_or(i64::MAX)).collect());
    drop(array.readwrite().make_nonwriteable());
    array
}

#[pymethods]
impl PyFleet {
    fn __len__(&self) -> usize {
        self.replicas.len()
    }

    /// Replica numbers as in the results.
    #[getter]
    fn replicas<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.number)
    }

    /// Waiting and running requests per replica.
    #[getter]
    fn requests<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.requests)
    }

    /// Waiting requests per replica.
    #[getter]
    fn waiting<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.waiting)
    }

    /// Running requests per replica.
    #[getter]
    fn running<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.requests - replica.waiting)
    }

    /// Prompt tokens not yet computed plus output tokens not yet emitted, per replica. This uses true output lengths.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.tokens)
    }

    /// Used KV blocks per replica.
    #[getter]
    fn used_blocks<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.used_blocks)
    }

    /// Free KV blocks per replica, those that cache prefixes included.
    #[getter]
    fn free_blocks<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |replica| replica.free_blocks)
    }

    /// Tokens of the request's prompt in the cache of each replica, computed on access.
    #[getter]
    fn cached_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let mut core = self.core();
        let Some(fleet) = core.as_mut() else {
            return Err(SimulationError::new_err("fleet.cached_tokens is available only during the call of route"));
        };
        let cached: Result<Vec<u64>> = (0..fleet.len()).map(|open| fleet.cached_tokens(fleet.nth_open(open))).collect();
        Ok(array(py, cached.map_err(|error| self.raised.explain(error))?.into_iter()))
    }
}
