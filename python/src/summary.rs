//! Statistics of result columns by group.

use inferq_core::results::summary::{ByGroup, PERCENTS, Statistics};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Mean, percentiles and maximum of a column by group. Shapes and units are in the stub.
#[pyclass(module = "inferq._core", name = "Statistics")]
pub(crate) struct PyStatistics(ByGroup);

#[pymethods]
impl PyStatistics {
    #[new]
    fn new(group_count: usize) -> PyStatistics {
        PyStatistics(ByGroup::new(group_count))
    }

    /// Adds values, and the group of each.
    fn add(
        &mut self,
        py: Python,
        values: PyReadonlyArray1<'_, f64>,
        groups: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<()> {
        let (values, groups) = (values.as_slice()?, groups.as_slice()?);
        if values.len() != groups.len() {
            return Err(PyValueError::new_err("values and groups differ in length"));
        }
        py.detach(|| self.0.add(values, groups));
        Ok(())
    }

    /// Ends a pass over the values. Returns whether another pass is needed.
    fn end_pass(&mut self, py: Python) -> bool {
        py.detach(|| self.0.end_pass())
    }

    /// Returns the value of each statistic for each group.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.0.statistics();
        let columns = PyDict::new(py);
        let put = |key: &str, of: &dyn Fn(&Statistics) -> f64| {
            let column: Vec<f64> = statistics.iter().map(of).collect();
            columns.set_item(key, PyArray1::from_vec(py, column))
        };
        put("mean", &|group| group.mean)?;
        for (place, percent) in PERCENTS.iter().enumerate() {
            put(&format!("p{percent}"), &|group| group.percentiles[place])?;
        }
        put("max", &|group| group.max)?;
        Ok(columns)
    }
}
