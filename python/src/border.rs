//! Conversion of core errors to exceptions, and interruption of long calls.

use inferq_core::autoscaler::ScalingConfig;
use inferq_core::distributions::{Arrivals, Duration, Length};
use inferq_core::engine::{Engine, parse};
use inferq_core::error::{Error, Kind};
use inferq_core::failures::FailuresDescription;
use inferq_core::gate_and_route::{AllocationTables, GateAndRoute};
use inferq_core::kv::KvCache;
use inferq_core::links::LinkDescription;
use inferq_core::router::RouterConfig;
use inferq_core::scheduler::SchedulerConfig;
use inferq_core::simulation::Watch;
use inferq_core::speculation::Speculation;
use inferq_core::timing::TimingModel;
use pyo3::import_exception;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

use crate::policy::UserDefinedEngine;

import_exception!(inferq.errors, ConfigError);
import_exception!(inferq.errors, TraceError);
import_exception!(inferq.errors, SimulationError);

/// Returns the exception for an error of the core.
pub(crate) fn raise(error: Error) -> PyErr {
    match error.kind() {
        Kind::Config { path, message } => ConfigError::new_err((path.clone(), message.clone())),
        Kind::Trace { row, message } => TraceError::new_err((format!("row {row}"), message.clone())),
        Kind::Rule { .. }
        | Kind::Route { .. }
        | Kind::Overflow(_)
        | Kind::EmptyIteration(_)
        | Kind::TooMuch(_)
        | Kind::Stopped => SimulationError::new_err(error.to_string()),
    }
}

/// Checks one part of a description. The error names the field.
#[pyfunction]
pub(crate) fn check(part: &str, description: &str) -> PyResult<()> {
    let outcome = match part {
        "timing" => parse::<TimingModel>(description).and_then(|timing| timing.build().map(drop)),
        "scheduler" => parse::<SchedulerConfig>(description).and_then(|policy| policy.build(None).map(drop)),
        "speculation" => parse::<Speculation>(description).and_then(|speculation| speculation.build().map(drop)),
        "kv" => parse::<KvCache>(description).and_then(|kv| kv.check()),
        "router" => parse::<RouterConfig>(description).and_then(|router| router.build(0, 0).map(drop)),
        "scaling policy" => parse::<ScalingConfig>(description).and_then(|policy| policy.build().map(drop)),
        "failures" => {
            // The number of replicas is known only where the failures are used.
            parse::<FailuresDescription>(description).and_then(|failures| {
                failures.check()?;
                failures.build(0, usize::MAX).map(drop)
            })
        }
        "link" => parse::<LinkDescription>(description).and_then(|link| link.build().map(drop)),
        "arrivals" => parse::<Arrivals>(description).and_then(|arrivals| arrivals.check()),
        "lengths" => parse::<Length>(description).and_then(|part| part.check()),
        "durations" => parse::<Duration>(description).and_then(|part| part.check()),
        "allocation" => parse::<AllocationTables>(description).and_then(|tables| tables.check()),
        "gate_and_route" => parse::<GateAndRoute>(description).and_then(|part| part.check()),
        "engine" if UserDefinedEngine::is_described_by(description) => {
            parse::<UserDefinedEngine>(description).and_then(|engine| engine.check())
        }
        "engine" => parse::<Engine>(description).and_then(|engine| engine.build(None).map(drop)),
        _ => Err(Error::config("part", format!("{part:?} is not a part of a description"))),
    };
    outcome.map_err(raise)
}

/// An exception raised by Python during a run. It crosses the core as [`Kind::Stopped`] and is raised unchanged.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Stores an exception and returns the error that stops the core.
    pub(crate) fn keep(&self, raised: PyErr) -> Error {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
        Kind::Stopped.into()
    }

    /// Returns the exception for the error that stopped the run.
    pub(crate) fn explain(&self, error: Error) -> PyErr {
        let raised = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| raise(error))
    }
}

/// Polls for Ctrl-C and reports progress to Python during a call that has released the GIL.
pub(crate) struct Poller {
    progress: Option<Py<PyAny>>,
    raised: Raised,
    last: std::time::Instant,
}

/// Polling interval: short enough for a person, long enough to cost nothing.
const PERIOD: std::time::Duration = std::time::Duration::from_millis(40);

impl Poller {
    pub(crate) fn new(progress: Option<Py<PyAny>>, raised: Raised) -> Poller {
        Poller { progress, raised, last: std::time::Instant::now() }
    }

    fn report(&self, left: u64, requests: u64) -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            if let Some(progress) = &self.progress {
                progress.call1(py, (left, requests))?;
            }
            Ok(())
        })
    }
}

impl Watch for Poller {
    fn poll(&mut self, left: u64, requests: u64) -> inferq_core::error::Result<()> {
        if self.last.elapsed() < PERIOD {
            return Ok(());
        }
        self.last = std::time::Instant::now();
        self.report(left, requests).map_err(|raised| self.raised.keep(raised))
    }
}
