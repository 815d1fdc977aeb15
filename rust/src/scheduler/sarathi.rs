//! Sarathi-Serve: stall-free batches (Agrawal et al. 2024; bari2025 Alg. 4).

use super::roster::Roster;
use super::{Notice, QueueOrder, Scheduler, Watermark};
use crate::error::Result;
use crate::plan::{Limits, Plan, Preemption};
use crate::request::Requests;

/// Decodes first, by arrival, cut to the budget; then unfinished prefills; then new ones, chunked.
#[derive(Debug)]
pub(super) struct Sarathi {
    roster: Roster,
}

impl Sarathi {
    pub(super) fn new(limits: Limits, order: QueueOrder, watermark: Watermark, preemption: Preemption) -> Sarathi {
        Sarathi { roster: Roster::new(limits, watermark, preemption, order.queue(None)) }
    }
}

impl Scheduler for Sarathi {
    fn limits(&self) -> Limits {
        self.roster.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.roster.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let roster = &mut self.roster;
        roster.choose_decodes(u64::MAX, plan)?;
        roster.make_room(plan)?;
        roster.swap_in(plan)?;
        roster.prefill(u64::MAX, plan)?;
        roster.hold(plan);
        Ok(())
    }
}
