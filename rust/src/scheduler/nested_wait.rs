//! Nested WAIT: a segment of decode stages joins when enough wait at its entry (ao2025 Algorithm 2, §7.2).

use super::prelude::*;
use super::wait::Seniority;

/// Segments of decode stages, each with its threshold.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NestedWait {
    pub segments: Vec<u64>,
    pub thresholds: Vec<u64>,
    pub prompt_groups: Vec<u64>,
}

impl SchedulerParameters for NestedWait {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let NestedWait { segments, thresholds, prompt_groups } = self;
        if segments.is_empty() {
            return Err(Error::config("segments", "there must be at least one"));
        }
        if segments.len() != thresholds.len() {
            let message = format!("{} of them for {} segments: each has its own", thresholds.len(), segments.len());
            return Err(Error::config("thresholds", message));
        }
        if !segments.is_sorted_by(|last, next| last < next) {
            return Err(Error::config("segments", format!("{segments:?}: their last stages must ascend")));
        }
        if prompt_groups.first() == Some(&0) || !prompt_groups.is_sorted_by(|end, next| end < next) {
            let message = format!("{prompt_groups:?}: their longest prompts must ascend from at least 1");
            return Err(Error::config("prompt_groups", message));
        }
        let per_group = segments.len();
        let mut of_one_group = Vec::new();
        for (at, &threshold) in thresholds.iter().enumerate() {
            let stages = match at {
                _ if at + 1 == per_group => u64::MAX,
                0 => segments[0] + 1,
                _ => segments[at] - segments[at - 1],
            };
            of_one_group.push((count("thresholds", threshold)?, stages));
        }
        let all = of_one_group.iter().cycle().take(per_group * (prompt_groups.len() + 1));
        Ok(Box::new(NestedWaitScheduler {
            group_ends: prompt_groups.clone(),
            per_group,
            segments: all.map(|&(threshold, stages)| StageSegment::new(threshold, stages)).collect(),
            stands: Vec::new(),
            seniority: Seniority::default(),
            counted: 0,
        }))
    }
}

impl Sample for NestedWait {
    fn sample(dice: &mut Dice) -> NestedWait {
        let last = dice.below(9);
        let segments = dice.one_of(&[vec![0, 2], vec![last], vec![1, last + 3, 30]]);
        let thresholds = segments.iter().map(|_| 1 + dice.below(4)).collect();
        let middle = dice.scale.longest / 4 + 1;
        NestedWait { segments, thresholds, prompt_groups: dice.one_of(&[vec![], vec![middle]]) }
    }
}

/// Of each group of prompt lengths the segments advance up to the first whose entry holds less than its threshold.
#[derive(Debug)]
pub(super) struct NestedWaitScheduler {
    /// The longest prompt of each group but the last.
    group_ends: Vec<u64>,
    /// Segments of each group.
    per_group: usize,
    /// Those of the first group, then those of the second, and so on; each has its group of the standing decodes.
    segments: Vec<StageSegment>,
    /// By the places of the requests.
    stands: Vec<Stand>,
    seniority: Seniority,
    /// Iterations of the replica that the segments have counted.
    counted: u64,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default)]
struct Stand {
    segment: usize,
    /// The iterations that the segment will have had when the request has done its last stage; while it is inside.
    leaves: u64,
}

/// One segment of one group of prompt lengths.
///
/// Every request inside advances in every iteration of the segment, and at most n_i enter in each, so no stage of it
/// ever holds more than n_i, and a request that entered earlier leaves earlier.
#[derive(Debug)]
struct StageSegment {
    /// n_i.
    threshold: u64,
    /// Iterations that a request spends inside; no number is too large for the last segment.
    stages: u64,
    /// Requests that are about to begin its first stage: the queue, or requests that pause behind the segment before.
    entry: List,
    /// Requests that have begun it and can go on inside, the first to enter first.
    inside: List,
    /// Requests inside that can decode and are not among the standing decodes yet.
    ready: Vec<Place>,
    /// Iterations in which the segment took part.
    iterations: u64,
    takes_part: bool,
}

impl StageSegment {
    fn new(threshold: u64, stages: u64) -> StageSegment {
        StageSegment {
            threshold,
            stages,
            entry: List::default(),
            inside: List::default(),
            ready: Vec::new(),
            iterations: 0,
            takes_part: false,
        }
    }

    #[inline]
    fn enter(&mut self, place: Place, stand: &mut Stand) {
        stand.leaves = self.iterations.saturating_add(self.stages);
        self.inside.push_back(place);
    }

    /// Iterations of the segment until the first of those inside has done its last stage.
    #[inline]
    fn until_due(&self, stands: &[Stand]) -> u64 {
        self.inside.first().map_or(u64::MAX, |first| stands[first.index()].leaves - self.iterations)
    }

    /// Do enough wait at its entry?
    #[inline]
    fn has_company(&self) -> bool {
        self.entry.len() as u64 >= self.threshold
    }

    fn take_out(&mut self, place: Place) {
        if self.inside.remove(place) {
            self.ready.retain(|&other| other != place);
        } else {
            self.entry.remove(place);
        }
    }
}

