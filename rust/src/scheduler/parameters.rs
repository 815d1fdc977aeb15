//! What descriptions of policies have in common.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Queue, Scheduler};
use crate::clock::{Span, attoseconds};
use crate::dice::{Dice, Sample};
use crate::error::{Error, Result};
use crate::plan::{Limits, Preemption};
use crate::workload::Class;

/// The parameters of a policy, as a user describes them: each policy's file implements this for its own.
pub(super) trait SchedulerParameters {
    /// The scheduler itself, for a workload with these classes; `None` only tests the parameters.
    fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>>;

    /// Does it load tokens up to its budget whenever it can? Such a policy can serve one class of several.
    fn fills_a_budget(&self) -> bool {
        false
    }

    /// Does it bring swapped requests back, even when no budget is left?
    fn swaps(&self) -> bool {
        false
    }
}

/// The order in which waiting requests are served; equal ones by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOrder {
    /// First come, first served.
    Fcfs,
    /// Shortest prompt first.
    Spf,
    /// Fewest tokens to load first, prompt and output, as they were on arrival.
    Srf,
    /// Longest prompt first.
    Lpf,
    /// By the workload's `queue_key`, lowest first.
    #[serde(rename = "ByKey")]
    ByKey,
}

impl QueueOrder {
    /// An empty queue in this order; requests of the class `first` go before all others.
    pub(super) fn queue(self, first: Option<u32>) -> Queue {
        match (self, first) {
            (QueueOrder::Fcfs, None) => Queue::fcfs(),
            (QueueOrder::Fcfs, _) => Queue::by(|_| 0, first),
            (QueueOrder::Spf, _) => Queue::by(|arrival| i64::from(arrival.prompt_tokens), first),
            (QueueOrder::Srf, _) => {
                Queue::by(|arrival| i64::from(arrival.prompt_tokens) + i64::from(arrival.output_tokens), first)
            }
            (QueueOrder::Lpf, _) => Queue::by(|arrival| -i64::from(arrival.prompt_tokens), first),
            (QueueOrder::ByKey, _) => Queue::by(|arrival| arrival.queue_key, first),
        }
    }
}

impl Sample for QueueOrder {
    fn sample(dice: &mut Dice) -> QueueOrder {
        use QueueOrder::{ByKey, Fcfs, Lpf, Spf, Srf};
        dice.one_of(&[Fcfs, Fcfs, Spf, Srf, Lpf, ByKey])
    }
}

/// Rule 12's preemptions as a user describes them; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum PreemptionKind {
    /// Forget the context, compute it again.
    Recompute {},
    /// Forget the context and the emitted tokens, begin again.
    Restart {},
    /// Keep the context on the host.
    Swap {
        /// Per token of context, each way.
        per_token: f64,
        /// For each move.
        base: f64,
    },
}

impl PreemptionKind {
    pub(super) fn build(self) -> Result<Preemption> {
        Ok(match self {
            PreemptionKind::Recompute {} => Preemption::Recompute,
            PreemptionKind::Restart {} => Preemption::Restart,
            PreemptionKind::Swap { per_token, base } => Preemption::Swap {
                per_token: Span(attoseconds(per_token, "preemption.per_token")?),
                base: Span(attoseconds(base, "preemption.base")?),
            },
        })
    }
}

impl Sample for PreemptionKind {
    fn sample(dice: &mut Dice) -> PreemptionKind {
        // A move that takes time ends its stretch; one that takes none does not.
        let swap = PreemptionKind::Swap { per_token: dice.one_of(&[0.0, 2e-6]), base: dice.one_of(&[0.0, 1e-3]) };
        dice.one_of(&[PreemptionKind::Recompute {}, PreemptionKind::Restart {}, swap, swap])
    }
}

/// A share of the blocks for [`super::Watermark`].
pub(super) fn sample_watermark(dice: &mut Dice) -> f64 {
    dice.one_of(&[0.0, 0.0, 0.01, 0.1])
}

/// Tests that a count is one.
pub(super) fn count(field: &str, value: u64) -> Result<u64> {
    if (1..=Limits::NONE).contains(&value) {
        return Ok(value);
    }
    Err(Error::config(field, format!("{value}: it must be at least 1 and at most 2^40")))
}

/// Limits with a budget and a cap.
pub(super) fn limits(token_budget: u64, max_seqs: u64) -> Result<Limits> {
    let (token_budget, max_seqs) = (count("token_budget", token_budget)?, count("max_seqs", max_seqs)?);
    Ok(Limits { token_budget, max_seqs, frees_with_batch: false })
}

/// The classes of a workload by name. Where no workload is known yet, any name will do.
pub(super) struct ClassNames<'a> {
    classes: Option<&'a [Class]>,
    names: HashSet<&'a str>,
}

impl ClassNames<'_> {
    pub(super) fn new(classes: Option<&[Class]>) -> ClassNames<'_> {
        let names = classes.unwrap_or_default().iter().map(|class| class.name.as_str()).collect();
        ClassNames { classes, names }
    }

    /// Is there a class of this name?
    pub(super) fn check(&self, field: &str, name: &str) -> Result<()> {
        if self.names.contains(name) { Ok(()) } else { class_code(field, name, self.classes).map(|_| ()) }
    }
}

/// The code of a class of the workload. Where no workload is known yet, any name will do.
pub(super) fn class_code(field: &str, name: &str, classes: Option<&[Class]>) -> Result<u32> {
    let Some(classes) = classes else { return Ok(0) };
    let code = classes.iter().position(|class| class.name == name);
    code.map(|code| code as u32).ok_or_else(|| {
        let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
        Error::config(field, format!("no request has the class {name:?}; the workload has {}", names.join(", ")))
    })
}
