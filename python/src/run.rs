//! One simulation: a scenario and columns in, columns out.

use inferq_core::clock::{Instant, Span, attoseconds};
use inferq_core::cluster::{Cluster, HandsTo, LinkDescription, Pool};
use inferq_core::control::GateAndRoute;
use inferq_core::engine::{Class, Engine, EngineParts, parse};
use inferq_core::error::{Error, Result};
use inferq_core::results::{BatchRow, IterationRow, RequestColumns, Sample, Status, rate};
use inferq_core::router::{Router, RouterKind};
use inferq_core::simulation::{Options, Timeline, simulate_cluster};
use inferq_core::work::{Load, Work};
use inferq_core::workload::{Flow, Workload};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use crate::border::{Bell, Raised};
use crate::policy::{Policy, WrittenEngine};
use crate::router::PythonRouter;
use crate::view::Objectives;

/// What `simulate` is asked besides the workload.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    pools: Vec<PoolDescription>,
    /// Who keeps the requests before the only pool, if somebody does.
    gate_and_route: Option<GateAndRoute>,
    /// Routers draw from it; the workload was drawn before.
    seed: u64,
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
pub(crate) enum Cut {
    Requests(u64),
    Seconds(f64),
}

impl Scenario {
    fn options(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> Result<Options> {
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
            threads,
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

pub(crate) fn optional<'a, T: numpy::Element>(name: &str, array: &'a Option<PyReadonlyArray1<T>>) -> PyResult<&'a [T]> {
    array.as_ref().map_or(Ok(&[][..]), |array| slice(name, array))
}

/// A column of the workload, by its name.
pub(crate) fn column<'py, T: numpy::Element>(
    columns: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<Option<PyReadonlyArray1<'py, T>>> {
    columns.get_item(name)?.map(|array| array.extract()).transpose()
}

/// Objects that are written in Python: schedulers by pool and engine, one for each replica, and routers by pool.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Written {
    schedulers: Vec<(usize, usize, Vec<Py<PyAny>>)>,
    routers: Vec<(usize, Py<PyAny>)>,
}

/// A pool of the cluster as its description says it. An engine is read when it is known who wrote its scheduler.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolDescription {
    engines: Vec<serde_json::Value>,
    /// What an error in each of them is found under.
    paths: Vec<String>,
    counts: Vec<usize>,
    router: Option<serde_json::Value>,
    hands_to: Option<HandsToDescription>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HandsToDescription {
    pool: usize,
    link: LinkDescription,
}

/// Builds the replicas of a cluster.
struct Builder<'a> {
    classes: &'a [String],
    workload: &'a Workload<'a>,
    seed: u64,
    written: Written,
    policy: &'a dyn Fn(Py<PyAny>) -> Policy,
    router: &'a dyn Fn(Py<PyAny>) -> Box<dyn Router>,
}

impl Builder<'_> {
    fn cluster(&mut self, descriptions: &[PoolDescription]) -> Result<Cluster> {
        let classes = self.classes_of(descriptions);
        let pools = descriptions.iter().zip(&classes).enumerate();
        let pools = pools.map(|(place, (description, classes))| self.pool(place, description, classes));
        Ok(Cluster::of_pools(pools.collect::<Result<_>>()?))
    }

    /// The classes of the workload as each pool knows them: which of them come there?
    fn classes_of(&self, descriptions: &[PoolDescription]) -> Vec<Vec<Class>> {
        let class = |name: &String| Class { name: name.clone(), comes: self.workload.pool.is_empty() };
        let mut classes = vec![self.classes.iter().map(class).collect::<Vec<Class>>(); descriptions.len()];
        for (&pool, &class) in self.workload.pool.iter().zip(self.workload.class) {
            if let Some(class) = classes.get_mut(pool as usize).and_then(|pool| pool.get_mut(class as usize)) {
                class.comes = true;
            }
        }
        for (place, description) in descriptions.iter().enumerate() {
            if let Some(to) = description.hands_to.as_ref().filter(|to| to.pool < classes.len()) {
                for class in 0..self.classes.len() {
                    classes[to.pool][class].comes |= classes[place][class].comes;
                }
            }
        }
        classes
    }

    fn pool(&mut self, place: usize, description: &PoolDescription, classes: &[Class]) -> Result<Pool> {
        let mut engines = Vec::new();
        for (which, (engine, &count)) in description.engines.iter().zip(&description.counts).enumerate() {
            let path = description.paths.get(which).map_or("", String::as_str);
            let path = if path.is_empty() { "engine" } else { path };
            let built = self.engines((place, which), engine, count, classes).map_err(|error| error.within(path))?;
            engines.extend(built);
        }
        let object = self.written.routers.iter().position(|router| router.0 == place);
        let router = match (object, &description.router) {
            (Some(object), _) => Some((self.router)(self.written.routers.swap_remove(object).1)),
            (None, Some(router)) => Some(parse::<RouterKind>(&router.to_string())?.build(self.seed, place as u64)),
            (None, None) => None,
        };
        let hands_to = match &description.hands_to {
            Some(to) => Some(HandsTo { pool: to.pool, link: to.link.build().map_err(|error| error.within("link"))? }),
            None => None,
        };
        Ok(Pool { engines, router, hands_to })
    }

    fn engines(
        &mut self,
        (pool, which): (usize, usize),
        description: &serde_json::Value,
        count: usize,
        classes: &[Class],
    ) -> Result<Vec<EngineParts>> {
        let text = description.to_string();
        let schedulers = &mut self.written.schedulers;
        let Some(place) = schedulers.iter().position(|written| (written.0, written.1) == (pool, which)) else {
            let engine: Engine = parse(&text)?;
            return (0..count).map(|_| engine.build(Some(classes))).collect();
        };
        let objects = schedulers.swap_remove(place).2;
        if objects.len() != count {
            return Err(Error::config("scheduler", format!("{} objects for {count} replicas", objects.len())));
        }
        let engine: WrittenEngine = parse(&text)?;
        objects.into_iter().map(|object| engine.build((self.policy)(object))).collect()
    }
}

