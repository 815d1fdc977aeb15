//! SLAI: decodes no sooner than their deadlines ask for (bari2025 §6).
//!
//! A decode's last schedulable time is C = e + TBT − δ · t̄ (8): e the end of the last batch that served its request, TBT the
//! request's, δ the offset, t̄ the mean length of the iterations so far. δ · t̄ is common to all, so the order by C is the
//! order by deadline e + TBT, which stands still while a request is left out.

mod cohort;
mod deadline;

use std::cmp::Reverse;
use std::iter::once;

use self::cohort::{Cohort, Key, LAST, Member};
use self::deadline::{DeadlineWatch, Margin, Offset, later};
use super::prelude::*;
use crate::clock::{Instant, Span};
use crate::timing::Pace;

/// Decodes no sooner than their deadline asks for.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Slai {
    pub token_budget: u64,
    pub max_active: u64,
    pub max_decodes: u64,
    pub offset: Offset,
    pub order: QueueOrder,
    pub class_first: Option<String>,
}

impl SchedulerParameters for Slai {
    fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let max_seqs = count("max_active", self.max_active)?;
        let limits = Limits { max_seqs, ..limits(self.token_budget, 1)? };
        let code = |name: &String| class_code("class_first", name, classes);
        let first = self.class_first.as_ref().map(code).transpose()?;
        Ok(Box::new(SlaiScheduler {
            limits,
            max_decodes: count("max_decodes", self.max_decodes)?,
            margin: Margin::new(self.offset)?,
            lists: Lists::new(self.order.queue(first)),
            cohorts: Vec::new(),
            alone: Cohort::default(),
            victims: Vec::new(),
            keys: Vec::new(),
            rows: Vec::new(),
            watch: None,
        }))
    }
}

impl Sample for Slai {
    fn sample(dice: &mut Dice) -> Slai {
        Slai {
            token_budget: dice.scale.token_budget,
            max_active: dice.scale.max_seqs,
            max_decodes: 1 + dice.below(6),
            offset: Offset::sample(dice),
            order: QueueOrder::sample(dice),
            class_first: dice.one_of(&[None, Some("b".to_owned())]),
        }
    }
}

/// Critical decodes, then prompts, then the other decodes.
#[derive(Debug)]
pub(super) struct SlaiScheduler {
    limits: Limits,
    max_decodes: u64,
    margin: Margin,
    lists: Lists,
    /// Groups of the standing decodes: ready requests with TBTs alike that were last served by the same batch.
    cohorts: Vec<Cohort>,
    /// All other ready requests; they are not among the standing decodes, and in no cohort.
    alone: Cohort,
    /// Requests that the present plan preempted.
    victims: Vec<Place>,
    /// Room to work in: empty between one plan and the next.
    keys: Vec<Key>,
    rows: Vec<Place>,
    watch: Option<DeadlineWatch>,
}

/// The decodes up to a place in the order, of which each cohort keeps its own.
#[derive(Clone, Copy, Debug, Default)]
struct Chosen {
    count: u64,
    /// Is there no place for some of those that were asked for?
    is_cut: bool,
    /// Those of them that are not in a cohort that takes part as a whole.
    rows: u64,
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
    /// The tokens that a request which owes so many computes.
    fn cut(&mut self, owed: u64) -> u64 {
        let tokens = owed.min(self.left);
        self.left -= tokens;
        self.lasts = if tokens == owed { 1 } else { self.lasts.min((owed - 1) / tokens) };
        tokens
    }
}

impl SlaiScheduler {
    fn ready(&self) -> impl Iterator<Item = &Cohort> {
        self.cohorts.iter().chain(once(&self.alone))
    }

