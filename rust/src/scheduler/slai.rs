//! SLAI: decodes no sooner than their deadlines require (bari2025 §6).
//!
//! The last schedulable time of a decode is C = e + ITL − δ · t̄ (8). Here e is the end of the last batch that served
//! its request, ITL its objective, δ the offset, and t̄ the mean iteration time so far. δ · t̄ is common to all. So
//! the order by C is the order by deadline e + ITL, which is constant while a request waits.

mod singles;
mod cohort;
mod deadline;

use std::cmp::Reverse;

use self::cohort::{Cohort, Key, LAST, Member, Positions};
use self::deadline::{DeadlineWatch, Margin, Offset, later};
use self::singles::Singles;
use super::prelude::*;
use crate::clock::{Instant, Span};
use crate::timing::Pace;

/// Decodes no sooner than their deadline requires.
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
            positions: Positions::default(),
            singles: Singles::default(),
            victims: Vec::new(),
            deadlines: Vec::new(),
            ids: Vec::new(),
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
    /// Groups of steady decodes: ready requests with similar ITLs, last served by the same batch.
    cohorts: Vec<Cohort>,
    positions: Positions,
    /// All other ready requests, which are not steady decodes.
    singles: Singles,
    /// Requests preempted by this plan.
    victims: Vec<Place>,
    /// Scratch space, empty between plans.
    deadlines: Vec<(Instant, usize)>,
    ids: Vec<u32>,
    rows: Vec<Place>,
    watch: Option<DeadlineWatch>,
}

/// The decodes up to a position in the order. Each cohort stores its own part.
#[derive(Clone, Copy, Debug, Default)]
struct Chosen {
    count: u64,
    /// Whether some of the wanted decodes were cut off.
    is_cut: bool,
    /// Decodes that are not in a whole cohort.
    rows: u64,
}

/// The effect of prompts on the budget.
#[derive(Clone, Copy, Debug)]
struct Prompts {
    /// Remaining budget.
    left: u64,
    /// Number of iterations with the same chunks.
    lasts: u64,
}

impl Prompts {
    /// Tokens computed for a request with `owed` owed tokens.
    fn of(&self, owed: u64) -> u64 {
        owed.min(self.left)
    }

    /// Consumes the budget for one chunk.
    fn take(&mut self, owed: u64) {
        let tokens = self.of(owed);
        self.left -= tokens;
        self.lasts = if tokens == owed { 1 } else { self.lasts.min((owed - 1) / tokens) };
    }
}

impl SlaiScheduler {
    /// Updates e of all ready requests, and excludes all of them from the batch. A plan is made at the end of the
    /// previous batch, so `now` is the e of all requests that it served.
    fn gather(&mut self, plan: &mut Plan) -> Result<()> {
        plan.rest_all();
        self.singles.chosen = 0;
        for cohort in &mut self.cohorts {
            (cohort.chosen, cohort.is_walked) = (0, false);
            if std::mem::take(&mut cohort.takes_part) {
                cohort.end = plan.now();
            }
        }
        for index in 0..self.lists.idle.len() {
            self.join(self.lists.idle[index], plan)?;
        }
        self.lists.idle.clear();
        Ok(())
    }

    /// Adds a request that can decode to the cohort of its ITL if e matches, otherwise to the singles.
    fn join(&mut self, place: Place, plan: &mut Plan) -> Result<()> {
        let (now, member) = (plan.now(), member(place, plan.requests()));
        let group = self.group(member.itl, plan);
        let cohort = &mut self.cohorts[group];
        if cohort.is_empty() {
            cohort.end = now;
        }
        let key = (later(now, member.itl), member.id);
        if cohort.key(&member) != key {
            self.singles.insert(key, place);
            return Ok(());
        }
        cohort.insert(member, &mut self.positions);
        plan.select_group(group);
        plan.decode(place)
    }

