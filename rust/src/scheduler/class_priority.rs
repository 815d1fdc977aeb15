//! Strict priority between classes, with any policy within a class: li2025 §4.3.

use std::collections::HashMap;

use super::parameters::ClassNames;
use super::prelude::*;
use super::{Sarathi, SchedulerConfig};

/// One policy per class, the classes in order of priority.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassPriority {
    pub order: Vec<String>,
    pub inner: Box<SchedulerConfig>,
}

impl SchedulerParameters for ClassPriority {
    fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let inner = self.inner.parameters();
        if !inner.fills_a_budget() {
            let kind = self.inner.kind();
            let message = format!(
                "must be a policy that fills a token budget, got {kind}; use Sarathi, Orca with \
                 chunked=True, or VllmV1 with async_scheduling=False and no speculation"
            );
            return Err(Error::config("inner", message));
        }
        let build = |_| {
            let inner = inner.build(classes).map_err(|error| error.within("inner"))?;
            Ok(ClassShare { inner, present: 0, admitted: List::default(), refused: None })
        };
        Ok(Box::new(ClassPriorityScheduler {
            ranks: ranks(&self.order, classes)?,
            classes: self.order.iter().map(build).collect::<Result<_>>()?,
            swaps: inner.swaps(),
        }))
    }
}

impl Sample for ClassPriority {
    fn sample(dice: &mut Dice) -> ClassPriority {
        let kinds: Vec<&str> = SchedulerConfig::KINDS.iter().copied().filter(|&kind| kind != "ClassPriority").collect();
        let inner = |_| SchedulerConfig::sample(dice.one_of(&kinds), dice);
        let fills = |inner: &SchedulerConfig| inner.parameters().fills_a_budget();
        // The dice repeat after 64 draws.
        let inner = (0..64).filter_map(inner).find(fills).unwrap_or_else(|| Sarathi::sample(dice).into());
        let order = dice.one_of(&[["a", "b"], ["b", "a"]]).map(str::to_owned).to_vec();
        ClassPriority { order, inner: Box::new(inner) }
    }
}

/// One policy per class plans with the remaining budget, sequences and blocks. If it lacks blocks, requests of the
/// lowest class are preempted. While a request of a class waits for blocks or a sequence, lower classes admit none. The
/// steady decodes of a class are the group of its rank.
pub(super) struct ClassPriorityScheduler {
    classes: Vec<ClassShare>,
    /// Rank of each class of the workload.
    ranks: Vec<usize>,
    /// Whether the policy swaps requests in even when no budget is left.
    swaps: bool,
}

/// The requests of one class.
struct ClassShare {
    inner: Box<dyn Scheduler>,
    /// Number of waiting and running requests.
    present: u64,
    /// Requests that were admitted at least once, by arrival.
    admitted: List,
    /// The limit that prevented an admission in the last plan.
    refused: Option<Limit>,
}

/// Whether an admitted request has a sequence.
fn runs(place: Place, requests: &Requests) -> bool {
    matches!(requests.at(place).phase(), Phase::Started | Phase::Decoding)
}

impl ClassShare {
    /// Whether any of its requests waits.
    fn waits(&self, requests: &Requests) -> bool {
        self.present > self.admitted.iter().filter(|&place| runs(place, requests)).count() as u64
    }
}

impl ClassPriorityScheduler {
    #[inline]
    fn class_of(&mut self, place: Place, requests: &Requests) -> &mut ClassShare {
        &mut self.classes[self.ranks[requests.at(place).class as usize]]
    }

    /// Plans the selected class, whose admissions may be closed by a limit. Returns how long that plan holds.
    fn plan_class(&mut self, rank: usize, closed: Option<Limit>, plan: &mut Plan) -> Result<Hold> {
        self.classes[rank].refused = None;
        if self.classes[rank].present == 0 || (plan.budget_left() == 0 && !self.swaps) {
            let arrivals_wait = plan.budget_left() == 0 || plan.sequences_left() == 0;
            return Ok(Hold::while_arrivals_wait(arrivals_wait));
        }
        plan.rest_decodes(false);
        plan.set_lower_ranked(self.lower_ranked(rank, plan));
        let refused = plan.refused();
        plan.set_refused(None);
        plan.hold(Hold::ONCE);
        let admitted = plan.admitted().len();
        self.classes[rank].inner.plan(plan)?;
        for victim in plan.take_preempted_lower_ranked() {
            self.class_of(victim, plan.requests()).inner.notice(Notice::Preempted(victim), plan.requests());
        }
        let list = &mut self.classes[rank].admitted;
        for &place in &plan.admitted()[admitted..] {
            if !list.contains(place) {
                insert_by_arrival(list, place, plan.requests());
            }
        }
        if rank + 1 < self.classes.len() {
            self.classes[rank].refused = plan.refused();
        }
        plan.set_refused(plan.refused().map(|limit| closed.unwrap_or(limit)).or(refused));
        Ok(plan.held())
    }

