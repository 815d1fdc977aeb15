//! What few runs have: provided for or not by a choice that is made once a run, instead of a question in every batch.
//!
//! The hot code stands in the program twice. [`Plain`] has no branch for what [`State::is_plain`](super::State) rules out: a
//! prefix cache, plans made ahead, hand-offs, rows of batches kept, more than one class or group of decodes, blocks freed
//! with the batch, ceilings in the timing model, first tokens that come with the first decode. [`Full`] asks for each.

/// Does the code at hand provide for features that few runs have?
pub(crate) trait Features {
    /// For any of them, or for none?
    const ANY: bool;
}

/// For none.
#[derive(Debug)]
pub(crate) enum Plain {}

/// For all.
#[derive(Debug)]
pub(crate) enum Full {}

impl Features for Plain {
    const ANY: bool = false;
}

impl Features for Full {
    const ANY: bool = true;
}
