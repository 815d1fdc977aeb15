//! The work-conserving (Kp, Kd)-FCFS family: li2025 §2.3.

use super::roster::Roster;
use super::{Notice, Queue, Scheduler, Watermark};
use crate::error::Result;
use crate::plan::{Limits, Plan, Preemption};
use crate::request::Requests;

/// The oldest decodes, then the oldest prompts, as many of each as K says, until the budget is full.
#[derive(Debug)]
pub(super) struct KFcfs {
    roster: Roster,
    k_prefill: u64,
    k_decode: u64,
}

impl KFcfs {
    pub(super) fn new(limits: Limits, k_prefill: u64, k_decode: u64) -> KFcfs {
        let roster = Roster::new(limits, Watermark::NONE, Preemption::Recompute, Queue::fcfs());
        KFcfs { roster, k_prefill, k_decode }
    }
}

impl Scheduler for KFcfs {
    fn limits(&self) -> Limits {
        self.roster.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.roster.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.roster.choose_decodes(self.k_decode, plan)?;
        self.roster.make_room(plan)?;
        self.roster.prefill(self.k_prefill, plan)?;
        self.roster.hold(plan);
        Ok(())
    }
}
