//! SLAI: decodes no sooner than their deadlines ask for (bari2025 §6).
//!
//! A decode's last schedulable time is C = e + TBT − δ · t̄ (8): e the end of the last batch that served its request, TBT the
//! request's, δ the offset, t̄ the mean length of the iterations so far. δ · t̄ is common to all, so the order by C is the
//! order by deadline e + TBT, which stands still while a request is left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter::once;
use std::ops::Bound;

use super::roster::{Lists, insert_by_arrival};
use super::{DynamicOffset, Notice, Offset, Queue, Scheduler};
use crate::clock::{Instant, SECOND, Span, attoseconds};
use crate::error::{Error, Result};
use crate::kv::UNLIMITED;
use crate::plan::{Hold, Limit, Limits, Plan, Preemption};
use crate::request::{Requests, Slot};
use crate::timing::Pace;

/// Critical decodes, then prompts, then the other decodes.
#[derive(Debug)]
pub(super) struct Slai {
    limits: Limits,
    max_decodes: u64,
    margin: Margin,
    lists: Lists,
    /// Groups of the standing decodes: ready requests with TBTs alike that were last served by the same batch.
    cohorts: Vec<Cohort>,
    /// All other ready requests; they are not among the standing decodes, and nobody's cohort.
    alone: Cohort,
    /// Whom the present plan preempted.
    victims: Vec<Slot>,
    watch: Option<Watch>,
}

/// The place of a decode in the order: its deadline e + TBT, then its id.
type Key = (Instant, u32);

/// Nobody's place is behind this one.
const LAST: Key = (Instant::NEVER, u32::MAX);

/// The decodes up to a place in the order.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    last: Key,
    count: u64,
    /// Is there no place for some of those that were asked for?
    is_cut: bool,
    /// Those of them that are not in a cohort that takes part as a whole, and the blocks that these take.
    rows: u64,
    blocks: u64,
}

/// What prompts do to the budget.
#[derive(Clone, Copy, Debug)]
struct Prompts {
    /// What they leave of it.
    left: u64,
    /// For how many iterations their chunks stay as they are.
    lasts: u64,
}

impl Prompts {
    fn compute(&mut self, slot: Slot, plan: &mut Plan) -> Result<()> {
        let owed = plan.requests().owed(slot);
        let tokens = owed.min(self.left);
        self.left -= tokens;
        self.lasts = if tokens == owed { 1 } else { self.lasts.min((owed - 1) / tokens) };
        plan.chunk(slot, tokens)
    }
}

impl Slai {
    pub(super) fn new(limits: Limits, max_decodes: u64, offset: Offset, queue: Queue) -> Result<Slai> {
        Ok(Slai {
            limits,
            max_decodes,
            margin: Margin::new(offset)?,
            lists: Lists::new(queue),
            cohorts: Vec::new(),
            alone: Cohort::default(),
            victims: Vec::new(),
            watch: None,
        })
    }

    fn ready(&self) -> impl Iterator<Item = &Cohort> {
        self.cohorts.iter().chain(once(&self.alone))
    }

    /// Brings every ready request's e up to date, and lets all of them rest. A plan is made at the very end of the batch
    /// before it, so this is the e of all whom that batch served.
    fn gather(&mut self, plan: &mut Plan) -> Result<()> {
        let now = plan.now();
        for (group, cohort) in self.cohorts.iter_mut().enumerate() {
            if std::mem::take(&mut cohort.takes_part) {
                cohort.end = now;
            }
            plan.talk_about(group);
            plan.rest_decodes(true);
        }
        for place in 0..self.lists.idle.len() {
            let slot = self.lists.idle[place];
            let (tbt, id) = member(slot, plan.requests());
            let group = self.group(tbt);
            let cohort = &mut self.cohorts[group];
            if cohort.members.is_empty() {
                cohort.end = now;
            }
            if cohort.deadline(tbt) == later(now, tbt) {
                plan.talk_about(group);
                plan.rest_decodes(true);
                plan.decode(slot)?;
                cohort.members.insert((tbt, id), slot);
            } else {
                self.alone.members.insert((Span(later(now, tbt).0), id), slot);
            }
        }
        self.lists.idle.clear();
        Ok(())
    }

    /// The group for a TBT: one for all with the same three leading bits, so that there are few, and two classes seldom
    /// share one.
    fn group(&mut self, tbt: Span) -> usize {
        let kind = Cohort::kind(tbt);
        self.cohorts.iter().position(|cohort| cohort.kind == kind).unwrap_or_else(|| {
            self.cohorts.push(Cohort { kind, ..Cohort::default() });
            self.cohorts.len() - 1
        })
    }

