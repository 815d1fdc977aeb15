//! Critical decodes, and how long the set of them stays the same.

use serde::{Deserialize, Serialize};

use crate::clock::{Instant, SECOND, Span, attoseconds};
use crate::dice::{Dice, Sample};
use crate::error::{Error, Result};
use crate::kv::UNLIMITED;
use crate::plan::Plan;
use crate::timing::Pace;

/// Offset: how many mean batch times before its deadline a decode becomes critical.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Offset {
    /// Constant.
    Fixed(f64),
    /// Depends on the utilization of the KV cache.
    Dynamic(DynamicOffset),
}

/// Two offsets, and the share of used blocks from which the high one applies.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum DynamicOffset {
    /// The only kind.
    DynamicOffset { low: f64, high: f64, kv_share: f64 },
}

impl Sample for Offset {
    fn sample(dice: &mut Dice) -> Offset {
        let (low, high) = (dice.below(6) as f64 / 2.0 + 0.5, 1.0 + dice.below(20) as f64);
        let kv_share = dice.one_of(&[0.5, 0.6, 0.7, 0.8, 0.9]);
        let dynamic = Offset::Dynamic(DynamicOffset::DynamicOffset { low, high, kv_share });
        dice.one_of(&[Offset::Fixed(high / 2.0 - 0.25), dynamic])
    }
}

/// The margin before a deadline.
#[derive(Debug)]
pub(super) struct Margin {
    /// δ in units of 1e-18: below `share` of the blocks in use, and from it on.
    pub(super) low: u128,
    pub(super) high: u128,
    /// In units of 1e-18; `None`: δ is constant.
    pub(super) share: Option<u128>,
}

impl Margin {
    pub(super) fn new(offset: Offset) -> Result<Margin> {
        let read = |offset: f64, field: &str| {
            if !(offset.is_finite() && offset > 0.0) {
                return Err(Error::config(field, format!("must be finite and above 0, got {offset}")));
            }
            attoseconds(offset, field)
        };
        match offset {
            Offset::Fixed(offset) => {
                let offset = read(offset, "offset")?;
                Ok(Margin { low: offset, high: offset, share: None })
            }
            Offset::Dynamic(DynamicOffset::DynamicOffset { low, high, kv_share }) => {
                if !(0.0..=1.0).contains(&kv_share) {
                    return Err(Error::config("offset.kv_share", format!("must be from 0 to 1, got {kv_share}")));
                }
                Ok(Margin {
                    low: read(low, "offset.low")?,
                    high: read(high, "offset.high")?,
                    share: Some(attoseconds(kv_share, "offset.kv_share")?),
                })
            }
        }
    }

    /// Number of blocks to be used before the high offset applies; at most 0 if it applies.
    pub(super) fn blocks_to_high(&self, plan: &Plan) -> i64 {
        match self.share {
            // A share is at most 1e18 and blocks are below 2^62, so the product fits.
            Some(share) if plan.all_blocks() < UNLIMITED => {
                let free_from = u128::from(plan.all_blocks()) * (SECOND - share) / SECOND;
                plan.free_blocks() - free_from as i64
            }
            _ => i64::MAX,
        }
    }

    /// Decodes with a deadline up to this instant are critical now: now ≥ C. `None` before the first iteration.
    pub(super) fn ripe(&self, plan: &Plan) -> Option<Instant> {
        let mean = plan.busy().0.checked_div(u128::from(plan.iterations()))?;
        let offset = if self.blocks_to_high(plan) > 0 { self.low } else { self.high };
        // A request without an ITL objective is never critical.
        Some(later(plan.now(), Span(product(offset, mean))).min(Instant(Instant::NEVER.0 - 1)))
    }

    /// δ of the next plans with this number of decodes, and the number of iterations, including this one, for which
    /// it is certain.
    pub(super) fn offset_after(&self, decodes: u64, plan: &Plan) -> (u128, u64) {
        let blocks = self.blocks_to_high(plan);
        if blocks <= 0 {
            return (self.high, u64::MAX);
        }
        // A decode takes at most one block per iteration. The next plan sees the blocks of this one.
        let iterations = (blocks as u64 - 1).checked_div(decodes);
        (self.low, iterations.map_or(u64::MAX, |iterations| iterations.saturating_add(2)))
    }
}

/// ⌊offset · length⌋, with the offset in units of 1e-18; saturates.
fn product(offset: u128, length: u128) -> u128 {
    let (whole, part) = (offset / SECOND, offset % SECOND);
    let of_part = part * (length / SECOND) + part * (length % SECOND) / SECOND;
    whole.saturating_mul(length).saturating_add(of_part)
}

/// Upper bound of a plan's iterations: no request has as many, and sums fit 64 bits.
const MOST_ITERATIONS: u64 = 1 << 40;

/// Determines when the set of critical decodes changes.
#[derive(Debug)]
pub(super) struct DeadlineWatch {
    /// Start of the first iteration, and the replica's number and total length of iterations before it.
    pub(super) start: Instant,
    pub(super) iterations: u64,
    pub(super) busy: Span,
    /// δ of the next plans.
    pub(super) offset: u128,
    /// Number of iterations that the plan holds otherwise.
    pub(super) lasts: u64,
    /// The longest ITL in the batch.
    pub(super) longest_itl: Span,
    /// The earliest deadline of the decodes outside the batch.
    pub(super) deadline: Instant,
}

impl DeadlineWatch {
    /// A number of iterations for which the plan certainly holds.
    pub(super) fn holds(&self, pace: &Pace) -> u64 {
        let most = self.lasts.min(pace.holds).min(MOST_ITERATIONS);
        let holds = |count: u64| self.holds_for(count, pace).unwrap_or(false);
        let (mut good, mut bad) = (1, 2);
        while bad <= most && holds(bad) {
            (good, bad) = (bad, bad.saturating_mul(2));
        }
        bad = bad.min(most.saturating_add(1));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if holds(middle) { good = middle } else { bad = middle }
        }
        good
    }

    /// Whether the critical decodes certainly stay the same in the plans after 1 … count − 1 iterations. For decodes
    /// in the batch, e is `now` then.
    pub(super) fn holds_for(&self, count: u64, pace: &Pace) -> Result<bool> {
        let over = count - 1;
        let last_plan = self.start.after(pace.total(over)?)?;
        // After j iterations of at least `shortest`, the mean is at least (busy + j · shortest) / (iterations + j).
        // This is monotone in j, so its minimum is at an end of the range. The upper bound is analogous.
        let (first, last) = (pace.first, pace.length(over - 1)?);
        let (shortest, longest) = (first.min(last), first.max(last));
        let mean = |over: u64, length: Span| -> Result<u128> {
            let busy = self.busy.plus(length.times(u128::from(over))?)?;
            Ok(busy.0 / u128::from(self.iterations + over))
        };
        let least = mean(1, shortest)?.min(mean(over, shortest)?);
        let greatest = mean(1, longest)?.max(mean(over, longest)?);
        let stay = product(self.offset, least) >= self.longest_itl.0;
        let ripe = later(last_plan, Span(product(self.offset, greatest)));
        Ok(stay && (ripe < self.deadline || self.deadline == Instant::NEVER))
    }
}

/// Saturates at the end of time.
pub(super) fn later(instant: Instant, span: Span) -> Instant {
    Instant(instant.0.saturating_add(span.0))
}
