//! One run of gate and route with exponential services: a scenario and columns in, columns out.

use inferq_core::clock::{Instant, Span, attoseconds};
use inferq_core::engine::parse;
use inferq_core::error::{Error, Result};
use inferq_core::gate_and_route::GateAndRoute;
use inferq_core::gate_and_route::exponential::{
    ExponentialColumns, ExponentialOptions, ExponentialResults, STAGES, StageSample, simulate,
};
use inferq_core::workload::Workload;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::border::{Poller, Raised};
use crate::run::{Cut, read_columns};
use crate::tables::{keep, put};

/// Options of `simulate_exponential` besides the workload.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ExponentialScenario {
    gate_and_route: GateAndRoute,
    seed: u64,
    horizon_s: Option<f64>,
    /// Start of the measurement of requests, averages and revenue.
    warmup: Cut,
    timeline_s: Option<f64>,
}

impl ExponentialScenario {
    fn options(&self, workload: &Workload) -> Result<ExponentialOptions> {
        let instant = |seconds: f64, name: &str| attoseconds(seconds, name).map(Instant);
        let warmup = match self.warmup {
            Cut::Seconds(seconds) => instant(seconds, "warmup")?,
            Cut::Requests(0) => Instant::ZERO,
            Cut::Requests(count) if (count as usize) < workload.len() => workload.arrival_at(count as usize),
            Cut::Requests(count) => {
                let message = format!("excludes {count} of {} requests: no request is left to measure", workload.len());
                return Err(Error::config("warmup", message));
            }
        };
        let horizon = self.horizon_s.map(|seconds| instant(seconds, "horizon_s")).transpose()?;
        if warmup > Instant::ZERO && horizon.is_some_and(|horizon| horizon <= warmup) {
            let message = format!("must end before the run does, got {} s", warmup.seconds());
            return Err(Error::config("warmup", message));
        }
        let timeline = self.timeline_s.map(|seconds| attoseconds(seconds, "timeline_s").map(Span)).transpose()?;
        Ok(ExponentialOptions { seed: self.seed, horizon, warmup, timeline })
    }
}

/// Runs a scenario over the columns of a workload. Shapes and units are in the stub.
#[pyfunction]
pub(crate) fn simulate_exponential<'py>(
    py: Python<'py>,
    scenario: &str,
    columns: &Bound<'py, PyDict>,
    classes: Vec<String>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    read_columns! { columns: arrival_s, prompt_tokens, output_tokens, class }
    let workload = Workload {
        arrival_s,
        prompt_tokens,
        output_tokens,
        class,
        class_count: classes.len().max(1),
        ..Workload::default()
    };
    let raised = Raised::default();
    let mut poller = Poller::new(progress, raised.clone());
    let outcome = py.detach(|| {
        workload.check()?;
        let scenario: ExponentialScenario = parse(scenario)?;
        let options = scenario.options(&workload)?;
        let within = |error: Error| error.within("gate_and_route");
        let setup = scenario.gate_and_route.build(&classes).map_err(within)?;
        let results = simulate(&workload, &setup, &options, &mut poller).map_err(within)?;
        Ok((setup.cluster.replicas, results))
    });
    let (replicas, results) = outcome.map_err(|error| raised.explain(error))?;
    tables(py, results, &workload, replicas)
}

/// Returns the results as columns.
fn tables<'py>(
    py: Python<'py>,
    mut results: ExponentialResults,
    workload: &Workload,
    replicas: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let window = results.end.0.saturating_sub(results.warmup.0);
    let requests = std::mem::take(&mut results.requests);
    dict.set_item("requests", request_columns(py, requests, workload, results.warmup)?)?;
    dict.set_item("timeline", timeline_columns(py, &results.samples)?)?;
    dict.set_item("revenue", revenue_columns(py, &results, replicas)?)?;
    dict.set_item("occupancy", occupancy_columns(py, &results, window, replicas)?)?;
    let numbers = PyDict::new(py);
    numbers.set_item("end_s", results.end.seconds())?;
    numbers.set_item("events", results.events)?;
    numbers.set_item("abandoned_prefills", results.by_status[2] - results.abandoned_decodes)?;
    numbers.set_item("abandoned_decodes", results.abandoned_decodes)?;
    numbers.set_item("measured_as", window)?;
    numbers.set_item("in_system_as", results.in_system)?;
    numbers.set_item("sojourn_as", results.sojourn)?;
    dict.set_item("totals", numbers)?;
    Ok(dict)
}