    /// The group of an ITL. ITLs with the same three leading bits share one, so that there are few groups, and two
    /// classes seldom share one.
    #[inline]
    fn group(&mut self, itl: Span, plan: &mut Plan) -> usize {
        match self.cohorts.iter().position(|cohort| cohort.spans(itl)) {
            Some(group) => group,
            None => self.group_of_kind(Cohort::kind(itl), plan),
        }
    }

    fn group_of_kind(&mut self, kind: u32, plan: &mut Plan) -> usize {
        self.cohorts.iter().position(|cohort| cohort.kind == kind).unwrap_or_else(|| {
            let group = self.cohorts.len();
            self.cohorts.push(Cohort::new(group, kind));
            plan.select_group(group);
            plan.rest_decodes(true);
            group
        })
    }

    /// Chooses the first `most` decodes in order, up to `last`. Whole cohorts take part.
    fn choose(&mut self, last: Key, most: u64, plan: &mut Plan) -> Chosen {
        // If all decodes can be chosen, their order does not matter.
        let all = if last == LAST && !plan.shares_blocks() { self.count_if_at_most(most) } else { None };
        let mut count = all.unwrap_or_else(|| self.choose_up_to(last, most));
        let is_cut = count > most;
        if is_cut {
            let last = self.last_of(most);
            count = self.choose_up_to(last, most);
        }
        if all.is_some() {
            self.singles.choose_all();
        }
        let mut rows = self.singles.chosen as u64;
        for cohort in &mut self.cohorts {
            if all.is_some() {
                cohort.chosen = cohort.len();
            }
            let is_whole = cohort.is_whole();
            plan.select_group(cohort.group);
            plan.rest_decodes(!is_whole);
            rows += if is_whole { 0 } else { cohort.chosen as u64 };
        }
        Chosen { count, is_cut, rows }
    }

    /// The number of decodes, if it is at most `most`.
    #[inline]
    fn count_if_at_most(&self, most: u64) -> Option<u64> {
        let all = self.cohorts.iter().fold(self.singles.len(), |all, cohort| all + cohort.len()) as u64;
        (all <= most).then_some(all)
    }

    fn choose_up_to(&mut self, last: Key, most: u64) -> u64 {
        let in_cohorts: usize = self.cohorts.iter_mut().map(|cohort| cohort.choose(last, &mut self.positions)).sum();
        (in_cohorts + self.singles.choose(last, most)) as u64
    }

    /// The key of the last of the first `most` decodes; more are chosen.
    fn last_of(&mut self, most: u64) -> Key {
        let singles = || self.singles.chosen_keys().map(|(key, _)| key).take(most as usize);
        // There are few distinct deadlines, most of them shared. Only the ids of one deadline are searched.
        self.deadlines.clear();
        self.deadlines.extend(self.cohorts.iter_mut().flat_map(Cohort::chosen_deadlines));
        self.deadlines.extend(singles().map(|(deadline, _)| (deadline, 1)));
        self.deadlines.sort_unstable_by_key(|&(deadline, _)| deadline);
        let (mut left, mut last) = (most as usize, Instant::NEVER);
        for alike in self.deadlines.chunk_by(|left, right| left.0 == right.0) {
            let count = alike.iter().map(|&(_, count)| count).sum();
            last = alike[0].0;
            if left <= count {
                break;
            }
            left -= count;
        }
        self.ids.clear();
        self.cohorts.iter().for_each(|cohort| cohort.list_chosen_ids(last, &mut self.ids));
        self.ids.extend(singles().filter(|&(deadline, _)| deadline == last).map(|(_, id)| id));
        (last, *self.ids.select_nth_unstable(left - 1).1)
    }

    /// Blocks taken by the rows: at most one each, so most plans need no count.
    fn blocks_of_rows(&self, plan: &Plan) -> u64 {
        let divided = self.cohorts.iter().filter(|cohort| !cohort.is_whole());
        let rows = divided.flat_map(Cohort::chosen_keys).chain(self.singles.chosen_keys());
        rows.map(|(_, place)| plan.new_blocks(place, 1)).sum()
    }

