//! The view of a user-defined scheduler.
//!
//! All values are copies owned by Python: a policy cannot change the run by modifying them.

use numpy::{Element, PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::sync::{Arc, PoisonError, RwLock};

/// A column that is built on first access.
struct Column<T>(PyOnceLock<Py<PyArray1<T>>>);

impl<T> Default for Column<T> {
    fn default() -> Column<T> {
        Column(PyOnceLock::new())
    }
}

impl<T: Element> Column<T> {
    fn of<'py>(&self, py: Python<'py>, cells: impl Iterator<Item = T>) -> Bound<'py, PyArray1<T>> {
        if let Some(made) = self.0.get(py) {
            return made.bind(py).clone();
        }
        let array = PyArray1::from_vec(py, cells.collect());
        drop(array.readwrite().make_nonwriteable());
        // Two threads may both have built it; both results are equal.
        let _ = self.0.set(py, array.clone().unbind());
        array
    }
}

/// A copy builds its columns again.
impl<T> Clone for Column<T> {
    fn clone(&self) -> Column<T> {
        Column::default()
    }
}

/// A request as a view shows it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) class: u32,
    pub(crate) preemptions: u32,
    pub(crate) since_s: f64,
    pub(crate) priority: i64,
    pub(crate) ttft_slo_s: f64,
    pub(crate) itl_slo_s: f64,
    pub(crate) progress: Progress,
}

/// How far a request had come when its table was made.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Progress {
    pub(crate) context: i64,
    pub(crate) emitted: i64,
    /// Lower bound of its blocks; for an emitting request the blocks of its context are added.
    pub(crate) blocks: i64,
    /// Whether it emits a token in every iteration, so that context and output tokens grow by one.
    pub(crate) emits: bool,
    /// Whether all its known tokens are computed, so that its next row is a decode.
    pub(crate) decodes: bool,
}

impl Progress {
    /// Returns the progress after further iterations, with all blocks held then.
    pub(crate) fn after(&self, iterations: i64, block_tokens: i64) -> Progress {
        if !self.emits {
            return self.clone();
        }
        let context = self.context + iterations;
        let blocks = self.blocks.max((context + block_tokens - 1) / block_tokens);
        Progress { context, emitted: self.emitted + iterations, blocks, ..*self }
    }
}

/// Objectives of requests by id, in seconds; NaN: none. In a streamed run only current requests are kept.
#[derive(Default)]
pub(crate) struct Objectives(RwLock<ObjectiveColumns>);

/// Empty columns: no request has an objective.
#[derive(Default)]
struct ObjectiveColumns {
    first: usize,
    rows: usize,
    ttft_s: Vec<f64>,
    itl_s: Vec<f64>,
}

impl Objectives {
    /// Adds the objectives of the next requests; both columns are empty or complete.
    pub(crate) fn append(&self, rows: usize, ttft_s: &[f64], itl_s: &[f64]) {
        let mut objectives = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objectives.rows += rows;
        objectives.ttft_s.extend_from_slice(ttft_s);
        objectives.itl_s.extend_from_slice(itl_s);
    }

    /// Drops objectives of requests before `end`, all of which have left, once they are half of the stored ones.
    pub(crate) fn forget(&self, end: usize) {
        let mut objectives = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let rows = end.saturating_sub(objectives.first);
        if 2 * rows >= objectives.rows {
            objectives.first += rows;
            objectives.rows -= rows;
            let (of_ttft, of_itl) = (rows.min(objectives.ttft_s.len()), rows.min(objectives.itl_s.len()));
            objectives.ttft_s.drain(..of_ttft);
            objectives.itl_s.drain(..of_itl);
        }
    }

    /// Returns the TTFT and ITL objectives of a request.
    pub(crate) fn reader(&self) -> impl Fn(u32) -> (f64, f64) + '_ {
        let objectives = self.0.read().unwrap_or_else(PoisonError::into_inner);
        move |id| {
            let row = id as usize - objectives.first;
            let of = |column: &[f64]| column.get(row).copied().unwrap_or(f64::NAN);
            (of(&objectives.ttft_s), of(&objectives.itl_s))
        }
    }
}

/// The running or waiting requests by arrival. Its columns are reused until a request enters or leaves; those of
/// progress until a request does anything but emit.
#[derive(Clone, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    lasting: LastingColumns,
    progress: ProgressColumns,
}

#[derive(Clone, Default)]
struct LastingColumns {
    id: Column<u32>,
    since_s: Column<f64>,
    class_code: Column<i64>,
    priority: Column<i64>,
    preemptions: Column<i64>,
    ttft_slo_s: Column<f64>,
    itl_slo_s: Column<f64>,
}

#[derive(Clone, Default)]
struct ProgressColumns {
    prompt_left: Column<i64>,
    decodes: Column<bool>,
    /// Columns at the time when the table was made.
    first: EmissionColumns,
}

/// Columns that each emitted token changes.
#[derive(Clone, Default)]
struct EmissionColumns {
    context: Column<i64>,
    emitted: Column<i64>,
    blocks: Column<i64>,
}

impl Table {
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn insert(&mut self, index: usize, row: Row) {
        self.rows.insert(index, row);
        self.forget_columns();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.rows.remove(index);
        self.forget_columns();
    }

    fn forget_columns(&mut self) {
        self.lasting = LastingColumns::default();
        self.progress = ProgressColumns::default();
    }

    /// Updates the progress of all requests.
    pub(crate) fn renew(&mut self, progress: impl Iterator<Item = Progress>) {
        for (row, progress) in self.rows.iter_mut().zip(progress) {
            row.progress = progress;
        }
        self.progress = ProgressColumns::default();
    }
}