impl NestedWaitScheduler {
    fn arrived(&mut self, place: Place, requests: &Requests) {
        let prompt = u64::from(requests.at(place).prompt_tokens);
        let segment = self.group_ends.partition_point(|&end| end < prompt) * self.per_group;
        if place.index() >= self.stands.len() {
            self.stands.resize(place.index() + 1, Stand::default());
        }
        self.stands[place.index()].segment = segment;
        insert_by_arrival(&mut self.segments[segment].entry, place, requests);
    }

    /// Takes a request out of its segment and puts it at the head of its group's queue.
    fn await_again(&mut self, victim: Place) {
        let stand = &mut self.stands[victim.index()];
        self.segments[stand.segment].take_out(victim);
        stand.segment = stand.segment / self.per_group * self.per_group;
        self.segments[stand.segment].entry.push_front(victim);
    }

    /// A request that has done the last stage of its segment pauses at the entry of the next one.
    fn leave_segments(&mut self, plan: &mut Plan) -> Result<()> {
        let run = plan.iterations() - self.counted;
        if run == 0 {
            return Ok(());
        }
        self.counted = plan.iterations();
        for at in 0..self.segments.len() {
            if !self.segments[at].takes_part {
                continue;
            }
            self.segments[at].iterations += run;
            while let Some(place) = self.segments[at].inside.first()
                && self.segments[at].until_due(&self.stands) == 0
            {
                if plan.requests().at(place).phase() == Phase::Decoding {
                    plan.pause(place)?;
                }
                self.segments[at].inside.remove(place);
                self.segments[at + 1].entry.push_back(place);
                self.stands[place.index()].segment = at + 1;
            }
        }
        Ok(())
    }

    /// Do too few wait to begin, in every group? Then no segment takes part.
    #[inline]
    fn waits(&self) -> bool {
        self.segments.iter().step_by(self.per_group).all(|first| !first.has_company())
    }

    /// No segment takes part.
    fn rest(&mut self, plan: &mut Plan) {
        self.segments.iter_mut().for_each(|segment| segment.takes_part = false);
        plan.rest_all();
    }

    /// Of each group the segments take part up to i* = max{i: |entry of i'| ≥ n_i' for all i' ≤ i}: requests decode that
    /// are inside, and requests that enter them from a pause. Does any enter?
    fn decode(&mut self, plan: &mut Plan) -> Result<bool> {
        let (mut at, mut enters) = (0, false);
        for group in self.segments.chunks_mut(self.per_group) {
            let mut takes_part = true;
            for (index, segment) in group.iter_mut().enumerate() {
                takes_part &= plan.drain() || segment.has_company();
                segment.takes_part = takes_part;
                plan.select_group(at);
                plan.rest_decodes(!takes_part);
                at += 1;
                if !takes_part {
                    continue;
                }
                for index in 0..segment.ready.len() {
                    plan.decode(segment.ready[index])?;
                }
                segment.ready.clear();
                // Those that enter the first segment are admitted.
                let most = if index == 0 { 0 } else { segment.threshold };
                for _ in 0..most {
                    let Some(place) = segment.entry.first() else { break };
                    segment.entry.remove(place);
                    segment.enter(place, &mut self.stands[place.index()]);
                    plan.decode(place)?;
                    enters = true;
                }
            }
        }
        Ok(enters)
    }

    /// Admits from the queue of each group whose first segment takes part. Is a request admitted?
    fn admit(&mut self, plan: &mut Plan) -> Result<bool> {
        let mut admits = false;
        for at in (0..self.segments.len()).step_by(self.per_group) {
            let first = &mut self.segments[at];
            let most = if first.takes_part { first.threshold } else { 0 };
            for _ in 0..most {
                let Some(place) = self.seniority.admit_head(&mut first.entry, plan)? else { break };
                first.enter(place, &mut self.stands[place.index()]);
                admits = true;
            }
        }
        Ok(admits)
    }
}

impl Scheduler for NestedWaitScheduler {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: Limits::NONE, frees_with_batch: false }
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.arrived(place, requests),
            Notice::Ready(place) => {
                let segment = &mut self.segments[self.stands[place.index()].segment];
                if segment.stages > 1 {
                    segment.ready.push(place);
                }
            }
            Notice::Preempted(place) => {
                self.seniority.remove(place);
                self.await_again(place);
            }
            Notice::Left(place) => {
                self.seniority.remove(place);
                self.segments[self.stands[place.index()].segment].take_out(place);
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.leave_segments(plan)?;
        if !plan.drain() && self.waits() {
            self.rest(plan);
            return Ok(());
        }
        let enters = self.decode(plan)?;
        while let Some(victim) = self.seniority.send_back_if_short(plan)? {
            self.await_again(victim);
        }
        if plan.has_preempted() || self.admit(plan)? || enters || plan.drains_in_turn() {
            return Ok(());
        }
        // A request that finds no room now finds none while no request leaves; entries change with arrivals and with
        // the next pause.
        let taking_part = self.segments.iter().filter(|segment| segment.takes_part);
        let iterations = taking_part.map(|segment| segment.until_due(&self.stands)).min().unwrap_or(u64::MAX);
        plan.hold(Hold { iterations, through_arrivals: false });
        Ok(())
    }
}