fn request_columns<'py>(
    py: Python<'py>,
    columns: ExponentialColumns,
    workload: &Workload,
    warmup: Instant,
) -> PyResult<Bound<'py, PyDict>> {
    let rows = columns.status.len();
    let (prompt, output) = (&workload.prompt_tokens[..rows], &workload.output_tokens[..rows]);
    let dict = PyDict::new(py);
    put(&dict, "id", (0..rows as u32).collect())?;
    let class = if workload.class.is_empty() { vec![0; rows] } else { workload.class[..rows].to_vec() };
    put(&dict, "class", class)?;
    put(&dict, "measured", (0..rows).map(|row| workload.arrival_at(row) >= warmup).collect())?;
    let per_token = |row: usize| {
        let decode_s = columns.finish_s[row] - columns.first_token_s[row];
        if output[row] > 1 { decode_s / f64::from(output[row] - 1) } else { f64::NAN }
    };
    put(&dict, "tpot_s", (0..rows).map(per_token).collect())?;
    for (name, column) in columns.into_columns() {
        keep(&dict, name, column)?;
    }
    put(&dict, "prompt_tokens", prompt.to_vec())?;
    put(&dict, "output_tokens", output.to_vec())?;
    Ok(dict)
}

/// Stage names in the order of the core.
const STAGE_NAMES: [&str; STAGES] = ["prefill_queue", "prefill", "decode_queue", "mixed", "solo"];

/// One row per class and sample, except the last sample, which is the end of the run.
fn timeline_columns<'py>(py: Python<'py>, samples: &[StageSample]) -> PyResult<Bound<'py, PyDict>> {
    let samples = &samples[..samples.len().saturating_sub(1)];
    let rows =
        || samples.iter().flat_map(|sample| (0..).zip(&sample.numbers).map(move |(class, row)| (sample, class, row)));
    let dict = PyDict::new(py);
    put(&dict, "time_s", rows().map(|(sample, ..)| sample.at.seconds()).collect())?;
    put(&dict, "class", rows().map(|(_, class, _)| class).collect::<Vec<u32>>())?;
    for (stage, name) in STAGE_NAMES.into_iter().enumerate() {
        put(&dict, name, rows().map(|(.., row)| row[stage] as i64).collect())?;
    }
    Ok(dict)
}

fn revenue_columns<'py>(py: Python<'py>, results: &ExponentialResults, replicas: u32) -> PyResult<Bound<'py, PyDict>> {
    let counted: Vec<&StageSample> = results.samples.iter().filter(|sample| sample.at > results.warmup).collect();
    let dict = PyDict::new(py);
    put(&dict, "time_s", counted.iter().map(|sample| sample.at.seconds()).collect())?;
    let (bundled_before, separate_before) = results.revenue_before;
    let bundled = |sample: &StageSample| sample.bundled - bundled_before;
    let separate = |sample: &StageSample| sample.separate - separate_before;
    // Money has 18 decimal places, as time does, so the rounding is the same.
    let money = |units: u128| Span(units).seconds();
    put(&dict, "bundled", counted.iter().map(|sample| money(bundled(sample))).collect())?;
    put(&dict, "separate", counted.iter().map(|sample| money(separate(sample))).collect())?;
    let rate = |units: u128, sample: &StageSample| {
        money(units) / (f64::from(replicas) * sample.at.since(results.warmup).seconds())
    };
    put(&dict, "bundled_per_replica_s", counted.iter().map(|sample| rate(bundled(sample), sample)).collect())?;
    put(&dict, "separate_per_replica_s", counted.iter().map(|sample| rate(separate(sample), sample)).collect())?;
    Ok(dict)
}

/// Time averages per replica; NaN if no time was measured.
fn occupancy_columns<'py>(
    py: Python<'py>,
    results: &ExponentialResults,
    window: u128,
    replicas: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    put(&dict, "class", (0..results.areas.len() as u32).collect())?;
    for (stage, name) in STAGE_NAMES.into_iter().enumerate() {
        let average = |area: u128| area as f64 / (window as f64 * f64::from(replicas));
        put(&dict, name, results.areas.iter().map(|stages| average(stages[stage])).collect())?;
    }
    Ok(dict)
}