    /// The limit that closes admissions of lower classes after this class was planned, if any: a request was refused,
    /// or was preempted since the first `preempted` preemptions. Without budget left none is tried, so each waiting
    /// request counts.
    fn closes(&self, rank: usize, preempted: usize, plan: &Plan) -> Option<Limit> {
        let class = &self.classes[rank];
        let is_own = |&place: &Place| self.ranks[plan.requests().at(place).class as usize] == rank;
        let lacks_blocks = || {
            plan.preempted()[preempted..].iter().any(is_own)
                || (self.swaps && plan.budget_left() == 0 && class.waits(plan.requests()))
        };
        class.refused.or_else(|| lacks_blocks().then_some(Limit::Blocks))
    }

    /// The running requests of the classes after `rank`, lowest class and latest arrival last, limited to those that
    /// can be needed. Each frees at least one block, unless blocks are shared. A request in prefill takes at most one
    /// block for itself and one per block of the budget.
    fn lower_ranked(&self, rank: usize, plan: &Plan) -> Vec<Place> {
        if rank + 1 == self.classes.len() {
            return Vec::new();
        }
        let others = self.classes[rank].admitted.len() as u64 - plan.decodes();
        let most = plan.blocks(plan.budget_for_decodes()) + others;
        if !plan.shares_blocks() && plan.has_free(most) {
            return Vec::new();
        }
        let most = most as i64 - plan.free_blocks();
        let lowest_first = self.classes[rank + 1..].iter().rev();
        let lower_ranked = lowest_first.flat_map(|class| class.admitted.iter_back());
        let lower_ranked = lower_ranked.filter(|&place| runs(place, plan.requests()));
        let most = if plan.shares_blocks() { usize::MAX } else { most.max(0) as usize };
        let mut lower_ranked: Vec<Place> = lower_ranked.take(most).collect();
        lower_ranked.reverse();
        lower_ranked
    }
}

/// The rank in `order` of each class of the workload. `order` must list each reachable class once, and no other.
fn ranks(order: &[String], classes: Option<&[Class]>) -> Result<Vec<usize>> {
    if order.is_empty() {
        return Err(Error::config("order", "must list the classes in order of priority, got none"));
    }
    let known = ClassNames::new(classes);
    let mut rank_of = HashMap::with_capacity(order.len());
    for (rank, name) in order.iter().enumerate() {
        known.check("order", name)?;
        if rank_of.insert(name.as_str(), rank).is_some() {
            return Err(Error::config("order", format!("must list each class once, got {name:?} twice")));
        }
    }
    let rank = |class: &Class| match rank_of.get(class.name.as_str()) {
        Some(&rank) => Ok(rank),
        None if !class.reaches_engine => Ok(0),
        None => {
            Err(Error::config("order", format!("must list every class of the workload, {:?} is missing", class.name)))
        }
    };
    classes.unwrap_or_default().iter().map(rank).collect()
}

impl Scheduler for ClassPriorityScheduler {
    fn limits(&self) -> Limits {
        self.classes[0].inner.limits()
    }

    fn refuses(&self, arrival: &Arrival, cache: &KvBlocks) -> Option<&'static str> {
        self.classes[self.ranks[arrival.class as usize]].inner.refuses(arrival, cache)
    }

    fn restarts(&self) -> bool {
        self.classes.iter().any(|share| share.inner.restarts())
    }

    fn is_timeless(&self) -> bool {
        self.classes.iter().all(|share| share.inner.is_timeless())
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        let (Notice::Arrived(place) | Notice::Ready(place) | Notice::Preempted(place) | Notice::Left(place)) = notice;
        let class = self.class_of(place, requests);
        match notice {
            Notice::Arrived(_) => class.present += 1,
            Notice::Left(_) => {
                class.present -= 1;
                class.admitted.remove(place);
            }
            Notice::Ready(_) | Notice::Preempted(_) => {}
        }
        class.inner.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        for rank in 0..self.classes.len() {
            plan.select_group(rank);
            plan.rest_decodes(true);
        }
        let mut hold = Hold::THROUGH_ARRIVALS;
        let mut closed = None;
        for rank in 0..self.classes.len() {
            plan.select_group(rank);
            let is_last = rank + 1 == self.classes.len();
            let preempted = if is_last { 0 } else { plan.preempted().len() };
            let of_class = self.plan_class(rank, closed, plan)?;
            hold.iterations = hold.iterations.min(of_class.iterations);
            hold.through_arrivals &= of_class.through_arrivals;
            if !is_last && closed.is_none() {
                closed = self.closes(rank, preempted, plan);
                if closed.is_some() {
                    plan.set_max_seqs(0);
                }
            }
        }
        if closed.is_some() {
            plan.set_max_seqs(self.limits().max_seqs);
        }
        plan.hold(if plan.has_preempted() { Hold::ONCE } else { hold });
        Ok(())
    }
}
