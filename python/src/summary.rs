//! Statistics of result columns by group.

use inferq_core::results::summary::{PERCENTS, Statistics, by_group};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;

/// Mean, percentiles and maximum of each column by group; see the stub for shapes and units.
#[pyfunction]
pub(crate) fn summarise<'py>(
    py: Python<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    group_count: usize,
    columns: BTreeMap<String, PyReadonlyArray1<'py, f64>>,
) -> PyResult<Bound<'py, PyDict>> {
    let groups = groups.as_slice()?;
    let all = PyDict::new(py);
    for (name, column) in &columns {
        let values = column.as_slice()?;
        if values.len() != groups.len() {
            return Err(PyValueError::new_err(format!("{name} and groups differ in length")));
        }
        let statistics = py.detach(|| by_group(values, groups, group_count));
        let one = PyDict::new(py);
        let put = |key: &str, of: &dyn Fn(&Statistics) -> f64| {
            let column: Vec<f64> = statistics.iter().map(of).collect();
            one.set_item(key, PyArray1::from_vec(py, column))
        };
        put("mean", &|group| group.mean)?;
        for (place, percent) in PERCENTS.iter().enumerate() {
            put(&format!("p{percent}"), &|group| group.percentiles[place])?;
        }
        put("max", &|group| group.max)?;
        all.set_item(name, one)?;
    }
    Ok(all)
}