    /// Brings every ready request's e up to date, and lets all of them rest. A plan is made at the very end of the batch
    /// before it, so this is the e of all that the batch served.
    fn gather(&mut self, plan: &mut Plan) -> Result<()> {
        let now = plan.now();
        self.alone.chosen = 0;
        for (group, cohort) in self.cohorts.iter_mut().enumerate() {
            cohort.chosen = 0;
            if std::mem::take(&mut cohort.takes_part) {
                cohort.end = now;
            }
            plan.select_group(group);
            plan.rest_decodes(true);
        }
        // Most belong behind all others: the latest arrival, the latest deadline. Those that decoded without their cohort
        // belong before it, the last of them first.
        let mut before_others = std::mem::take(&mut self.rows);
        for index in 0..self.lists.idle.len() {
            let place = self.lists.idle[index];
            if !self.join(place, true, plan)? {
                before_others.push(place);
            }
        }
        self.lists.idle.clear();
        for place in before_others.drain(..).rev() {
            self.join(place, false, plan)?;
        }
        self.rows = before_others;
        Ok(())
    }

    /// A request can decode: it joins the cohort of its TBT if its e is that of the others, or waits alone. Says whether it
    /// did, if it is to join only behind all others.
    fn join(&mut self, place: Place, behind: bool, plan: &mut Plan) -> Result<bool> {
        let (now, member) = (plan.now(), member(place, plan.requests()));
        let (tbt, deadline) = (member.tbt, later(now, member.tbt));
        let group = self.group(tbt);
        let cohort = &mut self.cohorts[group];
        if cohort.members.is_empty() {
            cohort.end = now;
        }
        let is_alike = cohort.deadline(tbt) == deadline;
        let (ready, member) =
            if is_alike { (cohort, member) } else { (&mut self.alone, Member { tbt: Span(deadline.0), ..member }) };
        if behind && !ready.is_behind(&member) {
            return Ok(false);
        }
        ready.insert(member);
        if is_alike {
            plan.select_group(group);
            plan.rest_decodes(true);
            plan.decode(place)?;
        }
        Ok(true)
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
    fn choose(&mut self, last: Key, most: u64, plan: &mut Plan) -> Chosen {
        let mut count = self.choose_up_to(last);
        let is_cut = count > most;
        if is_cut {
            let mut keys = std::mem::take(&mut self.keys);
            for cohort in self.ready() {
                // No more than `most` of one are among the first.
                keys.extend(cohort.chosen_keys().map(|(key, _)| key).take(most as usize));
            }
            let last = *keys.select_nth_unstable(most as usize - 1).1;
            keys.clear();
            self.keys = keys;
            count = self.choose_up_to(last);
        }
        let mut rows = self.alone.chosen as u64;
        for (group, cohort) in self.cohorts.iter().enumerate() {
            let is_whole = cohort.is_whole();
            plan.select_group(group);
            plan.rest_decodes(!is_whole);
            rows += if is_whole { 0 } else { cohort.chosen as u64 };
        }
        Chosen { count, is_cut, rows }
    }

    fn choose_up_to(&mut self, last: Key) -> u64 {
        self.cohorts.iter_mut().chain(once(&mut self.alone)).map(|cohort| cohort.choose(last)).sum::<usize>() as u64
    }

    /// The blocks that the rows take: one each at most, so that most plans need no count of them.
    fn blocks_of_rows(&self, plan: &Plan) -> u64 {
        let divided = self.cohorts.iter().filter(|cohort| !cohort.is_whole()).chain(once(&self.alone));
        divided.flat_map(Cohort::chosen).map(|member| plan.new_blocks(member.place, 1)).sum()
    }

    /// The same; decodes that find no block make room for themselves.
    fn place(&mut self, last: Key, most: u64, plan: &mut Plan) -> Result<Chosen> {
        let before = self.victims.len();
        let mut chosen = self.choose(last, most, plan);
        while let Some(victim) = self.victim(chosen, plan) {
            plan.reserve(self.blocks_of_rows(plan));
            plan.preempt(victim, Preemption::Recompute)?;
            self.take_out(victim, plan.requests());
            self.victims.push(victim);
            chosen = self.choose(last, most, plan);
        }
        if self.victims.len() > before {
            // All victims of one plan wait in the order in which they arrived.
            let requests = plan.requests();
            self.victims.sort_unstable_by_key(|&victim| Reverse(requests.order(victim)));
            for &victim in &self.victims {
                self.lists.queue.remove(victim, requests);
                self.lists.queue.push_victim(victim, requests);
            }
        }
        Ok(chosen)
    }

    /// The victim, if the chosen lack blocks: the latest arrival that is not placed before the first of them that
    /// finds none, and that one itself last.
    fn victim(&self, chosen: Chosen, plan: &Plan) -> Option<Place> {
        let free = plan.free_blocks();
        if chosen.rows as i64 <= free {
            return None;
        }
        let mut lacking = self.blocks_of_rows(plan) as i64 - free;
        if lacking <= 0 {
            return None;
        }
        // It is the first, from the end of the order, with which those behind it take all that is lacking.
        let mut ends: Vec<_> = self.ready().map(|cohort| cohort.chosen_keys().rev().peekable()).collect();
        let mut lacks = None;
        while lacking > 0 {
            let index = (0..ends.len()).max_by_key(|&index| ends[index].peek().map(|&(key, _)| key))?;
            let (key, place) = ends[index].next()?;
            lacking -= plan.new_blocks(place, 1) as i64;
            lacks = Some((key, place));
        }
        let (key, place) = lacks?;
        let requests = plan.requests();
        let stays = |&other: &Place| {
            let comes_before = || self.key(other, requests).is_some_and(|of_other| of_other < key);
            other == place || requests.at(other).is_placed() || comes_before()
        };
        let mut latest = self.lists.running.last();
        while let Some(other) = latest.filter(stays) {
            latest = self.lists.running.before(other);
        }
        Some(latest.unwrap_or(place))
    }

    /// The place of a request in the order, if it is ready.
    fn key(&self, place: Place, requests: &Requests) -> Option<Key> {
        let member = member(place, requests);
        match self.cohorts.iter().find(|cohort| cohort.find(&member).is_some()) {
            Some(cohort) => Some(cohort.key(&member)),
            None => self.alone.members.iter().find(|other| other.place == place).map(|other| self.alone.key(other)),
        }
    }

    /// A request is admitted no more.
    fn take_out(&mut self, place: Place, requests: &Requests) {
        self.leave_cohort(place, requests);
        self.alone.members.retain(|other| other.place != place);
        self.lists.take_out(place, requests);
    }

    fn leave_cohort(&mut self, place: Place, requests: &Requests) {
        let member = member(place, requests);
        let kind = Cohort::kind(member.tbt);
        if let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.kind == kind)
            && let Some(index) = cohort.find(&member)
        {
            cohort.members.remove(index);
        }
    }

