//! One simulation of a workload in parts: iterators of columns in, finished rows out.

use inferq_core::clock::{Instant, arrival_nanoseconds, attoseconds};
use inferq_core::engine::parse;
use inferq_core::error::Result;
use inferq_core::simulation::{Outline, Rows, Sink, WorkloadSource, simulate_streamed as simulate};
use inferq_core::workload::Columns;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use crate::border::Raised;
use crate::requests::{PyRequestRows, WorkloadColumns};
use crate::run::{Border, Cut, Scenario, UserDefinedParts, column, optional};
use crate::tables::tables;
use crate::view::Objectives;

/// Runs a scenario over a workload in parts. Shapes and units are in the stub.
#[pyfunction]
#[pyo3(signature = (scenario, arrivals, parts, take, classes, user_defined, threads, progress))]
#[expect(clippy::too_many_arguments, reason = "the single entry point takes all inputs of a run")]
pub(crate) fn simulate_streamed<'py>(
    py: Python<'py>,
    scenario: &str,
    arrivals: Py<PyAny>,
    parts: &Bound<'py, PyAny>,
    take: Py<PyAny>,
    classes: Vec<String>,
    user_defined: UserDefinedParts,
    threads: Option<NonZeroUsize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut border = Border::new(py, &classes, progress)?;
    let threads = user_defined.threads(threads);
    let (raised, objectives) = (border.raised.clone(), border.objectives.clone());
    let mut source = PythonSource { parts: parts.try_iter()?.unbind(), raised: raised.clone(), objectives };
    let class_count = classes.len().max(1);
    let outcome = py.detach(|| {
        let scenario: Scenario = parse(scenario)?;
        let survey = Survey { arrivals, raised };
        let (measured, outline) = survey.outline(&scenario, class_count)?;
        let options = scenario.options(measured.clone(), threads)?;
        let cluster = border.cluster(&scenario, &classes, &[], &[], user_defined)?;
        let (raised, objectives) = (border.raised.clone(), border.objectives.clone());
        let mut sink = PythonSink { take, measured, threads, raised, objectives };
        let results = simulate(&outline, &mut source, &mut sink, cluster, &options, &mut border.poller)?;
        Ok((options, results))
    });
    let (options, results) = outcome.map_err(|error| border.raised.explain(error))?;
    tables(py, &results, &options)
}

/// Parts of a workload from a Python iterator.
struct PythonSource {
    parts: Py<PyIterator>,
    raised: Raised,
    objectives: Arc<Objectives>,
}

impl WorkloadSource for PythonSource {
    fn next(&mut self) -> Result<Option<Columns>> {
        let next = Python::attach(|py| self.parts.bind(py).clone().next().map(|part| self.columns(&part?)).transpose());
        next.map_err(|raised| self.raised.keep(raised))
    }
}

impl PythonSource {
    fn columns(&self, part: &Bound<PyAny>) -> PyResult<Columns> {
        columns(part.cast::<PyDict>()?, &self.objectives)
    }
}

/// Converts a part to rows; stores the objectives that schedulers may see.
pub(crate) fn columns(part: &Bound<PyDict>, objectives: &Objectives) -> PyResult<Columns> {
    let numbers = |name| -> PyResult<Vec<f64>> { Ok(optional(name, &column(part, name)?)?.to_vec()) };
    let codes = |name| -> PyResult<Vec<u32>> { Ok(optional(name, &column(part, name)?)?.to_vec()) };
    let tokens = |name| -> PyResult<Vec<i32>> { Ok(optional(name, &column(part, name)?)?.to_vec()) };
    let columns = Columns {
        arrival_s: numbers("arrival_s")?,
        prompt_tokens: tokens("prompt_tokens")?,
        output_tokens: tokens("output_tokens")?,
        class: codes("class")?,
        priority: optional("priority", &column(part, "priority")?)?.to_vec(),
        max_output_tokens: tokens("max_output_tokens")?,
        patience_s: numbers("patience_s")?,
        cancel_s: numbers("cancel_s")?,
        itl_slo_s: numbers("itl_slo_s")?,
        queue_key: numbers("queue_key")?,
        session: codes("session")?,
        accepted_start: optional("accepted_start", &column(part, "accepted_start")?)?.to_vec(),
        accepted_drafts: optional("accepted_drafts", &column(part, "accepted_drafts")?)?.to_vec(),
        proposal_rate: numbers("proposal_rate")?,
        content_after: codes("content_after")?,
        content_continued: codes("content_continued")?,
        content_start: optional("content_start", &column(part, "content_start")?)?.to_vec(),
        content_id: optional("content_id", &column(part, "content_id")?)?.to_vec(),
        content_tokens: codes("content_tokens")?,
    };
    objectives.append(columns.arrival_s.len(), &numbers("ttft_slo_s")?, &columns.itl_slo_s);
    Ok(columns)
}

