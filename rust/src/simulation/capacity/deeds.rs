//! What replicas did, those that are no more and those that are there.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::replica::Replica;
use crate::results::BlockOperations;
use crate::timing::Beyond;

/// What the replicas at a place did that are no more.
#[derive(Default)]
pub(in crate::simulation) struct Past {
    iterations: u64,
    most_preempted: u32,
    beyond: Beyond,
    findings: BTreeSet<Finding>,
    operations: Option<BlockOperations>,
}

/// What replicas did, those that are no more and those that are there.
#[derive(Default)]
pub(in crate::simulation) struct Deeds {
    pub(in crate::simulation) iterations: u64,
    pub(in crate::simulation) most_preempted: u32,
    pub(in crate::simulation) beyond: Beyond,
    pub(in crate::simulation) findings: BTreeSet<Finding>,
    pub(in crate::simulation) operations: Vec<BlockOperations>,
    /// Places at which a replica ever stood, and of them those that served no request.
    pub(in crate::simulation) replicas: usize,
    pub(in crate::simulation) unused: usize,
}

impl Deeds {
    /// What the replicas did that are no more, and those that are there.
    pub(in crate::simulation) fn of<'a>(
        mut past: BTreeMap<u32, Past>,
        replicas: impl Iterator<Item = &'a Replica>,
    ) -> Deeds {
        for replica in replicas {
            past.entry(replica.number()).or_default().add(replica);
        }
        let (replicas, unused) = (past.len(), past.values().filter(|past| past.iterations == 0).count());
        let mut deeds = Deeds { replicas, unused, ..Deeds::default() };
        for past in past.into_values() {
            deeds.iterations += past.iterations;
            deeds.most_preempted = deeds.most_preempted.max(past.most_preempted);
            deeds.beyond = deeds.beyond.and(past.beyond);
            deeds.findings.extend(past.findings);
            deeds.operations.extend(past.operations);
        }
        deeds
    }
}

impl Past {
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