    /// Computes prompts: unfinished ones, then new ones from the queue, each cut to the budget that the chosen leave.
    fn prefill(&mut self, chosen: Chosen, plan: &mut Plan) -> Result<Prompts> {
        let mut prompts = Prompts { left: plan.budget_left() - chosen.rows, lasts: u64::MAX };
        for place in self.lists.prefills.iter() {
            if prompts.left == 0 {
                break;
            }
            plan.chunk(place, prompts.cut(plan.requests().owed(place)))?;
        }
        if plan.shares_blocks() {
            // They have their places before the queue is looked at.
            plan.reserve(self.blocks_of_rows(plan));
            let decodes = self.ready().flat_map(Cohort::chosen);
            decodes.for_each(|member| plan.publish_decode(member.place));
        }
        while let Some(place) = self.lists.queue.head() {
            let may_admit = prompts.left > 0 && !plan.was_preempted(place);
            if !may_admit {
                break;
            }
            plan.look_up(place);
            let tokens = plan.requests().until_next_token(place);
            let is_roomy = !plan.shares_blocks() && (plan.blocks(tokens) + chosen.rows) as i64 <= plan.free_blocks();
            let spare = if is_roomy { chosen.rows } else { self.blocks_of_rows(plan) };
            if !plan.has_room(place, tokens, spare) {
                break;
            }
            let (context, owed) = (plan.requests().next_context(place), plan.requests().owed(place));
            self.lists.admit(place, context, prompts.cut(owed), plan)?;
        }
        Ok(prompts)
    }

