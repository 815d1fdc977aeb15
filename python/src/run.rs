//! One simulation: a scenario and columns in, columns out.

use inferq_core::clock::{Instant, Span, attoseconds};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::error::{Error, Result};
use inferq_core::results::{BatchRow, IterationRow, RequestColumns, Sample, rate};
use inferq_core::simulation::{Options, Timeline, simulate as simulate_core};
use inferq_core::work::{Load, Work};
use inferq_core::workload::Workload;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::sync::Arc;

use crate::border::{Bell, Raised};
use crate::policy::{Policy, WrittenEngine};
use crate::view::Objectives;

/// What `simulate` is asked besides the workload.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario<E> {
    engine: E,
    /// Drawing has happened before; the seed is in the scenario because it belongs to it.
    #[serde(rename = "seed")]
    _seed: u64,
    horizon_s: Option<f64>,
    warmup: Cut,
    cooldown: Cut,
    timeline_s: Option<f64>,
    iterations: bool,
    batches: bool,
    stepping: bool,
}

/// What is left out of the measurement at one end of the workload.
#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Cut {
    Requests(u64),
    Seconds(f64),
}

impl<E> Scenario<E> {
    fn options(&self, workload: &Workload) -> Result<Options> {
        let horizon = self.horizon_s.map(|s| attoseconds(s, "horizon_s").map(Instant)).transpose()?;
        let timeline = match self.timeline_s {
            None => Timeline::Automatic,
            Some(0.0) => return Err(Error::config("timeline_s", "0: the time between two samples must be positive")),
            Some(seconds) => Timeline::Every(Span(attoseconds(seconds, "timeline_s")?)),
        };
        Ok(Options {
            horizon,
            measured: self.measured(workload)?,
            timeline,
            iterations: self.iterations,
            batches: self.batches,
            stepping: self.stepping,
        })
    }

    /// The ids that count. Arrivals are sorted, so they are a range.
    fn measured(&self, workload: &Workload) -> Result<Range<u32>> {
        let rows = workload.len();
        let first = match self.warmup {
            Cut::Requests(count) => rows.min(count as usize),
            Cut::Seconds(seconds) => {
                let until = attoseconds(seconds, "warmup")?;
                partition(rows, |row| workload.arrival_at(row).0 < until)
            }
        };
        let end = match self.cooldown {
            Cut::Requests(count) => rows.saturating_sub(count as usize),
            Cut::Seconds(seconds) => {
                let cut = attoseconds(seconds, "cooldown")?;
                let last = if rows > 0 { workload.arrival_at(rows - 1).0 } else { 0 };
                partition(rows, |row| workload.arrival_at(row).0 + cut <= last)
            }
        };
        Ok(first as u32..end.max(first) as u32)
    }
}

/// The first of `rows` rows for which a test that is true up to some row fails.
fn partition(rows: usize, test: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low + (high - low) / 2;
        if test(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

fn slice<'a, T: numpy::Element>(name: &str, array: &'a PyReadonlyArray1<T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| PyValueError::new_err(format!("{name} must be contiguous")))
}

fn optional<'a, T: numpy::Element>(name: &str, array: &'a Option<PyReadonlyArray1<T>>) -> PyResult<&'a [T]> {
    array.as_ref().map_or(Ok(&[][..]), |array| slice(name, array))
}

/// Reads a scenario and builds its engine.
fn prepare<E: DeserializeOwned>(
    scenario: &str,
    workload: &Workload,
    build: impl FnOnce(&E) -> Result<EngineParts>,
) -> Result<(Options, EngineParts)> {
    let scenario: Scenario<E> = parse(scenario)?;
    let options = scenario.options(workload)?;
    Ok((options, build(&scenario.engine).map_err(|error| error.within("engine"))?))
}