    /// The first `most` decodes in order, up to `last`. The cohorts of which all are among them take part.
    fn choose(&self, mut last: Key, most: u64, plan: &mut Plan) -> Chosen {
        let mut count = self.ready().map(|cohort| cohort.count_up_to(last)).sum::<usize>() as u64;
        let is_cut = count > most;
        if is_cut {
            let mut keys: Vec<Key> = self.ready().flat_map(|cohort| cohort.up_to(last)).map(|(key, _)| key).collect();
            last = *keys.select_nth_unstable(most as usize - 1).1;
            count = most;
        }
        let mut chosen = Chosen { last, count, is_cut, rows: 0, blocks: 0 };
        for (group, cohort) in self.ready().enumerate() {
            let is_whole = group < self.cohorts.len() && cohort.last() <= last;
            if group < self.cohorts.len() {
                plan.talk_about(group);
                plan.rest_decodes(!is_whole);
            }
            if !is_whole && cohort.first() <= last {
                for (_, slot) in cohort.up_to(last) {
                    chosen.rows += 1;
                    chosen.blocks += plan.new_blocks(slot, 1);
                }
            }
        }
        chosen
    }

    /// The same; decodes that find no block make room for themselves.
    fn place(&mut self, last: Key, most: u64, plan: &mut Plan) -> Result<Chosen> {
        let before = self.victims.len();
        let mut chosen = self.choose(last, most, plan);
        while let Some(victim) = self.victim(chosen, plan) {
            plan.preempt(victim, Preemption::Recompute)?;
            self.take_out(victim, plan.requests());
            self.victims.push(victim);
            chosen = self.choose(last, most, plan);
        }
        if self.victims.len() > before {
            // All victims of one plan wait in the order in which they arrived.
            let requests = plan.requests();
            self.victims.sort_unstable_by_key(|&victim| Reverse(requests.at(victim).order()));
            for &victim in &self.victims {
                self.lists.queue.remove(victim, requests);
                self.lists.queue.push_victim(victim, requests);
            }
        }
        Ok(chosen)
    }

    /// Who goes, if the chosen lack blocks: the latest arrival that is not placed before the first of them that finds none,
    /// and that one itself last.
    fn victim(&self, chosen: Chosen, plan: &Plan) -> Option<Slot> {
        let mut lacking = chosen.blocks as i64 - plan.free_blocks();
        if lacking <= 0 {
            return None;
        }
        // It is the first, from the end of the order, with which those behind it take all that is lacking.
        let mut ends: Vec<_> = self.ready().map(|cohort| cohort.up_to(chosen.last).rev().peekable()).collect();
        let mut lacks = None;
        while lacking > 0 {
            let place = (0..ends.len()).max_by_key(|&place| ends[place].peek().map(|&(key, _)| key))?;
            let (key, slot) = ends[place].next()?;
            lacking -= plan.new_blocks(slot, 1) as i64;
            lacks = Some((key, slot));
        }
        let (key, slot) = lacks?;
        let requests = plan.requests();
        let stays = |&other: &Slot| {
            let comes_before = || self.key(other, requests).is_some_and(|of_other| of_other < key);
            other == slot || requests.at(other).is_placed() || comes_before()
        };
        let mut latest = self.lists.running.last();
        while let Some(other) = latest.filter(stays) {
            latest = self.lists.running.before(other);
        }
        Some(latest.unwrap_or(slot))
    }

    /// The place of a request in the order, if it is ready.
    fn key(&self, slot: Slot, requests: &Requests) -> Option<Key> {
        let member = member(slot, requests);
        match self.cohorts.iter().find(|cohort| cohort.members.contains_key(&member)) {
            Some(cohort) => Some(cohort.key(member)),
            None => self.alone.up_to(LAST).find(|&(_, other)| other == slot).map(|(key, _)| key),
        }
    }

    /// A request is admitted no more.
    fn take_out(&mut self, slot: Slot, requests: &Requests) {
        self.leave_cohort(slot, requests);
        self.alone.members.retain(|_, other| *other != slot);
        self.lists.take_out(slot);
    }

