//! What few runs have: provided for or not by a choice that is made once a run, instead of a question in every batch.
//!
//! The hot code stands in the program four times. [`Plain`] has no branch for what [`State::is_plain`](super::State) rules
//! out: a prefix cache, hand-offs, drafts, rows of batches kept, more than one class or group of decodes, blocks freed with
//! the batch, ceilings in the timing model, first tokens that come with the first decode; and plans made ahead. [`PlainAhead`]
//! has none of these but the last, [`PlainGroups`] none but groups of decodes, and [`Full`] asks for each.

/// Does the code at hand provide for features that few runs have?
pub(crate) trait Features {
    /// For any of them, or for none?
    const ANY: bool;
    /// For plans made ahead?
    const AHEAD: bool;
    /// For more than one group of decodes?
    const GROUPS: bool;
}

/// For none.
#[derive(Debug)]
pub(crate) enum Plain {}

/// For plans made ahead and nothing else.
#[derive(Debug)]
pub(crate) enum PlainAhead {}

/// For groups of decodes and nothing else.
#[derive(Debug)]
pub(crate) enum PlainGroups {}

/// For all.
#[derive(Debug)]
pub(crate) enum Full {}

impl Features for Plain {
    const ANY: bool = false;
    const AHEAD: bool = false;
    const GROUPS: bool = false;
}

impl Features for PlainAhead {
    const ANY: bool = false;
    const AHEAD: bool = true;
    const GROUPS: bool = false;
}

impl Features for PlainGroups {
    const ANY: bool = false;
    const AHEAD: bool = false;
    const GROUPS: bool = true;
}

impl Features for Full {
    const ANY: bool = true;
    const AHEAD: bool = true;
    const GROUPS: bool = true;
}
