//! Price of a single iteration, without a run.

use inferq_core::engine::parse;
use inferq_core::timing::{ChunkShape, TimingModel, pace_of};
use pyo3::prelude::*;

use crate::border::raise;

/// Returns the seconds of one iteration and the axes that lie beyond the measured range; see the stub.
#[pyfunction]
pub(crate) fn price(timing: &str, chunks: Vec<(u64, u64)>, decodes: Vec<u64>) -> PyResult<(f64, Vec<&'static str>)> {
    let chunks: Vec<ChunkShape> = chunks.into_iter().map(|(tokens, context)| ChunkShape { tokens, context }).collect();
    let model = parse::<TimingModel>(timing).and_then(|timing| timing.build()).map_err(raise)?;
    let pace = pace_of(model.as_ref(), &chunks, &decodes).map_err(raise)?;
    Ok((pace.first.seconds(), model.beyond().axes()))
}
