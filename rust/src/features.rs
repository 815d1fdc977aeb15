//! The variants of the hottest code: what a run has not, none of its batches asks for.
//!
//! Few runs have a prefix cache, hand-offs, drafts, rows of batches kept, more than one class or group of decodes, blocks
//! freed with the batch, ceilings in the timing model, or first tokens that come with the first decode. [`Plain`] has no
//! branch for any of these nor for plans made ahead, [`PlainAhead`] for none but the last, [`PlainGroups`] for none but groups
//! of decodes, and [`Full`] asks for each. Of each there is one for times that 64 bits hold and one for all: a replica
//! changes over when a time outgrows them.

use std::marker::PhantomData;

use crate::clock::{Long, Width};

/// Does the code at hand provide for features that few runs have?
pub(crate) trait Features {
    /// In how many bits it computes with times.
    type Width: Width;
    /// For any of them, or for none?
    const ANY: bool;
    /// For plans made ahead?
    const AHEAD: bool;
    /// For more than one group of decodes?
    const GROUPS: bool;
}

/// For none.
#[derive(Debug)]
pub(crate) struct Plain<W = Long>(PhantomData<W>);

/// For plans made ahead and nothing else.
#[derive(Debug)]
pub(crate) struct PlainAhead<W = Long>(PhantomData<W>);

/// For groups of decodes and nothing else.
#[derive(Debug)]
pub(crate) struct PlainGroups<W = Long>(PhantomData<W>);

/// For all.
#[derive(Debug)]
pub(crate) struct Full<W = Long>(PhantomData<W>);

impl<W: Width> Features for Plain<W> {
    type Width = W;
    const ANY: bool = false;
    const AHEAD: bool = false;
    const GROUPS: bool = false;
}

impl<W: Width> Features for PlainAhead<W> {
    type Width = W;
    const ANY: bool = false;
    const AHEAD: bool = true;
    const GROUPS: bool = false;
}

impl<W: Width> Features for PlainGroups<W> {
    type Width = W;
    const ANY: bool = false;
    const AHEAD: bool = false;
    const GROUPS: bool = true;
}

impl<W: Width> Features for Full<W> {
    type Width = W;
    const ANY: bool = true;
    const AHEAD: bool = true;
    const GROUPS: bool = true;
}

/// The variant that suits a replica as it stands; `…Long` takes times of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// [`Plain`].
    Plain,
    PlainLong,
    /// [`PlainAhead`].
    Ahead,
    AheadLong,
    /// [`PlainGroups`].
    Groups,
    GroupsLong,
    /// [`Full`].
    Full,
    FullLong,
}

impl Variant {
    /// Does it provide for no feature that few runs have?
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Variant::Plain | Variant::PlainLong)
    }

    /// Does it provide for none of them but plans made ahead?
    #[inline(always)]
    pub(crate) fn is_plain_ahead(self) -> bool {
        matches!(self, Variant::Ahead | Variant::AheadLong)
    }

    /// Does it provide for none of them but groups of decodes?
    #[inline(always)]
    pub(crate) fn has_only_groups(self) -> bool {
        matches!(self, Variant::Groups | Variant::GroupsLong)
    }

    /// Does it take times of 64 bits?
    #[inline(always)]
    pub(crate) fn is_short(self) -> bool {
        matches!(self, Variant::Plain | Variant::Ahead | Variant::Groups | Variant::Full)
    }

    /// The one that provides for groups of decodes too.
    pub(crate) fn with_groups(self) -> Variant {
        match self {
            Variant::Plain => Variant::Groups,
            Variant::PlainLong => Variant::GroupsLong,
            Variant::Groups | Variant::GroupsLong => self,
            _ => self.full(),
        }
    }

    /// The one that provides for all features.
    pub(crate) fn full(self) -> Variant {
        if self.is_short() { Variant::Full } else { Variant::FullLong }
    }

    /// The one that takes times of any length.
    pub(crate) fn long(self) -> Variant {
        match self {
            Variant::Plain => Variant::PlainLong,
            Variant::Ahead => Variant::AheadLong,
            Variant::Groups => Variant::GroupsLong,
            Variant::Full => Variant::FullLong,
            _ => self,
        }
    }
}
