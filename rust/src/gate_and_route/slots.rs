//! The slots of all replicas, and the replicas with a free slot for a prefill or a decode.

use super::open_set::OpenSet;

/// The slots of all replicas. With a plan the first replicas are mixed: one slot of each is reserved for prefills,
/// the remaining ones for decodes; solo replicas only decode. Without a plan, every replica takes a prefill and
/// decodes in any slot.
#[derive(Debug)]
pub(super) struct Slots {
    /// Slots per replica: B.
    per_replica: u32,
    /// Replicas that run prefills, if planned: M.
    mixed: Option<u32>,
    prefilling: Vec<bool>,
    decodes: Vec<u32>,
    /// Replicas that can begin a prefill.
    pub(super) for_prefill: OpenSet,
    /// Solo replicas with a free decode slot; without a plan, replicas that run no prefill at the moment.
    pub(super) solo: OpenSet,
    /// Mixed replicas with a free decode slot; without a plan, replicas that run a prefill at the moment.
    pub(super) with_prefill: OpenSet,
}

impl Slots {
    /// Builds the slots, all free.
    pub(super) fn new(replicas: u32, per_replica: u32, mixed: Option<u32>) -> Slots {
        let mut slots = Slots {
            per_replica,
            mixed,
            prefilling: vec![false; replicas as usize],
            decodes: vec![0; replicas as usize],
            for_prefill: OpenSet::new(replicas),
            solo: OpenSet::new(replicas),
            with_prefill: OpenSet::new(replicas),
        };
        for replica in 0..replicas {
            slots.note(replica);
        }
        slots
    }

    pub(super) fn prefill_begins(&mut self, replica: u32) {
        debug_assert!(!self.prefilling[replica as usize], "a replica runs at most one prefill");
        self.prefilling[replica as usize] = true;
        self.note(replica);
    }

    pub(super) fn prefill_ends(&mut self, replica: u32) {
        self.prefilling[replica as usize] = false;
        self.note(replica);
    }

    pub(super) fn decode_begins(&mut self, replica: u32) {
        self.decodes[replica as usize] += 1;
        self.note(replica);
    }

    pub(super) fn decode_ends(&mut self, replica: u32) {
        self.decodes[replica as usize] -= 1;
        self.note(replica);
    }

    /// Updates the sets of a replica.
    fn note(&mut self, replica: u32) {
        let prefilling = self.prefilling[replica as usize];
        let decodes = self.decodes[replica as usize];
        let used = decodes + u32::from(prefilling);
        debug_assert!(used <= self.per_replica, "at most B slots of a replica are in use");
        let has_slot = used < self.per_replica;
        match self.mixed {
            Some(mixed) if replica < mixed => {
                debug_assert!(decodes < self.per_replica, "a mixed replica reserves one slot for prefills");
                self.for_prefill.set(replica, !prefilling);
                self.with_prefill.set(replica, decodes + 1 < self.per_replica);
            }
            Some(_) => self.solo.set(replica, has_slot),
            None => {
                self.for_prefill.set(replica, !prefilling && has_slot);
                self.solo.set(replica, !prefilling && has_slot);
                self.with_prefill.set(replica, prefilling && has_slot);
            }
        }
    }
}
