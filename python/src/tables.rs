//! Results as Python columns. The memory of each column is passed to numpy without a copy. Counts are signed, so that
//! differences and numpy functions work; ids and replica numbers are unsigned.

use inferq_core::clock::{Instant, Span};
use inferq_core::finding::{Finding, Value};
use inferq_core::results::{
    BatchRow, BlockOperations, Column, FleetEvent, Histogram, IterationRow, Load, Results, Sample, Work, rate,
};
use inferq_core::simulation::Options;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Returns all tables except the one of requests.
pub(crate) fn tables<'py>(py: Python<'py>, results: &Results, options: &Options) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("itl", itl_columns(py, &results.itl)?)?;
    dict.set_item("itl_totals", itl_totals(py, &results.itl)?)?;
    dict.set_item("timeline", timeline_columns(py, &results.timeline)?)?;
    let keeps = options.iterations || options.batches;
    dict.set_item("iterations", keeps.then(|| iteration_columns(py, &results.iterations)).transpose()?)?;
    dict.set_item("batches", options.batches.then(|| batch_columns(py, results)).transpose()?)?;
    dict.set_item("work", work_columns(py, &results.work)?)?;
    dict.set_item("block_operations", block_operations(py, &results.block_operations)?)?;
    if !results.fleet_events.is_empty() {
        dict.set_item("fleet_events", fleet_events(py, &results.fleet_events)?)?;
    }
    dict.set_item("measured", (options.measured.start, options.measured.end))?;
    dict.set_item("drained", PyArray1::from_slice(py, &results.drained))?;
    dict.set_item("findings", findings(py, &results.findings)?)?;
    let totals = results.totals;
    let numbers = PyDict::new(py);
    numbers.set_item("end_s", totals.end.seconds())?;
    numbers.set_item("iterations", totals.iterations)?;
    numbers.set_item("stretches", totals.stretches)?;
    numbers.set_item("stretched_iterations", totals.stretched_iterations)?;
    numbers.set_item("in_system_as", totals.in_system)?;
    numbers.set_item("sojourn_as", totals.sojourn)?;
    if !results.fleet_events.is_empty() {
        numbers.set_item("replica_time_as", totals.replica_time)?;
    }
    dict.set_item("totals", numbers)?;
    Ok(dict)
}

/// Converts findings to dictionaries with kind, message and data.
fn findings<'py>(py: Python<'py>, findings: &[Finding]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for Finding { kind, message, data } in findings {
        let parts = PyDict::new(py);
        for (name, value) in data {
            match value {
                Value::Count(count) => parts.set_item(name, count)?,
                Value::Text(text) => parts.set_item(name, text)?,
            }
        }
        let dict = PyDict::new(py);
        dict.set_item("kind", kind.name())?;
        dict.set_item("message", message.as_ref())?;
        dict.set_item("data", parts)?;
        list.append(dict)?;
    }
    Ok(list)
}

/// Passes the memory of a column to numpy.
pub(crate) fn put<T: numpy::Element>(dict: &Bound<'_, PyDict>, name: &str, column: Vec<T>) -> PyResult<()> {
    dict.set_item(name, PyArray1::from_vec(dict.py(), column))
}

/// The same for a column of any type.
pub(crate) fn keep(dict: &Bound<'_, PyDict>, name: &str, column: Column) -> PyResult<()> {
    match column {
        Column::U8(column) => put(dict, name, column),
        Column::U32(column) => put(dict, name, column),
        Column::I32(column) => put(dict, name, column),
        Column::I64(column) => put(dict, name, column),
        Column::F64(column) => put(dict, name, column),
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

fn itl_columns<'py>(py: Python<'py>, itl: &[Histogram]) -> PyResult<Bound<'py, PyDict>> {
    let bins: Vec<(u32, Span, Span, u64)> = itl
        .iter()
        .enumerate()
        .flat_map(|(class, histogram)| {
            histogram.bins_at_limits().into_iter().map(move |(low, high, n)| (class as u32, low, high, n))
        })
        .collect();
    let dict = PyDict::new(py);
    collect(&dict, "class", &bins, |bin| bin.0)?;
    collect(&dict, "lower_s", &bins, |bin| bin.1.seconds())?;
    // Tokens emitted at one instant have gap 0, and their bin contains nothing else.
    let is_zero = |bin: &(u32, Span, Span, u64)| bin.2 <= Span(1);
    collect(&dict, "upper_s", &bins, |bin| if is_zero(bin) { 0.0 } else { bin.2.seconds() })?;
    collect(&dict, "count", &bins, |bin| bin.3 as i64)?;
    Ok(dict)
}