/// Runs a scenario over the columns of a workload; see the stub for shapes and units.
#[pyfunction]
#[pyo3(signature = (scenario, arrival_s, prompt_tokens, output_tokens, class_codes, classes, priority, patience_s, ttft_slo_s, tbt_slo_s, queue_key, policy, progress))]
#[expect(clippy::too_many_arguments, reason = "a column each")]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    scenario: &str,
    arrival_s: PyReadonlyArray1<'py, f64>,
    prompt_tokens: PyReadonlyArray1<'py, i32>,
    output_tokens: PyReadonlyArray1<'py, i32>,
    class_codes: Option<PyReadonlyArray1<'py, u32>>,
    classes: Vec<String>,
    priority: Option<PyReadonlyArray1<'py, i64>>,
    patience_s: Option<PyReadonlyArray1<'py, f64>>,
    ttft_slo_s: Option<PyReadonlyArray1<'py, f64>>,
    tbt_slo_s: Option<PyReadonlyArray1<'py, f64>>,
    queue_key: Option<PyReadonlyArray1<'py, f64>>,
    policy: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let workload = Workload {
        arrival_s: slice("arrival_s", &arrival_s)?,
        prompt_tokens: slice("prompt_tokens", &prompt_tokens)?,
        output_tokens: slice("output_tokens", &output_tokens)?,
        class: optional("class_codes", &class_codes)?,
        class_count: classes.len().max(1),
        priority: optional("priority", &priority)?,
        patience_s: optional("patience_s", &patience_s)?,
        tbt_slo_s: optional("tbt_slo_s", &tbt_slo_s)?,
        queue_key: optional("queue_key", &queue_key)?,
        ..Workload::default()
    };
    let raised = Raised::default();
    let policy = match policy {
        None => None,
        Some(object) => Some(Policy {
            object,
            classes: PyTuple::new(py, &classes)?.unbind(),
            objectives: Arc::new(Objectives {
                ttft_s: optional("ttft_slo_s", &ttft_slo_s)?.to_vec(),
                tbt_s: workload.tbt_slo_s.to_vec(),
            }),
            raised: raised.clone(),
        }),
    };
    let mut bell = Bell::new(progress, raised.clone());
    let outcome = py.detach(|| {
        let (options, engine) = match policy {
            None => prepare(scenario, &workload, |engine: &Engine| engine.build(Some(&classes)))?,
            Some(policy) => prepare(scenario, &workload, |engine: &WrittenEngine| engine.build(policy))?,
        };
        let results = simulate_core(&workload, engine, &options, &mut bell)?;
        Ok((options, results))
    });
    let (options, results) = outcome.map_err(|error| raised.explain(error))?;
    let dict = PyDict::new(py);
    dict.set_item("requests", request_columns(py, results.requests, &workload, &options.measured)?)?;
    dict.set_item("tbt", tbt_columns(py, &results.tbt)?)?;
    dict.set_item("tbt_totals", tbt_totals(py, &results.tbt)?)?;
    dict.set_item("timeline", timeline_columns(py, &results.timeline)?)?;
    let keeps = options.iterations || options.batches;
    dict.set_item("iterations", keeps.then(|| iteration_columns(py, &results.iterations)).transpose()?)?;
    dict.set_item("batches", options.batches.then(|| batch_columns(py, &results.batches)).transpose()?)?;
    dict.set_item("work", work_columns(py, &results.work)?)?;
    dict.set_item("drained", PyArray1::from_vec(py, results.drained))?;
    dict.set_item("findings", &results.findings)?;
    let totals = results.totals;
    let numbers = PyDict::new(py);
    numbers.set_item("end_s", totals.end.seconds())?;
    numbers.set_item("iterations", totals.iterations)?;
    numbers.set_item("stretches", totals.stretches)?;
    numbers.set_item("stretched_iterations", totals.stretched_iterations)?;
    numbers.set_item("in_system_as", totals.in_system)?;
    numbers.set_item("sojourn_as", totals.sojourn)?;
    dict.set_item("totals", numbers)?;
    Ok(dict)
}

/// Hands a column's memory over to numpy.
fn put<T: numpy::Element>(dict: &Bound<'_, PyDict>, name: &str, column: Vec<T>) -> PyResult<()> {
    dict.set_item(name, PyArray1::from_vec(dict.py(), column))
}

/// Collects one column from rows.
fn collect<T: numpy::Element, R>(
    dict: &Bound<'_, PyDict>,
    name: &str,
    rows: &[R],
    cell: impl Fn(&R) -> T,
) -> PyResult<()> {
    put(dict, name, rows.iter().map(cell).collect())
}

fn request_columns<'py>(
    py: Python<'py>,
    columns: RequestColumns,
    workload: &Workload,
    measured: &Range<u32>,
) -> PyResult<Bound<'py, PyDict>> {
    let rows = columns.status.len();
    let dict = PyDict::new(py);
    put(&dict, "id", (0..rows as u32).collect())?;
    let class = if workload.class.is_empty() { vec![0; rows] } else { workload.class[..rows].to_vec() };
    put(&dict, "class", class)?;
    put(&dict, "replica", columns.replica)?;
    put(&dict, "status", columns.status)?;
    put(&dict, "measured", (0..rows as u32).map(|id| measured.contains(&id)).collect())?;
    put(&dict, "arrival_s", columns.arrival_s)?;
    put(&dict, "admitted_s", columns.admitted_s)?;
    put(&dict, "first_token_s", columns.first_token_s)?;
    put(&dict, "finish_s", columns.finish_s)?;
    put(&dict, "left_s", columns.left_s)?;
    put(&dict, "queue_s", columns.queue_s)?;
    put(&dict, "ttft_s", columns.ttft_s)?;
    put(&dict, "tpot_s", columns.tpot_s)?;
    put(&dict, "max_tbt_s", columns.max_tbt_s)?;
    put(&dict, "e2e_s", columns.e2e_s)?;
    put(&dict, "prompt_tokens", workload.prompt_tokens[..rows].to_vec())?;
    put(&dict, "output_tokens", workload.output_tokens[..rows].to_vec())?;
    put(&dict, "preemptions", columns.preemptions)?;
    put(&dict, "cached_tokens", columns.cached_tokens)?;
    Ok(dict)
}

