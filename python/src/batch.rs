//! Batches of user-defined schedulers.

use inferq_core::clock::{Instant, attoseconds};
use inferq_core::plan::Plan;
use numpy::ndarray::Dimension;
use numpy::{Element, PyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray, PyUntypedArray};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyIterator, PyList, PyTuple};

use crate::policy::{Planned, broken};

/// The batch that a policy requests.
///
/// Args:
///     decode: ids of the requests that emit a token in this iteration. A running request that
///         could decode and is left out pauses and keeps its blocks.
///     prefill: pairs (id, tokens), or an integer array with two columns: the prompt tokens to compute. A waiting request
///         with a chunk is admitted.
///     admit: pairs (id, tokens), or a dict: the tokens for which an admitted request takes blocks. Default: its chunk.
///     preempt: ids of running requests that lose their blocks first; they wait again and are recomputed.
///     repeat: number of iterations with the same batch. Any earlier event, such as an arrival, ends the repetition.
///     wake_at_s: when to call `plan` again if this batch is empty. Default: at the next event.
#[pyclass(frozen, get_all, module = "inferq", name = "Batch")]
pub(crate) struct PyBatch {
    /// Ids of the requests that emit a token.
    pub(crate) decode: Option<Py<PyAny>>,
    /// Pairs (id, tokens) of prompt tokens to compute.
    pub(crate) prefill: Option<Py<PyAny>>,
    /// Pairs (id, tokens) of blocks taken at admission.
    pub(crate) admit: Option<Py<PyAny>>,
    /// Ids of the requests that lose their blocks.
    pub(crate) preempt: Option<Py<PyAny>>,
    /// Iterations with the same batch.
    pub(crate) repeat: Py<PyAny>,
    /// Seconds at which to call `plan` again if the batch is empty.
    pub(crate) wake_at_s: Option<Py<PyAny>>,
}

#[pymethods]
impl PyBatch {
    #[new]
    #[pyo3(
        signature = (*, decode=None, prefill=None, admit=None, preempt=None, repeat=None, wake_at_s=None),
        text_signature = "(*, decode=None, prefill=None, admit=None, preempt=None, repeat=1, wake_at_s=None)"
    )]
    fn new(
        py: Python,
        decode: Option<Py<PyAny>>,
        prefill: Option<Py<PyAny>>,
        admit: Option<Py<PyAny>>,
        preempt: Option<Py<PyAny>>,
        repeat: Option<Py<PyAny>>,
        wake_at_s: Option<Py<PyAny>>,
    ) -> PyBatch {
        let repeat = repeat.unwrap_or_else(|| PyInt::new(py, 1).into_any().unbind());
        PyBatch { decode, prefill, admit, preempt, repeat, wake_at_s }
    }

    fn __repr__(&self, py: Python) -> PyResult<String> {
        let fields = [
            ("decode", self.decode.as_ref()),
            ("prefill", self.prefill.as_ref()),
            ("admit", self.admit.as_ref()),
            ("preempt", self.preempt.as_ref()),
            ("repeat", Some(&self.repeat)),
            ("wake_at_s", self.wake_at_s.as_ref()),
        ];
        let mut arguments = Vec::new();
        for (name, value) in fields {
            if let Some(value) = value {
                arguments.push(format!("{name}={}", value.bind(py).repr()?));
            }
        }
        Ok(format!("Batch({})", arguments.join(", ")))
    }
}

const IDS: &str = "decode and preempt list requests by id, an integer";
pub(crate) const PAIRS: &str = "prefill and admit list pairs (id, tokens) of integers";

/// Returns the `repr` of an object, truncated if long.
pub(crate) fn shortened(object: &Bound<PyAny>) -> String {
    let text = object.repr().map_or_else(|_| "something without a repr".to_owned(), |text| text.to_string());
    if text.chars().count() <= 80 { text } else { text.chars().take(79).chain(['…']).collect() }
}

/// Returns an integer, clamped to 64 bits; `None` for other objects and for booleans.
pub(crate) fn integer(object: &Bound<PyAny>) -> Option<i64> {
    if object.is_instance_of::<PyBool>() {
        return None;
    }
    match object.extract() {
        Ok(number) => Some(number),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            Some(if object.lt(0).unwrap_or(false) { i64::MIN } else { i64::MAX })
        }
        Err(_) => None,
    }
}

