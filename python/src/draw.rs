//! Draws from distributions: descriptions in, columns out. The GIL is released while drawing.

use crate::border::raise;
use inferq_core::distributions::{self, Arrivals, Client, Duration, Length, Sessions, Side, Synthetic};
use inferq_core::engine::parse;
use inferq_core::error::Error;
use inferq_core::random::{Source, Stream};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns all columns of a synthetic workload: `arrival_s`, and `prompt_tokens` and `output_tokens` if it has
/// lengths.
#[pyfunction]
pub(crate) fn draw<'py>(py: Python<'py>, synthetic: &str, seed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let seed = integer(seed)?;
    let drawn = py.detach(|| parse::<Synthetic>(synthetic)?.draw(seed).map(in_seconds)).map_err(raise)?;
    named(py, drawn)
}

/// A workload that is drawn in parts. All parts together equal the result of `draw`.
#[pyclass(frozen, module = "inferq._core", name = "Drawing")]
pub(crate) struct PyDrawing(Mutex<distributions::Drawing>);

#[pymethods]
impl PyDrawing {
    #[new]
    fn new(synthetic: &str, seed: &Bound<'_, PyAny>) -> PyResult<PyDrawing> {
        let seed = integer(seed)?;
        let drawing =
            parse::<Synthetic>(synthetic).and_then(|parts| distributions::Drawing::new(parts, seed)).map_err(raise)?;
        Ok(PyDrawing(Mutex::new(drawing)))
    }

    /// Returns the arrivals of the next `limit` requests (a multiple of four), or of all remaining ones, in seconds.
    fn arrivals<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let drawn = py.detach(|| self.drawing().arrivals(limit).map(seconds)).map_err(raise)?;
        Ok(PyArray1::from_vec(py, drawn))
    }

    /// Returns all columns of the next `limit` requests (a multiple of four), or of all remaining ones.
    fn columns<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Bound<'py, PyDict>> {
        let drawn = py.detach(|| self.drawing().columns(limit).map(in_seconds)).map_err(raise)?;
        named(py, drawn)
    }
}

impl PyDrawing {
    fn drawing(&self) -> MutexGuard<'_, distributions::Drawing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Arrivals in seconds, prompts and outputs in tokens.
type Drawn = (Vec<f64>, Vec<i32>, Vec<i32>);

fn in_seconds(columns: distributions::DrawnColumns) -> Drawn {
    (seconds(columns.arrival_ns), columns.prompt_tokens, columns.output_tokens)
}

/// Returns the columns of a workload by name.
fn named(py: Python<'_>, (arrival_s, prompt_tokens, output_tokens): Drawn) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("arrival_s", PyArray1::from_vec(py, arrival_s))?;
    if !prompt_tokens.is_empty() {
        columns.set_item("prompt_tokens", PyArray1::from_vec(py, prompt_tokens))?;
        columns.set_item("output_tokens", PyArray1::from_vec(py, output_tokens))?;
    }
    Ok(columns)
}

/// Returns all columns of sessions: `arrival_s` (nominal), `prompt_tokens`, `output_tokens`, `session_id`, `turn`,
/// `think_s`.
#[pyfunction]
pub(crate) fn draw_sessions<'py>(
    py: Python<'py>,
    sessions: &str,
    seed: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let seed = integer(seed)?;
    let drawn = py.detach(|| parse::<Sessions>(sessions)?.draw(seed)).map_err(raise)?;
    let columns = PyDict::new(py);
    columns.set_item("arrival_s", PyArray1::from_vec(py, seconds(drawn.arrival_ns)))?;
    columns.set_item("prompt_tokens", PyArray1::from_vec(py, drawn.prompt_tokens))?;
    columns.set_item("output_tokens", PyArray1::from_vec(py, drawn.output_tokens))?;
    columns.set_item("session_id", PyArray1::from_vec(py, drawn.session))?;
    columns.set_item("turn", PyArray1::from_vec(py, drawn.turn))?;
    columns.set_item("think_s", PyArray1::from_vec(py, seconds(drawn.think_ns)))?;
    Ok(columns)
}

