//! First come, first served over all classes, without a gate (FI-WSP and FG-SP of lin2026 section 6.3).

use super::{Gate, Prefills};

/// The class of the request that has waited longest.
#[derive(Debug)]
pub(super) struct FcfsGate;

impl Gate for FcfsGate {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by_key(|&class| prefills.waiting[class].first().map(|first| first.turn))
    }
}
