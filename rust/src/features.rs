//! Compile-time variants of the hottest code.
//!
//! Few runs use a prefix cache, hand-offs, drafts, listed batches, several classes or groups of decodes, blocks freed
//! with the batch, ceilings in the timing model, or first tokens from the first decode. [`Plain`] has no branch for
//! any of these or for planning ahead. [`PlainAhead`] adds planning ahead, and [`Full`] supports everything. Each variant exists for 64-bit times and for times of any length. A replica
//! switches when a time no longer fits 64 bits.

use std::marker::PhantomData;

use crate::clock::{Long, Width};

/// The features that the code is compiled with.
pub(crate) trait Features {
    /// The number of bits for times.
    type Width: Width;
    /// All optional features.
    const FULL: bool;
    /// Planning ahead.
    const AHEAD: bool;
}

/// No optional feature.
#[derive(Debug)]
pub(crate) struct Plain<W = Long>(PhantomData<W>);

/// Planning ahead only.
#[derive(Debug)]
pub(crate) struct PlainAhead<W = Long>(PhantomData<W>);

/// All features.
#[derive(Debug)]
pub(crate) struct Full<W = Long>(PhantomData<W>);

impl<W: Width> Features for Plain<W> {
    type Width = W;
    const FULL: bool = false;
    const AHEAD: bool = false;
}

impl<W: Width> Features for PlainAhead<W> {
    type Width = W;
    const FULL: bool = false;
    const AHEAD: bool = true;
}

impl<W: Width> Features for Full<W> {
    type Width = W;
    const FULL: bool = true;
    const AHEAD: bool = true;
}

/// The variant that a replica needs. `…Long` supports times of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// [`Plain`].
    Plain,
    PlainLong,
    /// [`PlainAhead`].
    Ahead,
    AheadLong,
    /// [`Full`].
    Full,
    FullLong,
}

impl Variant {
    /// Whether it supports no optional feature.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Variant::Plain | Variant::PlainLong)
    }

    /// Whether planning ahead is the only optional feature.
    pub(crate) fn is_plain_ahead(self) -> bool {
        matches!(self, Variant::Ahead | Variant::AheadLong)
    }

    /// Whether it computes times in 64 bits.
    pub(crate) fn is_short(self) -> bool {
        matches!(self, Variant::Plain | Variant::Ahead | Variant::Full)
    }

    /// This variant with all features added.
    pub(crate) fn full(self) -> Variant {
        if self.is_short() { Variant::Full } else { Variant::FullLong }
    }

    /// This variant with times of any length.
    pub(crate) fn long(self) -> Variant {
        match self {
            Variant::Plain => Variant::PlainLong,
            Variant::Ahead => Variant::AheadLong,
            Variant::Full => Variant::FullLong,
            _ => self,
        }
    }
}
