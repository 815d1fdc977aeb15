//! Totals of past and present replicas.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::replica::Replica;
use crate::results::BlockOperations;
use crate::timing::Beyond;

/// Totals of the ended replicas of a place.
#[derive(Default)]
pub(in crate::simulation) struct PlaceTotals {
    iterations: u64,
    most_preempted: u32,
    beyond: Beyond,
    findings: BTreeSet<Finding>,
    operations: Option<BlockOperations>,
}

/// Totals of all replicas, past and present.
#[derive(Default)]
pub(in crate::simulation) struct FleetTotals {
    pub(in crate::simulation) iterations: u64,
    pub(in crate::simulation) most_preempted: u32,
    pub(in crate::simulation) beyond: Beyond,
    pub(in crate::simulation) findings: BTreeSet<Finding>,
    pub(in crate::simulation) operations: Vec<BlockOperations>,
    /// Number of places ever used, and number of used places that served no request.
    pub(in crate::simulation) replicas: usize,
    pub(in crate::simulation) unused: usize,
}

impl FleetTotals {
    /// The totals of past and present replicas.
    pub(in crate::simulation) fn of<'a>(
        mut past: BTreeMap<u32, PlaceTotals>,
        replicas: impl Iterator<Item = &'a Replica>,
    ) -> FleetTotals {
        for replica in replicas {
            past.entry(replica.number()).or_default().add(replica);
        }
        let (replicas, unused) = (past.len(), past.values().filter(|past| past.iterations == 0).count());
        let mut totals = FleetTotals { replicas, unused, ..FleetTotals::default() };
        for past in past.into_values() {
            totals.iterations += past.iterations;
            totals.most_preempted = totals.most_preempted.max(past.most_preempted);
            totals.beyond = totals.beyond.and(past.beyond);
            totals.findings.extend(past.findings);
            totals.operations.extend(past.operations);
        }
        totals
    }
}

impl PlaceTotals {
    pub(super) fn add(&mut self, replica: &Replica) {
        self.iterations += replica.iterations();
        self.most_preempted = self.most_preempted.max(replica.most_preempted());
        self.beyond = self.beyond.and(replica.beyond());
        self.findings.extend(replica.findings().iter().cloned());
        if let Some(operations) = replica.block_operations() {
            let all =
                self.operations.get_or_insert(BlockOperations { replica: operations.replica, ..Default::default() });
            all.hit += operations.hit;
            all.inserted += operations.inserted;
            all.evicted += operations.evicted;
        }
    }
}