fn block_operations<'py>(py: Python<'py>, caches: &[BlockOperations]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    collect(&dict, "replica", caches, |cache| cache.replica)?;
    collect(&dict, "hit_blocks", caches, |cache| cache.hit as i64)?;
    collect(&dict, "cached_blocks", caches, |cache| cache.inserted as i64)?;
    collect(&dict, "evicted_blocks", caches, |cache| cache.evicted as i64)?;
    Ok(dict)
}

fn fleet_events<'py>(py: Python<'py>, events: &[FleetEvent]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    collect(&dict, "at_s", events, |event| event.at.seconds())?;
    collect(&dict, "replica", events, |event| event.replica)?;
    collect(&dict, "event", events, |event| event.change as u8)?;
    collect(&dict, "open", events, |event| event.open as i32)?;
    collect(&dict, "starting", events, |event| event.starting as i32)?;
    collect(&dict, "draining", events, |event| event.draining as i32)?;
    Ok(dict)
}

fn itl_totals<'py>(py: Python<'py>, itl: &[Histogram]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for histogram in itl {
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
    let mut cached = Vec::with_capacity(samples.len());
    // All replicas are sampled together, so the previous sample of a replica is `replicas` rows earlier.
    let replicas = samples.iter().take_while(|sample| sample.at == samples[0].at).count();
    for (row, sample) in samples.iter().enumerate() {
        let before = row.checked_sub(replicas).map(|row| samples[row]);
        let span = sample.at.since(before.map_or(Instant::ZERO, |before| before.at));
        let since = |total: fn(&Sample) -> u64| rate(total(sample) - before.as_ref().map_or(0, total), span);
        prefill.push(since(|sample| sample.prefilled_tokens));
        output.push(since(|sample| sample.emitted_tokens));
        cached.push(since(|sample| sample.cached_tokens));
    }
    let dict = PyDict::new(py);
    collect(&dict, "time_s", samples, |sample| sample.at.seconds())?;
    collect(&dict, "replica", samples, |sample| sample.replica)?;
    collect(&dict, "waiting", samples, |sample| sample.waiting as i32)?;
    collect(&dict, "running", samples, |sample| sample.running as i32)?;
    collect(&dict, "kv_used_tokens", samples, |sample| sample.kv_used_tokens as i64)?;
    collect(&dict, "tokens_in_system", samples, |sample| sample.tokens_in_system as i64)?;
    put(&dict, "prefill_tokens_per_s", prefill)?;
    put(&dict, "output_tokens_per_s", output)?;
    put(&dict, "cached_tokens_per_s", cached)?;
    Ok(dict)
}

fn iteration_columns<'py>(py: Python<'py>, rows: &[IterationRow]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    collect(&dict, "start_s", rows, |row| row.start.seconds())?;
    collect(&dict, "replica", rows, |row| row.replica)?;
    collect(&dict, "count", rows, |row| row.count as i64)?;
    collect(&dict, "first_s", rows, |row| row.pace.first.seconds())?;
    collect(&dict, "growth_s", rows, |row| {
        let size = Span(row.pace.growth.unsigned_abs()).seconds();
        if row.pace.growth < 0 { -size } else { size }
    })?;
    collect(&dict, "prefill_tokens", rows, |row| row.prefill_tokens as i64)?;
    collect(&dict, "decodes", rows, |row| row.decodes as i32)?;
    collect(&dict, "context_tokens", rows, |row| row.context_tokens as i64)?;
    collect(&dict, "kv_used_tokens", rows, |row| row.kv_used_tokens as i64)?;
    Ok(dict)
}

fn batch_columns<'py>(py: Python<'py>, results: &Results) -> PyResult<Bound<'py, PyDict>> {
    let (dict, rows): (_, &[BatchRow]) = (PyDict::new(py), &results.batches);
    collect(&dict, "iteration", rows, |row| row.iteration)?;
    collect(&dict, "request", rows, |row| row.request)?;
    collect(&dict, "tokens", rows, |row| row.tokens as i32)?;
    collect(&dict, "emits", rows, |row| row.emits)?;
    if results.requests.keeps_drafts() {
        collect(&dict, "emitted_tokens", rows, |row| row.emitted)?;
    }
    Ok(dict)
}
