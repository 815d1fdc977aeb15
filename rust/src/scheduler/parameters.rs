//! Parameters that several policies share.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Queue, Scheduler};
use crate::clock::{Span, attoseconds};
use crate::dice::{Dice, Sample};
use crate::error::{Error, Result};
use crate::plan::{Limits, Preemption};
use crate::workload::Class;

/// The parameters of a policy; each policy's file implements this.
pub(super) trait SchedulerParameters {
    /// Builds the scheduler for a workload with these classes. `None` only checks the parameters.
    fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>>;

    /// Whether the policy loads tokens up to its budget whenever it can. Such a policy can serve one class of
    /// several.
    fn fills_a_budget(&self) -> bool {
        false
    }

    /// Whether the policy swaps requests in even when no budget is left.
    fn swaps(&self) -> bool {
        false
    }
}

/// The order of waiting requests; ties by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOrder {
    /// First come, first served.
    Fcfs,
    /// Shortest prompt first.
    Spf,
    /// Fewest tokens first: prompt and output at arrival.
    Srf,
    /// Longest prompt first.
    Lpf,
    /// By the workload's `queue_key`, lowest first.
    #[serde(rename = "ByKey")]
    ByKey,
}

impl QueueOrder {
    /// An empty queue in this order. Requests of the class `first` precede all others.
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

/// Preemption (R12); times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum PreemptionKind {
    /// Discard the context and compute it again.
    Recompute {},
    /// Discard the context and the emitted tokens, and restart.
    Restart {},
    /// Move the context to the host.
    Swap {
        /// Per token of context and move.
        per_token: f64,
        /// Per move.
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
        // A move that takes time ends its stretch. A move without cost does not.
        let swap = PreemptionKind::Swap { per_token: dice.one_of(&[0.0, 2e-6]), base: dice.one_of(&[0.0, 1e-3]) };
        dice.one_of(&[PreemptionKind::Recompute {}, PreemptionKind::Restart {}, swap, swap])
    }
}

/// A random share for [`super::Watermark`].
pub(super) fn sample_watermark(dice: &mut Dice) -> f64 {
    dice.one_of(&[0.0, 0.0, 0.01, 0.1])
}

/// Checks that a count is positive.
pub(super) fn count(field: &str, value: u64) -> Result<u64> {
    if (1..=Limits::NONE).contains(&value) {
        return Ok(value);
    }
    Err(Error::config(field, format!("must be from 1 to 2^40, got {value}")))
}

/// Limits with a token budget and a sequence limit.
pub(super) fn limits(token_budget: u64, max_seqs: u64) -> Result<Limits> {
    let (token_budget, max_seqs) = (count("token_budget", token_budget)?, count("max_seqs", max_seqs)?);
    Ok(Limits { token_budget, max_seqs, frees_with_batch: false })
}

/// The classes of a workload by name. Without a workload, every name is valid.
pub(super) struct ClassNames<'a> {
    classes: Option<&'a [Class]>,
    names: HashSet<&'a str>,
}

impl ClassNames<'_> {
    pub(super) fn new(classes: Option<&[Class]>) -> ClassNames<'_> {
        let names = classes.unwrap_or_default().iter().map(|class| class.name.as_str()).collect();
        ClassNames { classes, names }
    }

    /// Checks that a class of this name exists.
    pub(super) fn check(&self, field: &str, name: &str) -> Result<()> {
        if self.names.contains(name) { Ok(()) } else { class_code(field, name, self.classes).map(|_| ()) }
    }
}

/// The code of a class of the workload. Without a workload, every name is valid.
pub(super) fn class_code(field: &str, name: &str, classes: Option<&[Class]>) -> Result<u32> {
    let Some(classes) = classes else { return Ok(0) };
    let code = classes.iter().position(|class| class.name == name);
    code.map(|code| code as u32).ok_or_else(|| {
        let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
        Error::config(field, format!("must be a class of the workload ({}), got {name:?}", names.join(", ")))
    })
}
