//! Binding between Python and the core: descriptions and columns in, columns out.

mod batch;
mod border;
mod draw;
mod exponential;
mod live;
mod policy;
mod price;
mod probability;
mod requests;
mod router;
mod run;
mod scaler;
mod streamed;
mod summary;
mod tables;
mod view;

use inferq_core::finding::Kind;
use pyo3::prelude::*;

/// The compiled core of inferq. Use the package `inferq`, which is typed and documented.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Wheels are built with their commit set. A build from a source distribution has none.
    module.add("commit", option_env!("INFERQ_COMMIT"))?;
    module.add("finding_kinds", Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>())?;
    module.add_class::<batch::PyBatch>()?;
    module.add_class::<draw::PyDrawing>()?;
    module.add_class::<router::PyFleet>()?;
    module.add_class::<live::PyLive>()?;
    module.add_class::<router::RoutedRequest>()?;
    module.add_class::<requests::PyRequestRows>()?;
    module.add_class::<view::PyRequests>()?;
    module.add_class::<summary::PyStatistics>()?;
    module.add_class::<view::View>()?;
    module.add_function(wrap_pyfunction!(border::check, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_arrivals, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_client, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_column, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_durations, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_lengths, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_rows, module)?)?;
    module.add_function(wrap_pyfunction!(draw::draw_sessions, module)?)?;
    module.add_function(wrap_pyfunction!(price::price, module)?)?;
    module.add_function(wrap_pyfunction!(probability::normal_cdf, module)?)?;
    module.add_function(wrap_pyfunction!(probability::poisson_tail, module)?)?;
    module.add_function(wrap_pyfunction!(probability::student_cdf, module)?)?;
    module.add_function(wrap_pyfunction!(probability::student_quantile, module)?)?;
    module.add_function(wrap_pyfunction!(run::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(exponential::simulate_exponential, module)?)?;
    module.add_function(wrap_pyfunction!(streamed::simulate_streamed, module)?)?;
    Ok(())
}