/// Runs a scenario over the columns of a workload; see the stub for shapes and units.
#[pyfunction]
#[pyo3(signature = (scenario, columns, classes, written, threads, progress))]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    scenario: &str,
    columns: &Bound<'py, PyDict>,
    classes: Vec<String>,
    written: Written,
    threads: Option<NonZeroUsize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (arrival_s, prompt_tokens, output_tokens) =
        (column(columns, "arrival_s")?, column(columns, "prompt_tokens")?, column(columns, "output_tokens")?);
    let (class, priority) = (column(columns, "class")?, column(columns, "priority")?);
    let (patience_s, ttft_slo_s, tbt_slo_s) =
        (column(columns, "patience_s")?, column(columns, "ttft_slo_s")?, column(columns, "tbt_slo_s")?);
    let (queue_key, session, pool) =
        (column(columns, "queue_key")?, column(columns, "session")?, column(columns, "pool")?);
    let (parents, children_start, children, delay_s) = (
        column(columns, "parents")?,
        column(columns, "children_start")?,
        column(columns, "children")?,
        column(columns, "delay_s")?,
    );
    let workload = Workload {
        arrival_s: optional("arrival_s", &arrival_s)?,
        prompt_tokens: optional("prompt_tokens", &prompt_tokens)?,
        output_tokens: optional("output_tokens", &output_tokens)?,
        class: optional("class", &class)?,
        class_count: classes.len().max(1),
        priority: optional("priority", &priority)?,
        patience_s: optional("patience_s", &patience_s)?,
        tbt_slo_s: optional("tbt_slo_s", &tbt_slo_s)?,
        queue_key: optional("queue_key", &queue_key)?,
        session: optional("session", &session)?,
        pool: optional("pool", &pool)?,
        flow: Flow {
            parents: optional("parents", &parents)?,
            children_start: optional("children_start", &children_start)?,
            children: optional("children", &children)?,
            delay_s: optional("delay_s", &delay_s)?,
        },
    };
    let raised = Raised::default();
    let names = PyTuple::new(py, &classes)?.unbind();
    let objectives = Arc::new(Objectives {
        ttft_s: optional("ttft_slo_s", &ttft_slo_s)?.to_vec(),
        tbt_s: workload.tbt_slo_s.to_vec(),
    });
    let policy = |object| Policy {
        object,
        classes: Python::attach(|py| names.clone_ref(py)),
        objectives: objectives.clone(),
        raised: raised.clone(),
    };
    let router = |object| -> Box<dyn Router> {
        Box::new(PythonRouter::new(object, Python::attach(|py| names.clone_ref(py)), raised.clone()))
    };
    let mut bell = Bell::new(progress, raised.clone());
    // Schedulers written in Python take turns anyway, and an exception then is always the same one.
    let threads = if written.schedulers.is_empty() { threads } else { NonZeroUsize::new(1) };
    let outcome = py.detach(|| {
        let scenario: Scenario = parse(scenario)?;
        let options = scenario.options(&workload, threads)?;
        let mut builder = Builder {
            classes: &classes,
            workload: &workload,
            seed: scenario.seed,
            written,
            policy: &policy,
            router: &router,
        };
        let mut cluster = builder.cluster(&scenario.pools)?;
        if let Some(description) = &scenario.gate_and_route {
            let setup = description.build(&classes).map_err(|error| error.within("gate_and_route"))?;
            let control = setup.control(&workload, scenario.seed)?;
            cluster.control = Some((control, setup.patience(scenario.seed)));
        }
        let results = simulate_cluster(&workload, cluster, &options, &mut bell)?;
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
    dict.set_item("measured", (options.measured.start, options.measured.end))?;
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
pub(crate) fn put<T: numpy::Element>(dict: &Bound<'_, PyDict>, name: &str, column: Vec<T>) -> PyResult<()> {
    dict.set_item(name, PyArray1::from_vec(dict.py(), column))
}

/// The same, of some rows.
fn keep<T: numpy::Element + Copy>(
    dict: &Bound<'_, PyDict>,
    name: &str,
    column: Vec<T>,
    rows: Option<&[u32]>,
) -> PyResult<()> {
    match rows {
        None => put(dict, name, column),
        Some(rows) => put(dict, name, rows.iter().map(|&row| column[row as usize]).collect()),
    }
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

/// The rows that arrived, or `None` where all did.
fn arrived(columns: &RequestColumns, workload: &Workload) -> Option<Vec<u32>> {
    if workload.flow.is_empty() {
        return None;
    }
    let status = columns.status.iter().zip(0_u32..);
    Some(status.filter(|&(&status, _)| status != Status::Awaited as u8).map(|(_, row)| row).collect())
}

fn request_columns<'py>(
    py: Python<'py>,
    columns: RequestColumns,
    workload: &Workload,
    measured: &Range<u32>,
) -> PyResult<Bound<'py, PyDict>> {
    let rows = columns.status.len();
    let here = arrived(&columns, workload);
    let dict = PyDict::new(py);
    let ids = here.clone().unwrap_or_else(|| (0..rows as u32).collect());
    let is_measured = ids.iter().map(|id| measured.contains(id)).collect();
    put(&dict, "id", ids)?;
    let here = here.as_deref();
    let class = if workload.class.is_empty() { vec![0; rows] } else { workload.class[..rows].to_vec() };
    keep(&dict, "class", class, here)?;
    keep(&dict, "replica", columns.replica, here)?;
    keep(&dict, "status", columns.status, here)?;
    put(&dict, "measured", is_measured)?;
    keep(&dict, "arrival_s", columns.arrival_s, here)?;
    keep(&dict, "admitted_s", columns.admitted_s, here)?;
    keep(&dict, "first_token_s", columns.first_token_s, here)?;
    keep(&dict, "finish_s", columns.finish_s, here)?;
    keep(&dict, "left_s", columns.left_s, here)?;
    keep(&dict, "queue_s", columns.queue_s, here)?;
    keep(&dict, "ttft_s", columns.ttft_s, here)?;
    keep(&dict, "tpot_s", columns.tpot_s, here)?;
    keep(&dict, "max_tbt_s", columns.max_tbt_s, here)?;
    keep(&dict, "e2e_s", columns.e2e_s, here)?;
    keep(&dict, "prompt_tokens", workload.prompt_tokens[..rows].to_vec(), here)?;
    keep(&dict, "output_tokens", workload.output_tokens[..rows].to_vec(), here)?;
    keep(&dict, "preemptions", columns.preemptions, here)?;
    keep(&dict, "cached_tokens", columns.cached_tokens, here)?;
    if let Some(elapsed_s) = columns.elapsed_s {
        keep(&dict, "elapsed_s", elapsed_s, here)?;
    }
    if let Some(hand_off) = columns.hand_off {
        keep(&dict, "prefill_replica", hand_off.prefill_replica, here)?;
        keep(&dict, "prefilled_s", hand_off.prefilled_s, here)?;
        keep(&dict, "handoff_s", hand_off.handoff_s, here)?;
    }
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
    // All replicas are sampled together: the sample before is as many rows up as there are replicas.
    let replicas = samples.iter().take_while(|sample| sample.at == samples[0].at).count();
    for (row, sample) in samples.iter().enumerate() {
        let before = row.checked_sub(replicas).map(|row| samples[row]);
        let (at, prefilled, emitted) =
            before.map_or((Instant::ZERO, 0, 0), |before| (before.at, before.prefilled_tokens, before.emitted_tokens));
        let span = sample.at.since(at);
        prefill.push(rate(sample.prefilled_tokens - prefilled, span));
        output.push(rate(sample.emitted_tokens - emitted, span));
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
