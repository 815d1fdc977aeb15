//! A run that is fed while it goes on: rows in as they come, tokens out as they fall, the results at the end.

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

/// A run under way; see the stub for shapes and units.
#[pyclass(frozen, module = "inferq._core", name = "Live")]
pub(crate) struct PyLive {
    /// `None`: it is over.
    running: Mutex<Option<Running>>,
}

struct Running {
    live: Live,
    border: Border,
    sink: PythonSink,
    options: Options,
}

/// The tokens of an iteration: when it ended, where it ran, which requests got one, and for which it was the last.
type Fallen = (f64, u32, Vec<u32>, Vec<u32>);

/// What happened: tokens, requests that left without their last one and how, and outputs that end early and by how many.
type Happened = (Vec<Fallen>, Vec<(u32, u8)>, Vec<(u32, u32)>);

fn happened(news: News) -> Happened {
    let fallen = |Tokens { at, replica, requests, finished }: Tokens| (at.seconds(), replica, requests, finished);
    let left = |(id, status): (u32, Status)| (id, status as u8);
    (news.tokens.into_iter().map(fallen).collect(), news.left.into_iter().map(left).collect(), news.cut)
}

impl PyLive {
    /// Does something with the run while Python may do other things.
    fn with<Done: Send>(&self, py: Python, what: impl FnOnce(&mut Running) -> Result<Done> + Send) -> PyResult<Done> {
        let outcome = py.detach(|| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_mut().map(|running| what(running).map_err(|error| running.border.raised.explain(error)))
        });
        outcome.unwrap_or_else(|| Err(over()))
    }
}

fn over() -> PyErr {
    PyValueError::new_err("the run is over")
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
                return Err(Error::config("gate_and_route", "cannot be fed while it runs"));
            }
            let cluster = border.cluster(&scenario, &classes, &[], &[], user_defined)?;
            Ok((Live::new(classes.len().max(1), cluster, &options)?, options))
        });
        let (live, options) = built.map_err(|error| border.raised.explain(error))?;
        let (raised, objectives) = (border.raised.clone(), border.objectives.clone());
        let sink = PythonSink { take, measured: options.measured.clone(), threads, raised, objectives };
        Ok(PyLive { running: Mutex::new(Some(Running { live, border, sink, options })) })
    }

    /// Requests that have come.
    fn __len__(&self, py: Python) -> PyResult<usize> {
        self.with(py, |running| Ok(running.live.rows() as usize))
    }

    /// Rows that arrive from now on, in order. Returns the id of the first.
    fn arrive(&self, py: Python, rows: &Bound<PyDict>) -> PyResult<u32> {
        let objectives = self.with(py, |running| Ok(running.border.objectives.clone()))?;
        let rows = columns(rows, &objectives)?;
        self.with(py, |running| running.live.arrive(&rows))
    }

    /// A client takes a request back at an instant that has not come. Says whether the request was still here.
    fn cancel(&self, py: Python, request: u32, at_ns: u64) -> PyResult<bool> {
        self.with(py, |running| running.live.cancel(request, Instant::from_nanoseconds(at_ns)))
    }

    /// A replica dies, drains or starts at an instant that has not come.
    fn tell(&self, py: Python, replica: usize, at_s: f64, what: &str) -> PyResult<()> {
        self.with(py, |running| {
            let what = match what {
                "die" => Command::Die,
                "drain" => Command::Drain,
                "start" => Command::Start,
                _ => return Err(Error::config("what", format!("{what}: must be die, drain or start"))),
            };
            running.live.add_command(replica, Instant(attoseconds(at_s, "at_s")?), what)
        })
    }

    /// Lets happen all that happens before so many nanoseconds.
    fn advance(&self, py: Python, until_ns: u64) -> PyResult<Happened> {
        let until = Instant::from_nanoseconds(until_ns);
        self.with(py, |running| {
            let Running { live, border, sink, .. } = running;
            live.advance(until, sink, &mut border.bell).map(happened)
        })
    }

    /// The first whole nanosecond behind what happens next; None where nothing does if nothing comes.
    fn next_ns(&self, py: Python) -> PyResult<Option<u64>> {
        let next = self.with(py, |running| running.live.next_instant())?;
        Ok((next < Instant::NEVER).then(|| (next.0 / NANOSECOND + 1) as u64))
    }

    /// Of each replica: requests that wait, requests that run, tokens of KV cache taken, and prompt tokens computed, output
    /// tokens emitted and tokens found in the prefix cache since the run began.
    fn replicas(&self, py: Python) -> PyResult<Vec<[u64; 6]>> {
        let samples = self.with(py, |running| running.live.samples())?;
        let of =
            |Sample { waiting, running, kv_used_tokens, prefilled_tokens, emitted_tokens, cached_tokens, .. }| {
                [waiting, running, kv_used_tokens, prefilled_tokens, emitted_tokens, cached_tokens]
            };
        Ok(samples.into_iter().map(of).collect())
    }

    /// No further row comes: lets happen all that is left, and gives the tables of the run.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Happened, Bound<'py, PyDict>)> {
        let ended = py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
            running.map(|Running { live, mut border, mut sink, options }| {
                let ended = live.finish(&mut sink, &mut border.bell);
                ended.map(|ended| (ended, options)).map_err(|error| border.raised.explain(error))
            })
        });
        let ((news, results), options) = ended.unwrap_or_else(|| Err(over()))?;
        Ok((happened(news), tables(py, &results, &options)?))
    }
}
