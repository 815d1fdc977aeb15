//! Request columns of a run, built from the core's rows when Python reads them.

use inferq_core::results::{Column, NO_REPLICA, NamedColumn, RequestRows, Status};
use inferq_core::workload::Workload;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PySlice;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Columns of the workload that describe the requests, in their original memory.
pub(crate) struct WorkloadColumns {
    pub(crate) arrival_s: Py<PyArray1<f64>>,
    pub(crate) prompt_tokens: Py<PyArray1<i32>>,
    pub(crate) output_tokens: Py<PyArray1<i32>>,
    /// `None`: all requests have class 0.
    pub(crate) class: Option<Py<PyArray1<u32>>>,
}

/// Requests of a run. The columns are numpy arrays; in columns of seconds NaN marks events that did not happen.
#[pyclass(frozen, module = "inferq._core", name = "RequestRows")]
pub(crate) struct PyRequestRows {
    rows: RequestRows,
    workload_columns: WorkloadColumns,
    /// Id of the first row; the ids of the following rows ascend by one.
    first: u32,
    /// Rows that arrived; `None`: all rows.
    selected: Option<Vec<u32>>,
    /// Ids that are measured.
    measured: Range<u32>,
    threads: Option<NonZeroUsize>,
}

/// A column with its name and the number of its empty cells.
type Counted<'py> = (&'static str, Bound<'py, PyAny>, usize);

/// Time from the workload's `arrival_s` to the last token; only tables of jobs have it.
const ELAPSED: &str = "elapsed_s";

/// Columns known before the run are placed in front of these columns of the core.
const KNOWN_BEFORE: [(&str, &[&str]); 3] =
    [("replica", &["id", "class"]), ("arrival_s", &["measured"]), ("preemptions", &["prompt_tokens", "output_tokens"])];

fn known_before(name: &str) -> &'static [&'static str] {
    KNOWN_BEFORE.iter().find(|(before, _)| *before == name).map_or(&[], |(_, workload_columns)| workload_columns)
}

impl PyRequestRows {
    pub(crate) fn new(
        rows: RequestRows,
        workload_columns: WorkloadColumns,
        first: u32,
        measured: Range<u32>,
        threads: Option<NonZeroUsize>,
    ) -> PyRequestRows {
        PyRequestRows { rows, workload_columns, first, selected: None, measured, threads }
    }

    /// Removes requests that waited for other requests and never arrived.
    pub(crate) fn that_arrived(self) -> PyRequestRows {
        let has_arrived = |&row: &usize| self.rows.status(row) != Status::Awaited;
        let selected: Vec<u32> = (0..self.rows.len()).filter(has_arrived).map(|row| row as u32).collect();
        PyRequestRows { selected: (selected.len() < self.rows.len()).then_some(selected), ..self }
    }

    /// Builds columns from the rows without the GIL.
    fn make<Made: Send>(&self, py: Python, make: impl FnOnce(&Workload) -> Made + Send) -> PyResult<Made> {
        let (arrival_s, output_tokens) = (
            self.workload_columns.arrival_s.bind(py).readonly(),
            self.workload_columns.output_tokens.bind(py).readonly(),
        );
        let workload = Workload {
            arrival_s: arrival_s.as_slice()?,
            output_tokens: output_tokens.as_slice()?,
            ..Workload::default()
        };
        Ok(py.detach(|| make(&workload)))
    }