/// Requests in order of arrival, one read-only array per column.
#[pyclass(frozen, module = "inferq.scheduler", name = "Requests")]
pub(crate) struct PyRequests {
    table: Arc<Table>,
    /// Iterations since the table was made.
    iterations: i64,
    block_tokens: i64,
    /// Columns after these iterations, if any.
    later: EmissionColumns,
}

impl PyRequests {
    pub(crate) fn new(table: Arc<Table>, iterations: u64, block_tokens: u64) -> PyRequests {
        let (iterations, block_tokens) = (iterations as i64, block_tokens as i64);
        PyRequests { table, iterations, block_tokens, later: EmissionColumns::default() }
    }

    fn emission_columns(&self) -> &EmissionColumns {
        if self.iterations == 0 { &self.table.progress.first } else { &self.later }
    }

    fn progress(&self) -> impl Iterator<Item = Progress> {
        self.table.rows.iter().map(|row| row.progress.after(self.iterations, self.block_tokens))
    }
}

type Array<'py, T> = Bound<'py, PyArray1<T>>;

#[pymethods]
impl PyRequests {
    fn __len__(&self) -> usize {
        self.table.rows.len()
    }

    /// Row of the workload, used as the id in a batch.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        self.table.lasting.id.of(py, self.table.rows.iter().map(|row| row.id))
    }

    /// Arrival in seconds.
    #[getter]
    fn since_s<'py>(&self, py: Python<'py>) -> Array<'py, f64> {
        self.table.lasting.since_s.of(py, self.table.rows.iter().map(|row| row.since_s))
    }

    /// Tokens to compute before it can decode: its prompt, and after a preemption its emitted tokens too. At least 1
    /// while it waits, 0 if `decodes`.
    #[getter]
    fn prompt_left<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        let left = |row: &Row| {
            let known_tokens = i64::from(row.prompt_tokens) + row.progress.emitted;
            // Handed off under `FirstToken::Decode`, it has computed all its tokens and its next row is a decode.
            if row.progress.decodes { 0 } else { (known_tokens - row.progress.context).max(1) }
        };
        self.table.progress.prompt_left.of(py, self.table.rows.iter().map(left))
    }

    /// Tokens in the KV cache.
    #[getter]
    fn context<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.emission_columns().context.of(py, self.progress().map(|progress| progress.context))
    }

    /// Output tokens emitted.
    #[getter]
    fn emitted<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.emission_columns().emitted.of(py, self.progress().map(|progress| progress.emitted))
    }

    /// Blocks that it holds.
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.emission_columns().blocks.of(py, self.progress().map(|progress| progress.blocks))
    }

    /// Whether all its known tokens are computed, so that it can decode.
    #[getter]
    fn decodes<'py>(&self, py: Python<'py>) -> Array<'py, bool> {
        self.table.progress.decodes.of(py, self.table.rows.iter().map(|row| row.progress.decodes))
    }

    /// Index of its class in `View.classes`.
    #[getter]
    fn class_code<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.table.lasting.class_code.of(py, self.table.rows.iter().map(|row| i64::from(row.class)))
    }

    /// Its priority. Default: 0.
    #[getter]
    fn priority<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.table.lasting.priority.of(py, self.table.rows.iter().map(|row| row.priority))
    }

    /// Its TTFT objective in seconds, or NaN.
    #[getter]
    fn ttft_slo_s<'py>(&self, py: Python<'py>) -> Array<'py, f64> {
        self.table.lasting.ttft_slo_s.of(py, self.table.rows.iter().map(|row| row.ttft_slo_s))
    }

    /// Its ITL objective in seconds, or NaN.
    #[getter]
    fn itl_slo_s<'py>(&self, py: Python<'py>) -> Array<'py, f64> {
        self.table.lasting.itl_slo_s.of(py, self.table.rows.iter().map(|row| row.itl_slo_s))
    }

    /// Number of preemptions.
    #[getter]
    fn preemptions<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.table.lasting.preemptions.of(py, self.table.rows.iter().map(|row| i64::from(row.preemptions)))
    }

    fn __repr__(&self) -> String {
        format!("Requests of {}", self.table.rows.len())
    }
}

/// A replica that can form a batch, as a policy sees it: without output lengths or future events.
#[pyclass(frozen, get_all, module = "inferq")]
pub(crate) struct View {
    /// Current time in seconds.
    pub(crate) now_s: f64,
    /// Whether no event is left: a policy that waits for a full batch should stop waiting.
    pub(crate) drain: bool,
    /// Token budget of an iteration; None: no limit.
    pub(crate) token_budget: Option<u64>,
    /// Limit of running requests; None: no limit.
    pub(crate) max_seqs: Option<u64>,
    /// Free blocks; None: the cache is unlimited.
    pub(crate) free_blocks: Option<u64>,
    /// Tokens per block.
    pub(crate) block_tokens: u64,
    /// Names of the classes, by code.
    pub(crate) classes: Py<PyTuple>,
    /// Admitted requests: decoding, prefilling or paused.
    pub(crate) running: Py<PyRequests>,
    /// The first `lookahead` requests of the queue.
    pub(crate) waiting: Py<PyRequests>,
    /// Number of requests in the queue, including those beyond `lookahead`.
    pub(crate) queue_length: u64,
}

#[pymethods]
impl View {
    fn __repr__(&self, py: Python) -> PyResult<String> {
        let (running, waiting) = (self.running.get().__len__(), self.queue_length);
        Ok(format!("View at {} s: {running} running, {waiting} waiting", self.now_s.into_pyobject(py)?.repr()?))
    }
}