    fn leave_cohort(&mut self, slot: Slot, requests: &Requests) {
        let member = member(slot, requests);
        let kind = Cohort::kind(member.0);
        if let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.kind == kind) {
            cohort.members.remove(&member);
        }
    }

    /// Computes prompts: unfinished ones, then new ones from the queue, each cut to the budget that the chosen leave.
    fn prefill(&mut self, chosen: Chosen, plan: &mut Plan) -> Result<Prompts> {
        let mut prompts = Prompts { left: plan.budget_left() - chosen.rows, lasts: u64::MAX };
        for slot in self.lists.prefills.iter() {
            if prompts.left == 0 {
                break;
            }
            prompts.compute(slot, plan)?;
        }
        while let Some(slot) = self.lists.queue.head() {
            if prompts.left == 0 || self.victims.contains(&slot) {
                break;
            }
            let known = plan.requests().known(slot);
            if !plan.has_room(plan.blocks(plan.requests().until_next_token(slot)), chosen.blocks) {
                break;
            }
            plan.admit(slot, known)?;
            let is_cut = known > prompts.left;
            prompts.compute(slot, plan)?;
            self.lists.queue.remove(slot, plan.requests());
            insert_by_arrival(&mut self.lists.running, slot, plan.requests());
            if is_cut {
                insert_by_arrival(&mut self.lists.prefills, slot, plan.requests());
            }
        }
        Ok(prompts)
    }

    /// Puts the decodes up to `last` into the batch, and nobody else. Where a cohort is divided, its smaller part leaves it.
    fn decode(&mut self, last: Key, plan: &mut Plan) -> Result<()> {
        let mut rows = Vec::new();
        for (group, cohort) in self.cohorts.iter_mut().enumerate() {
            let (chosen, all) = (cohort.count_up_to(last), cohort.members.len());
            cohort.takes_part = 2 * chosen > all;
            plan.talk_about(group);
            plan.rest_decodes(!cohort.takes_part);
            if chosen == 0 || chosen == all {
                continue;
            }
            let leaves = |&(key, _): &(Key, Slot)| (key > last) == cohort.takes_part;
            let leaving: Vec<(Key, Slot)> = cohort.up_to(LAST).filter(leaves).collect();
            for ((deadline, id), slot) in leaving {
                plan.pause(slot)?;
                cohort.members.remove(&member(slot, plan.requests()));
                if cohort.takes_part {
                    self.alone.members.insert((Span(deadline.0), id), slot);
                } else {
                    rows.push(slot);
                }
            }
        }
        while let Some(first) = self.alone.members.first_entry() {
            let &(deadline, id) = first.key();
            if (Instant(deadline.0), id) > last {
                break;
            }
            let slot = first.remove();
            let member = member(slot, plan.requests());
            let group = self.group(member.0);
            let cohort = &mut self.cohorts[group];
            if cohort.takes_part || cohort.members.is_empty() {
                cohort.takes_part = true;
                cohort.members.insert(member, slot);
                plan.talk_about(group);
                plan.rest_decodes(false);
                plan.decode(slot)?;
            } else {
                rows.push(slot);
            }
        }
        // Whose cohort rests decodes by itself, for this one iteration, and is told to be ready again.
        rows.into_iter().try_for_each(|slot| plan.chunk(slot, 1))
    }

    /// Says for how long the plan holds. If critical decodes and prompts used the budget up, the critical ones must stay the
    /// same, and arrivals wait. If not, nothing is left to prefill, and it only matters who comes first in the order: always
    /// the same if all decode, or those who are left out have no deadline.
    fn hold(&mut self, chosen: Chosen, prompts: Prompts, plan: &mut Plan) {
        let uses_budget_up = prompts.left == 0;
        let left_out = self.ready().filter(|cohort| !cohort.takes_part);
        let deadline = left_out.map(|cohort| cohort.first().0).min().unwrap_or(Instant::NEVER);
        let is_refused = plan.refused() == Some(Limit::Blocks);
        // With more critical decodes the queue might not be asked any more, and not be refused.
        let may_not_ask = is_refused && chosen.count == self.limits.token_budget;
        let changes = if uses_budget_up { chosen.is_cut } else { deadline < Instant::NEVER || may_not_ask };
        if changes || prompts.lasts == 1 || plan.has_preempted() {
            return;
        }
        let arrivals_wait =
            uses_budget_up || plan.seats_left() == 0 || (is_refused && !self.lists.queue.may_be_overtaken());
        plan.hold(if arrivals_wait { Hold::THROUGH_ARRIVALS } else { Hold::UNTIL_ARRIVAL });
        if uses_budget_up && (chosen.count > 0 || deadline < Instant::NEVER) {
            let inside = self.cohorts.iter().filter(|cohort| cohort.takes_part);
            let tbts = inside.filter_map(|cohort| cohort.members.last_key_value()).map(|(&(tbt, _), _)| tbt);
            let (offset, lasts) = self.margin.offset_after(chosen.count, plan);
            self.watch = Some(Watch {
                start: plan.now(),
                iterations: plan.iterations(),
                busy: plan.busy(),
                offset,
                lasts: lasts.min(prompts.lasts),
                longest_tbt: tbts.max().unwrap_or(Span::ZERO),
                deadline,
            });
        }
    }
}