    /// Converts a column of the core to an array.
    fn made<'py>(&self, py: Python<'py>, made: NamedColumn) -> Counted<'py> {
        let NamedColumn { name, column, absent } = made;
        let (array, absent) = match column {
            Column::U8(cells) => (self.some(py, cells), absent),
            Column::I32(cells) => (self.some(py, cells), absent),
            Column::I64(cells) => (self.some(py, cells), absent),
            // Counts are signed for Python; replica numbers are not.
            Column::U32(cells) if name == "preemptions" => {
                (self.some(py, cells.into_iter().map(|count| count as i32).collect()), absent)
            }
            Column::U32(cells) => {
                let cells = self.only_selected(cells);
                let absent = if self.selected.is_none() { absent } else { count(&cells, |&cell| cell == NO_REPLICA) };
                (PyArray1::from_vec(py, cells).into_any(), absent)
            }
            Column::F64(cells) => {
                let cells = self.only_selected(cells);
                let absent = if self.selected.is_none() { absent } else { count(&cells, |cell| cell.is_nan()) };
                (PyArray1::from_vec(py, cells).into_any(), absent)
            }
        };
        (name, array, absent)
    }

    fn some<'py, T: numpy::Element + Copy>(&self, py: Python<'py>, cells: Vec<T>) -> Bound<'py, PyAny> {
        PyArray1::from_vec(py, self.only_selected(cells)).into_any()
    }

    fn only_selected<T: Copy>(&self, cells: Vec<T>) -> Vec<T> {
        match &self.selected {
            None => cells,
            Some(selected) => selected.iter().map(|&row| cells[row as usize]).collect(),
        }
    }

    /// Returns a column that was known before the run, or `None` if the name is unknown.
    fn known_column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rows = self.rows.len() as u32;
        let of_ids = |row: u32| self.measured.contains(&(self.first + row));
        Ok(Some(match (name, &self.workload_columns.class) {
            ("id", _) => self.some(py, (self.first..self.first + rows).collect()),
            ("measured", _) => self.some(py, (0..rows).map(of_ids).collect()),
            ("class", None) => PyArray1::<u32>::zeros(py, self.__len__(), false).into_any(),
            ("class", Some(class)) => self.shared(class.bind(py))?,
            ("prompt_tokens", _) => self.shared(self.workload_columns.prompt_tokens.bind(py))?,
            ("output_tokens", _) if self.rows.none_is_cut() => {
                self.shared(self.workload_columns.output_tokens.bind(py))?
            }
            ("output_tokens", _) => {
                let workload_columns = self.workload_columns.output_tokens.bind(py).readonly();
                let rows = workload_columns.as_slice()?.iter().take(self.rows.len()).enumerate();
                self.some(py, rows.map(|(row, &tokens)| tokens - self.rows.cut_tokens(row)).collect())
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the selected rows of a workload column; shares its memory if they are all rows from the first on.
    fn shared<'py, T: numpy::Element + Copy>(&self, column: &Bound<'py, PyArray1<T>>) -> PyResult<Bound<'py, PyAny>> {
        let py = column.py();
        if self.selected.is_none() {
            return column.as_any().get_item(PySlice::new(py, 0, self.rows.len() as isize, 1));
        }
        Ok(self.some(py, column.readonly().as_slice()?.to_vec()))
    }
}

fn count<T>(cells: &[T], is_absent: impl Fn(&T) -> bool) -> usize {
    cells.iter().filter(|cell| is_absent(cell)).count()
}

#[pymethods]
impl PyRequestRows {
    fn __len__(&self) -> usize {
        self.selected.as_ref().map_or(self.rows.len(), Vec::len)
    }

    /// Names of the columns in order.
    #[getter]
    fn names(&self) -> Vec<&'static str> {
        let names = self.rows.names().into_iter().filter(|&name| name != ELAPSED);
        names.flat_map(|name| known_before(name).iter().copied().chain([name])).collect()
    }

    /// Returns the column of that name, or None if there is none.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some(array) = self.known_column(py, name)? {
            return Ok(Some(array));
        }
        let made = self.make(py, |workload| self.rows.column(name, workload, self.threads))?;
        Ok(made.map(|made| self.made(py, made).1))
    }

    /// Returns all columns: name, array and number of empty cells.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<Counted<'py>>> {
        // If all requests that left have finished, two columns are identical.
        let is_one = self.rows.leave_with_last_token();
        let but = if is_one { &[ELAPSED, "left_s"][..] } else { &[ELAPSED] };
        let mut columns: Vec<Counted> = Vec::new();
        for made in self.make(py, |workload| self.rows.named_columns(but, workload, self.threads))? {
            for &name in known_before(made.name) {
                columns.extend(self.known_column(py, name)?.map(|array| (name, array, 0)));
            }
            let (name, array, absent) = self.made(py, made);
            columns.push((name, array.clone(), absent));
            if is_one && name == "finish_s" {
                columns.push(("left_s", array, absent));
            }
        }
        Ok(columns)
    }
}