/// Returns all columns of one client, like those of a synthetic workload, but possibly without rows.
#[pyfunction]
pub(crate) fn draw_client<'py>(
    py: Python<'py>,
    client: &str,
    seed: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let seed = integer(seed)?;
    let drawn = py.detach(|| parse::<Client>(client)?.draw(seed)).map_err(raise)?;
    let columns = PyDict::new(py);
    columns.set_item("arrival_s", PyArray1::from_vec(py, seconds(drawn.arrival_ns)))?;
    columns.set_item("prompt_tokens", PyArray1::from_vec(py, drawn.prompt_tokens))?;
    columns.set_item("output_tokens", PyArray1::from_vec(py, drawn.output_tokens))?;
    Ok(columns)
}

/// Returns durations in seconds. `source` is `think` or `patience` (stream 0), or `column`, numbered by `stream`.
#[pyfunction]
pub(crate) fn draw_durations<'py>(
    py: Python<'py>,
    distribution: &str,
    requests: u64,
    seed: &Bound<'py, PyAny>,
    source: &str,
    stream: u64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let seed = integer(seed)?;
    let source = match source {
        "think" => Source::Think,
        "patience" => Source::Patience,
        "column" => Source::Durations,
        _ => return Err(raise(Error::config("source", format!("must be think, patience or column, got {source:?}")))),
    };
    let stream = Stream::numbered(seed, source, stream);
    let drawn = py.detach(|| parse::<Duration>(distribution)?.draw(stream, requests).map(seconds));
    Ok(PyArray1::from_vec(py, drawn.map_err(raise)?))
}

/// Returns the tokens of a further column of a workload, numbered by `stream`.
#[pyfunction]
pub(crate) fn draw_column<'py>(
    py: Python<'py>,
    distribution: &str,
    requests: u64,
    seed: &Bound<'py, PyAny>,
    stream: u64,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let stream = Stream::numbered(integer(seed)?, Source::Lengths, stream);
    let drawn = py.detach(|| parse::<Length>(distribution)?.draw_from(stream, requests));
    Ok(PyArray1::from_vec(py, drawn.map_err(raise)?))
}

/// Returns arrivals in seconds.
#[pyfunction]
pub(crate) fn draw_arrivals<'py>(
    py: Python<'py>,
    arrivals: &str,
    requests: u64,
    seed: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let seed = integer(seed)?;
    let drawn = py.detach(|| parse::<Arrivals>(arrivals)?.draw(requests, seed).map(seconds));
    Ok(PyArray1::from_vec(py, drawn.map_err(|error| raise(error.within("arrivals")))?))
}

/// Returns the tokens of prompts or outputs. Each `source` has its own stream of draws.
#[pyfunction]
pub(crate) fn draw_lengths<'py>(
    py: Python<'py>,
    distribution: &str,
    requests: u64,
    seed: &Bound<'py, PyAny>,
    source: &str,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let side = source.parse::<Side>().map_err(raise)?;
    let seed = integer(seed)?;
    let drawn = py.detach(|| parse::<Length>(distribution)?.draw(requests, seed, side));
    Ok(PyArray1::from_vec(py, drawn.map_err(|error| raise(error.within(side.name())))?))
}

/// Returns row numbers of a table, drawn with replacement.
#[pyfunction]
pub(crate) fn draw_rows<'py>(
    py: Python<'py>,
    rows: u64,
    requests: u64,
    seed: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let seed = integer(seed)?;
    let drawn = py.detach(|| distributions::draw_rows(rows, requests, seed));
    Ok(PyArray1::from_vec(py, drawn.map_err(raise)?))
}

/// Reads a seed, an integer of 64 bits. The error names the field.
fn integer(seed: &Bound<'_, PyAny>) -> PyResult<u64> {
    let refuse = |_| raise(Error::config("seed", format!("must be an integer from 0 to {}, got {seed}", u64::MAX)));
    seed.extract().map_err(refuse)
}

fn seconds(arrival_ns: Vec<i64>) -> Vec<f64> {
    arrival_ns.into_iter().map(distributions::seconds).collect()
}