impl Scheduler for Slai {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Left(slot) => self.leave_cohort(slot, requests),
            Notice::Preempted(slot) => self.take_out(slot, requests),
            Notice::Arrived(_) | Notice::Ready(_) => {}
        }
        self.lists.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.victims.clear();
        self.watch = None;
        self.gather(plan)?;
        let most = self.max_decodes.min(self.limits.token_budget);
        // Critical decodes come before the prompts; without any, the order of the decodes is the same.
        let is_contested = !self.lists.prefills.is_empty() || !self.lists.queue.is_empty();
        let ripe = if is_contested { self.margin.ripe(plan) } else { None };
        let mut chosen = Chosen { last: (Instant::ZERO, 0), count: 0, is_cut: false, rows: 0, blocks: 0 };
        if let Some(ripe) = ripe {
            chosen = self.place((ripe, u32::MAX), most, plan)?;
        }
        let prompts = self.prefill(chosen, plan)?;
        if prompts.left > 0 {
            chosen = self.place(LAST, self.max_decodes.min(chosen.count + prompts.left), plan)?;
        }
        self.decode(chosen.last, plan)?;
        self.hold(chosen, prompts, plan);
        Ok(())
    }

    fn holds(&self, pace: &Pace) -> u64 {
        self.watch.as_ref().map_or(u64::MAX, |watch| watch.holds(pace))
    }
}

/// What stands for a request in its cohort.
fn member(slot: Slot, requests: &Requests) -> (Span, u32) {
    let arrival = &requests.at(slot).arrival;
    (arrival.tbt_slo, arrival.id)
}

fn later(instant: Instant, span: Span) -> Instant {
    Instant(instant.0.saturating_add(span.0))
}

/// Ready requests with the same e, in order.
#[derive(Debug, Default)]
struct Cohort {
    /// What their TBTs have in common.
    kind: u32,
    /// Their e. For those who are alone it is 0, and the deadline stands in the place of the TBT.
    end: Instant,
    /// By TBT and id.
    members: BTreeMap<(Span, u32), Slot>,
    /// Is it in the batch?
    takes_part: bool,
}

impl Cohort {
    /// The three leading bits of a TBT, and how many follow.
    fn kind(tbt: Span) -> u32 {
        let places = (tbt.0 | 4).ilog2();
        4 * places + (tbt.0 >> (places - 2)) as u32 % 4
    }

    fn deadline(&self, tbt: Span) -> Instant {
        later(self.end, tbt)
    }

    fn key(&self, (tbt, id): (Span, u32)) -> Key {
        (self.deadline(tbt), id)
    }

    /// The place of the first in the order, behind everybody's if there is none.
    fn first(&self) -> Key {
        self.members.first_key_value().map_or(LAST, |(&member, _)| self.key(member))
    }

    /// The place of the last.
    fn last(&self) -> Key {
        self.members.last_key_value().map_or((Instant::ZERO, 0), |(&member, _)| self.key(member))
    }

    /// The members up to a place in the order.
    fn up_to(&self, (deadline, id): Key) -> impl DoubleEndedIterator<Item = (Key, Slot)> {
        let last = match deadline.0.checked_sub(self.end.0) {
            _ if deadline == Instant::NEVER => Bound::Included((Span::NEVER, id)),
            Some(tbt) => Bound::Included((Span(tbt), id)),
            None => Bound::Excluded((Span::ZERO, 0)),
        };
        self.members.range((Bound::Unbounded, last)).map(|(&member, &slot)| (self.key(member), slot))
    }

    fn count_up_to(&self, last: Key) -> usize {
        if self.last() <= last {
            self.members.len()
        } else if self.first() > last {
            0
        } else {
            self.up_to(last).count()
        }
    }
}

/// How long before its deadline is a decode critical?
#[derive(Debug)]
struct Margin {
    /// δ in units of 1e-18 while few blocks are in use, and from `share` of them on.
    low: u128,
    high: u128,
    /// In units of 1e-18; `None`: δ does not depend on it.
    share: Option<u128>,
}