/// A Python function that receives the rows of finished requests.
pub(crate) struct PythonSink {
    pub(crate) take: Py<PyAny>,
    pub(crate) measured: Range<u32>,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) raised: Raised,
    pub(crate) objectives: Arc<Objectives>,
}

impl Sink for PythonSink {
    fn take(&mut self, rows: Rows) -> Result<()> {
        let Rows { first, requests, arrival_s, class, prompt_tokens, output_tokens } = rows;
        self.objectives.forget(first as usize + requests.len());
        let result = Python::attach(|py| {
            let workload_columns = WorkloadColumns {
                arrival_s: PyArray1::from_vec(py, arrival_s).unbind(),
                prompt_tokens: PyArray1::from_vec(py, prompt_tokens).unbind(),
                output_tokens: PyArray1::from_vec(py, output_tokens).unbind(),
                class: Some(PyArray1::from_vec(py, class).unbind()),
            };
            let rows = PyRequestRows::new(requests, workload_columns, first, self.measured.clone(), self.threads);
            self.take.call1(py, (Bound::new(py, rows)?,)).map(drop)
        });
        result.map_err(|raised| self.raised.keep(raised))
    }
}

/// A pass over all arrivals before a run: the measured range and the duration depend on the last arrival.
struct Survey {
    /// A function that returns a new iterator over columns of arrivals in seconds.
    arrivals: Py<PyAny>,
    raised: Raised,
}

impl Survey {
    fn outline(&self, scenario: &Scenario, class_count: usize) -> Result<(Range<u32>, Outline)> {
        let horizon = scenario.horizon()?;
        let begin = match scenario.warmup {
            Cut::Requests(_) => Instant::ZERO,
            Cut::Seconds(seconds) => Instant(attoseconds(seconds, "warmup")?),
        };
        let (mut rows, mut early, mut arriving) = (0, 0, 0);
        let (mut last, mut last_arrival) = (Instant::ZERO, Instant::ZERO);
        self.for_each_arrival(|at| {
            rows += 1;
            last = at;
            early += u64::from(at < begin);
            if horizon.is_none_or(|horizon| at <= horizon) {
                arriving += 1;
                last_arrival = at;
            }
        })?;
        let first = match scenario.warmup {
            Cut::Requests(count) => count.min(rows),
            Cut::Seconds(_) => early,
        };
        let end = match scenario.cooldown {
            Cut::Requests(count) => rows.saturating_sub(count),
            Cut::Seconds(seconds) => {
                let cut = attoseconds(seconds, "cooldown")?;
                let mut count = 0;
                self.for_each_arrival(|at| count += u64::from(at.0 + cut <= last.0))?;
                count
            }
        };
        Ok((first as u32..end.max(first) as u32, Outline { class_count, arriving, last_arrival }))
    }

    /// Calls `see` for each arrival. An invalid arrival counts as 0; the run reports the error.
    fn for_each_arrival(&self, mut see: impl FnMut(Instant)) -> Result<()> {
        let mut visit = || -> PyResult<()> {
            let arrivals: Py<PyIterator> =
                Python::attach(|py| self.arrivals.bind(py).call0()?.try_iter().map(Bound::unbind))?;
            loop {
                let column = Python::attach(|py| -> PyResult<Option<Vec<f64>>> {
                    let next = arrivals.bind(py).clone().next().transpose()?;
                    next.map(|column| Ok(column.extract::<PyReadonlyArray1<f64>>()?.as_slice()?.to_vec())).transpose()
                })?;
                let Some(column) = column else { return Ok(()) };
                column.iter().for_each(|&s| see(Instant::from_nanoseconds(arrival_nanoseconds(s).unwrap_or(0))));
            }
        };
        visit().map_err(|raised| self.raised.keep(raised))
    }
}