    /// Puts the chosen decodes into the batch, and no others. Where a cohort is divided, its smaller part leaves it.
    fn decode(&mut self, plan: &mut Plan) -> Result<()> {
        let mut rows = std::mem::take(&mut self.rows);
        for (group, cohort) in self.cohorts.iter_mut().enumerate() {
            let (chosen, all) = (cohort.chosen, cohort.members.len());
            cohort.takes_part = 2 * chosen > all;
            plan.select_group(group);
            plan.rest_decodes(!cohort.takes_part);
            if chosen == 0 || chosen == all {
                continue;
            }
            let end = cohort.end;
            for member in cohort.members.drain(if cohort.takes_part { chosen..all } else { 0..chosen }) {
                plan.pause(member.place)?;
                if cohort.takes_part {
                    self.alone.insert(Member { tbt: Span(later(end, member.tbt).0), ..member });
                } else {
                    rows.push(member.place);
                }
            }
        }
        // Those that have just come are behind all that are chosen.
        for index in 0..self.alone.chosen {
            let place = self.alone.members[index].place;
            let member = member(place, plan.requests());
            let group = self.group(member.tbt);
            let cohort = &mut self.cohorts[group];
            if cohort.takes_part || cohort.members.is_empty() {
                plan.select_group(group);
                if !cohort.takes_part {
                    cohort.takes_part = true;
                    plan.rest_decodes(false);
                }
                cohort.insert(member);
                plan.decode(place)?;
            } else {
                rows.push(place);
            }
        }
        self.alone.members.drain(..self.alone.chosen);
        // Whose cohort rests decodes by itself, for this one iteration, and is told to be ready again.
        rows.drain(..).try_for_each(|place| plan.chunk(place, 1))?;
        self.rows = rows;
        Ok(())
    }

    /// Says for how long the plan holds. If critical decodes and prompts used the budget up, the critical ones must
    /// stay the same, and arrivals wait. If not, nothing is left to prefill, and it only matters which come first in
    /// the order: always the same if all decode, or requests that are left out have no deadline.
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
        plan.hold(Hold::while_arrivals_wait(arrivals_wait));
        if uses_budget_up && (chosen.count > 0 || deadline < Instant::NEVER) {
            let inside = self.cohorts.iter().filter(|cohort| cohort.takes_part);
            let tbts = inside.filter_map(|cohort| cohort.members.back()).map(|member| member.tbt);
            let (offset, lasts) = self.margin.offset_after(chosen.count, plan);
            self.watch = Some(DeadlineWatch {
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

impl Scheduler for SlaiScheduler {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Left(place) => self.leave_cohort(place, requests),
            Notice::Preempted(place) => self.take_out(place, requests),
            Notice::Arrived(_) | Notice::Ready(_) => {}
        }
        self.lists.notice(notice, requests);
    }

    fn admitted(&self) -> Option<&List> {
        Some(&self.lists.running)
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.victims.clear();
        self.watch = None;
        self.gather(plan)?;
        let most = self.max_decodes.min(self.limits.token_budget);
        // Critical decodes come before the prompts; without any, the order of the decodes is the same.
        let is_contested = !self.lists.prefills.is_empty() || !self.lists.queue.is_empty();
        let ripe = if is_contested { self.margin.ripe(plan) } else { None };
        let mut chosen = Chosen::default();
        if let Some(ripe) = ripe {
            chosen = self.place((ripe, u32::MAX), most, plan)?;
        }
        let prompts = self.prefill(chosen, plan)?;
        if prompts.left > 0 {
            chosen = self.place(LAST, self.max_decodes.min(chosen.count + prompts.left), plan)?;
        }
        self.decode(plan)?;
        self.hold(chosen, prompts, plan);
        Ok(())
    }

    fn holds(&self, pace: &Pace) -> u64 {
        self.watch.as_ref().map_or(u64::MAX, |watch| watch.holds(pace))
    }
}

/// What stands for a request in its cohort.
fn member(place: Place, requests: &Requests) -> Member {
    let arrival = requests.arrival(place);
    Member { tbt: arrival.tbt_slo, id: arrival.id, place }
}