fn tbt_columns<'py>(py: Python<'py>, tbt: &[inferq_core::histogram::Histogram]) -> PyResult<Bound<'py, PyDict>> {
    let bins: Vec<(u32, Span, Span, u64)> = tbt
        .iter()
        .enumerate()
        .flat_map(|(class, histogram)| histogram.bins().map(move |(low, high, n)| (class as u32, low, high, n)))
        .collect();
    let dict = PyDict::new(py);
    collect(&dict, "class", &bins, |bin| bin.0)?;
    collect(&dict, "lower_s", &bins, |bin| bin.1.seconds())?;
    collect(&dict, "upper_s", &bins, |bin| bin.2.seconds())?;
    collect(&dict, "count", &bins, |bin| bin.3)?;
    Ok(dict)
}

fn tbt_totals<'py>(py: Python<'py>, tbt: &[inferq_core::histogram::Histogram]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for histogram in tbt {
        let dict = PyDict::new(py);
        dict.set_item("count", histogram.count())?;
        dict.set_item("sum_as", histogram.sum())?;
        let longest = (histogram.count() > 0).then(|| histogram.longest().seconds());
        dict.set_item("max_s", longest)?;
        list.append(dict)?;
    }
    Ok(list)
}

fn work_columns<'py>(py: Python<'py>, work: &Work) -> PyResult<Bound<'py, PyDict>> {
    let rows: Vec<(u64, Load)> = work.loads().collect();
    let dict = PyDict::new(py);
    collect(&dict, "load", &rows, |row| row.0)?;
    collect(&dict, "iterations", &rows, |row| row.1.iterations)?;
    collect(&dict, "broken", &rows, |row| row.1.broken)?;
    collect(&dict, "cap", &rows, |row| row.1.cap)?;
    collect(&dict, "memory", &rows, |row| row.1.memory)?;
    Ok(dict)
}

fn timeline_columns<'py>(py: Python<'py>, samples: &[Sample]) -> PyResult<Bound<'py, PyDict>> {
    let mut prefill = Vec::with_capacity(samples.len());
    let mut output = Vec::with_capacity(samples.len());
    let (mut at, mut prefilled, mut emitted) = (Instant::ZERO, 0, 0);
    for sample in samples {
        let span = sample.at.since(at);
        prefill.push(rate(sample.prefilled_tokens - prefilled, span));
        output.push(rate(sample.emitted_tokens - emitted, span));
        (at, prefilled, emitted) = (sample.at, sample.prefilled_tokens, sample.emitted_tokens);
    }
    let dict = PyDict::new(py);
    collect(&dict, "time_s", samples, |sample| sample.at.seconds())?;
    collect(&dict, "replica", samples, |sample| sample.replica)?;
    collect(&dict, "waiting", samples, |sample| sample.waiting as u32)?;
    collect(&dict, "running", samples, |sample| sample.running as u32)?;
    collect(&dict, "kv_used_tokens", samples, |sample| sample.kv_used_tokens)?;
    put(&dict, "prefill_tokens_per_s", prefill)?;
    put(&dict, "output_tokens_per_s", output)?;
    Ok(dict)
}

fn iteration_columns<'py>(py: Python<'py>, rows: &[IterationRow]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    collect(&dict, "start_s", rows, |row| row.start.seconds())?;
    collect(&dict, "replica", rows, |row| row.replica)?;
    collect(&dict, "count", rows, |row| row.count)?;
    collect(&dict, "first_s", rows, |row| row.pace.first.seconds())?;
    collect(&dict, "growth_s", rows, |row| {
        let size = Span(row.pace.growth.unsigned_abs()).seconds();
        if row.pace.growth < 0 { -size } else { size }
    })?;
    collect(&dict, "prefill_tokens", rows, |row| row.prefill_tokens)?;
    collect(&dict, "decodes", rows, |row| row.decodes as u32)?;
    collect(&dict, "context_tokens", rows, |row| row.context_tokens as u64)?;
    collect(&dict, "kv_used_tokens", rows, |row| row.kv_used_tokens)?;
    Ok(dict)
}

fn batch_columns<'py>(py: Python<'py>, rows: &[BatchRow]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    collect(&dict, "iteration", rows, |row| row.iteration)?;
    collect(&dict, "request", rows, |row| row.request)?;
    collect(&dict, "tokens", rows, |row| row.tokens as u32)?;
    collect(&dict, "emits", rows, |row| row.emits)?;
    Ok(dict)
}