    /// Chooses decodes, and preempts requests for those that lack a block.
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
            // All victims of a plan are requeued in order of arrival.
            let requests = plan.requests();
            self.victims.sort_unstable_by_key(|&victim| Reverse(requests.order(victim)));
            for &victim in &self.victims {
                self.lists.queue.remove(victim, requests);
                self.lists.queue.push_victim(victim, requests);
            }
        }
        Ok(chosen)
    }

    /// The victim, if the chosen decodes lack blocks: the latest arrival that is not placed before the first decode
    /// without a block, and that decode last.
    fn victim(&self, chosen: Chosen, plan: &Plan) -> Option<Place> {
        let free = plan.free_blocks();
        if chosen.rows as i64 <= free {
            return None;
        }
        let mut lacking = self.blocks_of_rows(plan) as i64 - free;
        if lacking <= 0 {
            return None;
        }
        // From the end of the order: the first decode whose suffix takes all missing blocks.
        let mut keys: Vec<_> =
            self.cohorts.iter().flat_map(Cohort::chosen_keys).chain(self.singles.chosen_keys()).collect();
        keys.sort_unstable_by_key(|&(key, _)| Reverse(key));
        let lacks = keys.iter().find(|&&(_, place)| {
            lacking -= plan.new_blocks(place, 1) as i64;
            lacking <= 0
        });
        let &(key, place) = lacks?;
        let requests = plan.requests();
        let stays = |&other: &Place| {
            let precedes = || self.key(other, requests).is_some_and(|of_other| of_other < key);
            other == place || requests.at(other).is_placed() || precedes()
        };
        let mut latest = self.lists.running.last();
        while let Some(other) = latest.filter(stays) {
            latest = self.lists.running.before(other);
        }
        Some(latest.unwrap_or(place))
    }

    /// The key of a ready request.
    fn key(&self, place: Place, requests: &Requests) -> Option<Key> {
        match self.positions.of(place) {
            Some((group, _)) => Some(self.cohorts[group].key(&member(place, requests))),
            None => self.singles.find(place),
        }
    }

    /// Removes a request from the admitted ones.
    fn take_out(&mut self, place: Place, requests: &Requests) {
        self.leave_cohort(place);
        self.singles.remove(place);
        self.lists.take_out(place, requests);
    }

    fn leave_cohort(&mut self, place: Place) {
        if let Some((group, index)) = self.positions.of(place) {
            self.cohorts[group].remove(index, &mut self.positions);
        }
    }

    /// Computes prompts: unfinished ones, then new ones from the queue, each cut to the budget that the chosen
    /// decodes leave.
    fn prefill(&mut self, chosen: Chosen, plan: &mut Plan) -> Result<Prompts> {
        let mut prompts = Prompts { left: plan.budget_left() - chosen.rows, lasts: u64::MAX };
        for place in self.lists.prefills.iter() {
            if prompts.left == 0 {
                break;
            }
            let owed = plan.requests().owed(place);
            plan.chunk(place, prompts.of(owed))?;
            prompts.take(owed);
        }
        if plan.shares_blocks() {
            // They are placed before the queue.
            plan.reserve(self.blocks_of_rows(plan));
            self.sort_chosen();
            let decodes = self.cohorts.iter().flat_map(Cohort::chosen_keys).chain(self.singles.chosen_keys());
            decodes.for_each(|(_, place)| plan.publish_decode(place));
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
            let (context, owed) = (plan.requests().next_context(place), plan.requests().owed(place));
            if !self.lists.try_admit(place, tokens, spare, context, prompts.of(owed), plan)? {
                break;
            }
            prompts.take(owed);
        }
        Ok(prompts)
    }

    /// With shared blocks, the order of the rows matters.
    fn sort_chosen(&mut self) {
        self.cohorts.iter_mut().for_each(|cohort| cohort.sort_chosen(&mut self.positions));
    }

    /// Forms the batch of the chosen decodes. The smaller part of a divided cohort leaves it.
    fn decode(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.shares_blocks() {
            self.sort_chosen();
        }
        for cohort in &mut self.cohorts {
            let (chosen, all) = (cohort.chosen, cohort.len());
            cohort.takes_part = 2 * chosen > all;
            plan.select_group(cohort.group);
            plan.rest_decodes(!cohort.takes_part);
            if cohort.takes_part || cohort.is_to_dissolve() {
                while cohort.len() > chosen {
                    let member = cohort.pop(&mut self.positions);
                    plan.pause(member.place)?;
                    self.singles.insert(cohort.key(&member), member.place);
                }
            }
            if !cohort.takes_part && chosen < all {
                self.rows.extend(cohort.chosen().iter().map(|member| member.place));
                for index in (0..chosen).rev() {
                    plan.pause(cohort.remove(index, &mut self.positions).place)?;
                }
            }
        }
        while let Some(place) = self.singles.pop() {
            let member = member(place, plan.requests());
            let group = self.group(member.itl, plan);
            let cohort = &mut self.cohorts[group];
            if cohort.takes_part || cohort.is_empty() {
                plan.select_group(group);
                if !cohort.takes_part {
                    cohort.takes_part = true;
                    plan.rest_decodes(false);
                }
                cohort.insert(member, &mut self.positions);
                plan.decode(place)?;
            } else {
                self.rows.push(place);
            }
        }
        // A request of a resting cohort decodes as a chunk for this iteration, and is notified as ready again.
        self.rows.drain(..).try_for_each(|place| plan.chunk(place, 1))
    }

    /// Sets how long the plan holds. If critical decodes and prompts used up the budget, the critical decodes must
    /// stay the same, and arrivals wait. If not, nothing is left to prefill, and only the order of the decodes
    /// matters. It is constant if all decode, or if the remaining ones have no deadline.
    fn hold(&mut self, chosen: Chosen, prompts: Prompts, plan: &mut Plan) {
        let uses_budget_up = prompts.left == 0;
        let left_out = self.cohorts.iter_mut().filter(|cohort| !cohort.takes_part);
        let deadline = left_out.map(Cohort::first_deadline).fold(self.singles.first().0, Instant::min);
        let is_refused = plan.refused() == Some(Limit::Blocks);
        // With more critical decodes, the queue might not be tried and therefore not be refused.
        let may_not_ask = is_refused && chosen.count == self.limits.token_budget;
        let changes = if uses_budget_up { chosen.is_cut } else { deadline < Instant::NEVER || may_not_ask };
        if changes || prompts.lasts == 1 || plan.has_preempted() {
            return;
        }
        let arrivals_wait =
            uses_budget_up || plan.sequences_left() == 0 || (is_refused && !self.lists.queue.may_be_overtaken());
        plan.hold(Hold::while_arrivals_wait(arrivals_wait));
        if uses_budget_up && (chosen.count > 0 || deadline < Instant::NEVER) {
            let inside = self.cohorts.iter_mut().filter(|cohort| cohort.takes_part);
            let longest_itl = inside.map(Cohort::longest_itl).max().unwrap_or(Span::ZERO);
            let (offset, lasts) = self.margin.offset_after(chosen.count, plan);
            self.watch = Some(DeadlineWatch {
                start: plan.now(),
                iterations: plan.iterations(),
                busy: plan.busy(),
                offset,
                lasts: lasts.min(prompts.lasts),
                longest_itl,
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
            Notice::Left(place) => self.leave_cohort(place),
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
        // Critical decodes precede the prompts. Without prompts, the order of the decodes does not change.
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

/// A request as a cohort member.
fn member(place: Place, requests: &Requests) -> Member {
    let arrival = requests.arrival(place);
    Member { itl: arrival.itl_slo, id: arrival.id, place }
}