/// Converts seconds to an instant.
pub(crate) fn seconds(object: &Bound<PyAny>) -> Option<Instant> {
    if object.is_instance_of::<PyBool>() {
        return None;
    }
    attoseconds(object.extract().ok()?, "wake_at_s").ok().map(Instant)
}

/// Calls a function for each item of an object. Returns `None` if the object is not iterable.
fn each<'py>(
    object: &Bound<'py, PyAny>,
    mut take: impl FnMut(&Bound<'py, PyAny>) -> Planned<()>,
) -> Planned<Option<()>> {
    if let Ok(list) = object.cast_exact::<PyList>() {
        list.iter().try_for_each(|entry| take(&entry))?;
        return Ok(Some(()));
    }
    let Some(mut entries) = entries(object)? else { return Ok(None) };
    entries.try_for_each(|entry| take(&entry?))?;
    Ok(Some(()))
}

/// Returns an iterator over an object, or `None` if it is not iterable.
fn entries<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyIterator>>> {
    match object.try_iter() {
        Ok(entries) => Ok(Some(entries)),
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Borrows an array for reading.
fn readable<'py, T: Element, D: Dimension>(array: &Bound<'py, PyArray<T, D>>) -> PyResult<PyReadonlyArray<'py, T, D>> {
    Ok(array.try_readonly()?)
}

/// Converts an array to lists; other objects are returned unchanged.
fn listed<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if object.is_instance_of::<PyUntypedArray>() {
        return object.call_method0(intern!(object.py(), "tolist"));
    }
    Ok(object.clone())
}

/// Reads the ids in a field of a batch.
pub(crate) fn ids(field: &str, object: &Option<Py<PyAny>>, py: Python, plan: &Plan) -> Planned<Vec<i64>> {
    let Some(object) = object else { return Ok(Vec::new()) };
    let object = object.bind(py);
    if let Some(ids) = object.cast::<PyArray1<u32>>().ok().and_then(|array| array.to_vec().ok()) {
        return Ok(ids.into_iter().map(i64::from).collect());
    }
    if let Some(ids) = object.cast::<PyArray1<i64>>().ok().and_then(|array| array.to_vec().ok()) {
        return Ok(ids);
    }
    let not_ids = |object: &Bound<PyAny>| broken(plan, IDS, format!("{field}: {}", shortened(object)));
    let mut ids = Vec::with_capacity(object.cast_exact::<PyList>().map_or(0, |list| list.len()));
    each(&listed(object)?, |entry| {
        ids.push(integer(entry).ok_or_else(|| not_ids(entry))?);
        Ok(())
    })?
    .ok_or_else(|| not_ids(object))?;
    Ok(ids)
}

/// Reads the pairs (id, tokens) in a field of a batch.
pub(crate) fn pairs(field: &str, object: &Option<Py<PyAny>>, py: Python, plan: &Plan) -> Planned<Vec<(i64, i64)>> {
    let Some(object) = object else { return Ok(Vec::new()) };
    let object = object.bind(py);
    if let Ok(array) = object.cast::<PyArray2<i64>>() {
        let array = readable(array)?;
        let array = array.as_array();
        if array.ncols() == 2 {
            return Ok(array.rows().into_iter().map(|row| (row[0], row[1])).collect());
        }
    }
    let no_pairs = |object: &Bound<PyAny>| broken(plan, PAIRS, format!("{field}: {}", shortened(object)));
    let all = match object.cast::<PyDict>() {
        Ok(dict) => dict.items().into_any(),
        Err(_) => listed(object)?,
    };
    let mut pairs = Vec::new();
    each(&all, |entry| {
        let pair = match entry.cast_exact::<PyTuple>() {
            Ok(tuple) if tuple.len() == 2 => {
                integer(&*tuple.get_borrowed_item(0)?).zip(integer(&*tuple.get_borrowed_item(1)?))
            }
            _ => {
                let mut cells = entries(entry)?.ok_or_else(|| no_pairs(entry))?;
                let mut cell = || Ok::<_, PyErr>(cells.next().transpose()?.as_ref().map(integer));
                match (cell()?, cell()?, cell()?) {
                    (Some(Some(id)), Some(Some(tokens)), None) => Some((id, tokens)),
                    _ => None,
                }
            }
        };
        pairs.push(pair.ok_or_else(|| no_pairs(entry))?);
        Ok(())
    })?
    .ok_or_else(|| no_pairs(object))?;
    Ok(pairs)
}
