//! A live run: rows are added while it runs, tokens are returned as they are emitted, and results at the end.

use inferq_core::clock::{Instant, NANOSECOND, attoseconds};
use inferq_core::engine::parse;
use inferq_core::error::{Error, Result};
use inferq_core::failures::Command;
use inferq_core::results::{Sample, Status};
use inferq_core::simulation::{Live, News, Options, Tokens};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::run::{Border, Scenario, UserDefinedParts};
use crate::streamed::{PythonSink, columns};
use crate::tables::tables;

/// A running simulation. Shapes and units are in the stub.
#[pyclass(frozen, module = "inferq._core", name = "Live")]
pub(crate) struct PyLive {
    /// `None` after the end of the run.
    running: Mutex<Option<Running>>,
}

struct Running {
    live: Live,
    border: Border,
    sink: PythonSink,
    options: Options,
}

/// Tokens of an iteration: its end, its replica, the requests that got a token, and those that got their last one.
type IterationTokens = (f64, u32, Vec<u32>, Vec<u32>);

/// Tokens, requests that left early with their status, and requests whose outputs were cut with the number of tokens.
type Events = (Vec<IterationTokens>, Vec<(u32, u8)>, Vec<(u32, u32)>);

fn events(news: News) -> Events {
    let fallen = |Tokens { at, replica, requests, finished }: Tokens| (at.seconds(), replica, requests, finished);
    let left = |(id, status): (u32, Status)| (id, status as u8);
    (news.tokens.into_iter().map(fallen).collect(), news.left.into_iter().map(left).collect(), news.cut)
}

impl PyLive {
    /// Runs a function on the simulation without the GIL.
    fn with<Done: Send>(&self, py: Python, run: impl FnOnce(&mut Running) -> Result<Done> + Send) -> PyResult<Done> {
        let outcome = py.detach(|| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_mut().map(|running| run(running).map_err(|error| running.border.raised.explain(error)))
        });
        outcome.unwrap_or_else(|| Err(run_ended()))
    }
}

fn run_ended() -> PyErr {
    PyValueError::new_err("the run has ended")
}

#[pymethods]
impl PyLive {
    #[new]
    fn new(
        py: Python,
        scenario: &str,
        classes: Vec<String>,
        user_defined: UserDefinedParts,
        take: Py<PyAny>,
    ) -> PyResult<PyLive> {
        let border = Border::new(py, &classes, None)?;
        let threads = NonZeroUsize::new(1);
        let built = py.detach(|| {
            let scenario: Scenario = parse(scenario)?;
            let options = scenario.options(0..u32::MAX, threads)?;
            if scenario.gate_and_route.is_some() {
                return Err(Error::config("gate_and_route", "is not supported in a live run"));
            }
            let cluster = border.cluster(&scenario, &classes, &[], &[], user_defined)?;
            Ok((Live::new(classes.len().max(1), cluster, &options)?, options))
        });
        let (live, options) = built.map_err(|error| border.raised.explain(error))?;
        let (raised, objectives) = (border.raised.clone(), border.objectives.clone());
        let sink = PythonSink { take, measured: options.measured.clone(), threads, raised, objectives };
        Ok(PyLive { running: Mutex::new(Some(Running { live, border, sink, options })) })
    }

    /// Number of requests that have arrived.
    fn __len__(&self, py: Python) -> PyResult<usize> {
        self.with(py, |running| Ok(running.live.rows() as usize))
    }

    /// Adds rows that arrive from now on, in order. Returns the id of the first.
    fn arrive(&self, py: Python, rows: &Bound<PyDict>) -> PyResult<u32> {
        let objectives = self.with(py, |running| Ok(running.border.objectives.clone()))?;
        let rows = columns(rows, &objectives)?;
        self.with(py, |running| running.live.arrive(&rows))
    }

    /// Cancels a request at a future instant. Returns whether the request was still in the system.
    fn cancel(&self, py: Python, request: u32, at_ns: u64) -> PyResult<bool> {
        self.with(py, |running| running.live.cancel(request, Instant::from_nanoseconds(at_ns)))
    }

    /// Schedules the death, drain or start of a replica at a future instant.
    fn schedule_change(&self, py: Python, replica: usize, at_s: f64, command: &str) -> PyResult<()> {
        self.with(py, |running| {
            let command = match command {
                "die" => Command::Die,
                "drain" => Command::Drain,
                "start" => Command::Start,
                _ => return Err(Error::config("command", format!("must be die, drain or start, got {command:?}"))),
            };
            running.live.add_command(replica, Instant(attoseconds(at_s, "at_s")?), command)
        })
    }

    /// Runs all events before `until_ns`.
    fn advance(&self, py: Python, until_ns: u64) -> PyResult<Events> {
        let until = Instant::from_nanoseconds(until_ns);
        self.with(py, |running| {
            let Running { live, border, sink, .. } = running;
            live.advance(until, sink, &mut border.poller).map(events)
        })
    }

    /// Returns the first whole nanosecond after the next event, or None if no event is left without a new arrival.
    fn next_ns(&self, py: Python) -> PyResult<Option<u64>> {
        let next = self.with(py, |running| running.live.next_instant())?;
        Ok((next < Instant::NEVER).then(|| (next.0 / NANOSECOND + 1) as u64))
    }

    /// For each replica: waiting requests, running requests, KV tokens in use, and since the start of the run the
    /// prompt tokens computed, output tokens emitted and tokens hit in the prefix cache.
    fn replicas(&self, py: Python) -> PyResult<Vec<[u64; 6]>> {
        let samples = self.with(py, |running| running.live.samples())?;
        let of =
            |Sample { waiting, running, kv_used_tokens, prefilled_tokens, emitted_tokens, cached_tokens, .. }| {
                [waiting, running, kv_used_tokens, prefilled_tokens, emitted_tokens, cached_tokens]
            };
        Ok(samples.into_iter().map(of).collect())
    }

    /// Ends the input, runs all remaining events and returns the tables of the run.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Events, Bound<'py, PyDict>)> {
        let ended = py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
            running.map(|Running { live, mut border, mut sink, options }| {
                let ended = live.finish(&mut sink, &mut border.poller);
                ended.map(|ended| (ended, options)).map_err(|error| border.raised.explain(error))
            })
        });
        let ((news, results), options) = ended.unwrap_or_else(|| Err(run_ended()))?;
        Ok((events(news), tables(py, &results, &options)?))
    }
}