impl Margin {
    fn new(offset: Offset) -> Result<Margin> {
        let read = |offset: f64, field: &str| {
            if !(offset.is_finite() && offset > 0.0) {
                return Err(Error::config(field, format!("{offset}: an offset is finite and above 0")));
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
                    return Err(Error::config("offset.kv_share", format!("{kv_share}: a share is from 0 to 1")));
                }
                Ok(Margin {
                    low: read(low, "offset.low")?,
                    high: read(high, "offset.high")?,
                    share: Some(attoseconds(kv_share, "offset.kv_share")?),
                })
            }
        }
    }

    /// The blocks in use from which the high offset applies, less those in use; at most 0 if it does.
    fn blocks_to_high(&self, plan: &Plan) -> i64 {
        match self.share {
            // A share is at most 1e18 and blocks are below 2^62, so the product fits.
            Some(share) if plan.all_blocks() < UNLIMITED => {
                let free_from = u128::from(plan.all_blocks()) * (SECOND - share) / SECOND;
                plan.free_blocks() - free_from as i64
            }
            _ => i64::MAX,
        }
    }

    /// Who has a deadline up to this instant is critical now: now ≥ C. Nobody is before any iteration.
    fn ripe(&self, plan: &Plan) -> Option<Instant> {
        let mean = plan.busy().0.checked_div(u128::from(plan.iterations()))?;
        let offset = if self.blocks_to_high(plan) > 0 { self.low } else { self.high };
        // No TBT at all is never critical.
        Some(later(plan.now(), Span(product(offset, mean))).min(Instant(Instant::NEVER.0 - 1)))
    }

    /// The offset in the plans after this one, as it stands, with as many decodes as it has; and for how many iterations,
    /// this one included, that is certain.
    fn offset_after(&self, decodes: u64, plan: &Plan) -> (u128, u64) {
        let blocks = self.blocks_to_high(plan);
        if blocks <= 0 {
            return (self.high, u64::MAX);
        }
        // A decode takes a block at most in each iteration. The next plan finds what this one took.
        let iterations = (blocks as u64 - 1).checked_div(decodes);
        (self.low, iterations.map_or(u64::MAX, |_| u64::MAX))
    }
}

/// ⌊offset · length⌋, the offset in units of 1e-18; the largest number if that is none.
fn product(offset: u128, length: u128) -> u128 {
    let (whole, part) = (offset / SECOND, offset % SECOND);
    let of_part = part * (length / SECOND) + part * (length % SECOND) / SECOND;
    whole.saturating_mul(length).saturating_add(of_part)
}

/// When do other decodes than those in the batch become critical?
#[derive(Debug)]
struct Watch {
    /// Begin of the first iteration, and the replica's iterations and their length before it.
    start: Instant,
    iterations: u64,
    busy: Span,
    /// δ in the plans to come.
    offset: u128,
    /// For how many iterations the plan holds otherwise.
    lasts: u64,
    /// The longest TBT in the batch.
    longest_tbt: Span,
    /// The earliest deadline of who is left out.
    deadline: Instant,
}

impl Watch {
    /// A number of iterations for which the plan certainly holds.
    fn holds(&self, pace: &Pace) -> u64 {
        let most = self.lasts.min(pace.holds);
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

    /// Are the critical decodes certainly the same in the plans after 1 … count − 1 iterations? Those in the batch have
    /// e = now then.
    fn holds_for(&self, count: u64, pace: &Pace) -> Result<bool> {
        let over = count - 1;
        let last_plan = self.start.after(pace.total(over)?)?;
        // After j iterations of at least `shortest` the mean is at least (busy + j · shortest) / (iterations + j), which
        // rises or falls with j throughout; so it is least at an end. The same holds from above.
        let (first, last) = (pace.first, pace.length(over - 1)?);
        let (shortest, longest) = (first.min(last), first.max(last));
        let mean = |over: u64, length: Span| -> Result<u128> {
            let busy = self.busy.plus(length.times(u128::from(over))?)?;
            Ok(busy.0 / u128::from(self.iterations + over))
        };
        let least = mean(1, shortest)?.min(mean(over, shortest)?);
        let greatest = mean(1, longest)?.max(mean(over, longest)?);
        let stay = product(self.offset, least) >= self.longest_tbt.0;
        let ripe = later(last_plan, Span(product(self.offset, greatest)));
        Ok(stay && (ripe < self.deadline || self.deadline == Instant::NEVER))
    }
}
