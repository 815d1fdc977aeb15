//! Distribution functions of statistics, from the crate `statrs`.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use statrs::distribution::{Continuous, ContinuousCDF, DiscreteCDF, Normal, Poisson, StudentsT};

fn student(freedom: f64) -> PyResult<StudentsT> {
    StudentsT::new(0.0, 1.0, freedom).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// P(T ≤ value) for Student's t with `freedom` degrees of freedom.
#[pyfunction]
pub(crate) fn student_cdf(value: f64, freedom: f64) -> PyResult<f64> {
    Ok(student(freedom)?.cdf(value))
}

/// The value that Student's t with `freedom` degrees of freedom does not exceed with `probability`.
#[pyfunction]
pub(crate) fn student_quantile(probability: f64, freedom: f64) -> PyResult<f64> {
    if !(probability > 0.0 && probability < 1.0) {
        return Err(PyValueError::new_err(format!("probability must be between 0 and 1, got {probability}")));
    }
    let student = student(freedom)?;
    // The quantile of statrs has few digits beyond 10⁴ degrees of freedom; its distribution function has all.
    let start = student.inverse_cdf(probability);
    Ok((0..3).fold(start, |value, _| value - (student.cdf(value) - probability) / student.pdf(value)))
}

/// P(Z ≤ value) for the standard normal distribution, for each value.
#[pyfunction]
pub(crate) fn normal_cdf<'py>(py: Python<'py>, values: PyReadonlyArray1<'py, f64>) -> Bound<'py, PyArray1<f64>> {
    let normal = Normal::standard();
    PyArray1::from_iter(py, values.as_array().iter().map(|&value| normal.cdf(value)))
}

/// P(N > count) for a Poisson distribution, for each count.
#[pyfunction]
pub(crate) fn poisson_tail<'py>(
    py: Python<'py>,
    counts: PyReadonlyArray1<'py, f64>,
    mean: f64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let poisson = Poisson::new(mean).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyArray1::from_iter(py, counts.as_array().iter().map(|&count| poisson.sf(count as u64))))
}
