//! Nested WAIT: a segment of decode stages joins the batch when enough requests wait at its entry (ao2025 Algorithm
//! 2, §7.2).

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
            return Err(Error::config("segments", "must have at least one segment, got none"));
        }
        if segments.len() != thresholds.len() {
            let message = format!(
                "must have one threshold per segment, got {} for {} segments",
                thresholds.len(),
                segments.len()
            );
            return Err(Error::config("thresholds", message));
        }
        if !segments.is_sorted_by(|last, next| last < next) {
            return Err(Error::config("segments", format!("must have ascending last stages, got {segments:?}")));
        }
        if prompt_groups.first() == Some(&0) || !prompt_groups.is_sorted_by(|end, next| end < next) {
            let message = format!("must have ascending maximum prompt lengths of at least 1, got {prompt_groups:?}");
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
            positions: Vec::new(),
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

/// In each group of prompt lengths, the segments advance up to the first whose entry is below its threshold.
#[derive(Debug)]
pub(super) struct NestedWaitScheduler {
    /// The longest prompt of each group except the last.
    group_ends: Vec<u64>,
    /// Segments per group.
    per_group: usize,
    /// The segments of all groups, group by group. Each has its own group of steady decodes.
    segments: Vec<StageSegment>,
    /// By request place.
    positions: Vec<Position>,
    seniority: Seniority,
    /// Iterations of the replica counted so far.
    counted: u64,
}

/// The position of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    segment: usize,
    /// The iteration count of its segment at which the request has done its last stage there.
    leaves: u64,
}

/// One segment of one group of prompt lengths.
///
/// In every iteration of the segment, all requests inside advance and at most n_i enter. So no stage ever holds more
/// than n_i requests, and requests leave in the order in which they entered.
#[derive(Debug)]
struct StageSegment {
    /// n_i.
    threshold: u64,
    /// Iterations inside; unlimited for the last segment.
    stages: u64,
    /// Requests before its first stage: the queue, or requests paused after the previous segment.
    entry: List,
    /// Requests inside, in order of entry.
    inside: List,
    /// Requests inside that can decode and are not steady decodes yet.
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
    fn enter(&mut self, place: Place, position: &mut Position) {
        position.leaves = self.iterations.saturating_add(self.stages);
        self.inside.push_back(place);
    }

    /// Iterations of the segment until its first request has done its last stage.
    #[inline]
    fn until_due(&self, positions: &[Position]) -> u64 {
        self.inside.first().map_or(u64::MAX, |first| positions[first.index()].leaves - self.iterations)
    }

    /// Whether enough requests wait at its entry.
    #[inline]
    fn reaches_threshold(&self) -> bool {
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
        if place.index() >= self.positions.len() {
            self.positions.resize(place.index() + 1, Position::default());
        }
        self.positions[place.index()].segment = segment;
        insert_by_arrival(&mut self.segments[segment].entry, place, requests);
    }

    /// Puts a victim at the head of its group's queue.
    fn requeue(&mut self, victim: Place) {
        let position = &mut self.positions[victim.index()];
        self.segments[position.segment].take_out(victim);
        position.segment = position.segment / self.per_group * self.per_group;
        self.segments[position.segment].entry.push_front(victim);
    }

    /// Pauses requests that have done the last stage of their segment at the entry of the next one.
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
                && self.segments[at].until_due(&self.positions) == 0
            {
                if plan.requests().at(place).phase() == Phase::Decoding {
                    plan.pause(place)?;
                }
                self.segments[at].inside.remove(place);
                self.segments[at + 1].entry.push_back(place);
                self.positions[place.index()].segment = at + 1;
            }
        }
        Ok(())
    }

    /// Whether too few requests wait in every group. Then no segment takes part.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.segments.iter().step_by(self.per_group).all(|first| !first.reaches_threshold())
    }

    /// Excludes all segments.
    fn rest(&mut self, plan: &mut Plan) {
        self.segments.iter_mut().for_each(|segment| segment.takes_part = false);
        plan.rest_all();
    }

    /// In each group, the segments take part up to i* = max{i: |entry of i'| ≥ n_i' for all i' ≤ i}. The requests
    /// inside decode, and paused requests enter. Returns whether any enters.
    fn decode(&mut self, plan: &mut Plan) -> Result<bool> {
        let (mut at, mut enters) = (0, false);
        for group in self.segments.chunks_mut(self.per_group) {
            let mut takes_part = true;
            for (index, segment) in group.iter_mut().enumerate() {
                takes_part &= plan.drain() || segment.reaches_threshold();
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
                // Requests enter the first segment by admission.
                let most = if index == 0 { 0 } else { segment.threshold };
                for _ in 0..most {
                    let Some(place) = segment.entry.first() else { break };
                    segment.entry.remove(place);
                    segment.enter(place, &mut self.positions[place.index()]);
                    plan.decode(place)?;
                    enters = true;
                }
            }
        }
        Ok(enters)
    }

    /// Admits from the queue of each group whose first segment takes part. Returns whether any request is admitted.
    fn admit(&mut self, plan: &mut Plan) -> Result<bool> {
        let mut admits = false;
        for at in (0..self.segments.len()).step_by(self.per_group) {
            let first = &mut self.segments[at];
            let most = if first.takes_part { first.threshold } else { 0 };
            for _ in 0..most {
                let Some(place) = self.seniority.admit_head(&mut first.entry, plan)? else { break };
                first.enter(place, &mut self.positions[place.index()]);
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
                let segment = &mut self.segments[self.positions[place.index()].segment];
                if segment.stages > 1 {
                    segment.ready.push(place);
                }
            }
            Notice::Preempted(place) => {
                self.seniority.remove(place);
                self.requeue(place);
            }
            Notice::Left(place) => {
                self.seniority.remove(place);
                self.segments[self.positions[place.index()].segment].take_out(place);
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.leave_segments(plan)?;
        if !plan.drain() && self.is_waiting() {
            self.rest(plan);
            return Ok(());
        }
        let enters = self.decode(plan)?;
        while let Some(victim) = self.seniority.send_back_if_short(plan)? {
            self.requeue(victim);
        }
        if plan.has_preempted() || self.admit(plan)? || enters || plan.drains_with_others() {
            return Ok(());
        }
        // A request without room now has none while no request leaves. Entries change with arrivals and with the next
        // pause.
        let taking_part = self.segments.iter().filter(|segment| segment.takes_part);
        let iterations = taking_part.map(|segment| segment.until_due(&self.positions)).min().unwrap_or(u64::MAX);
        plan.hold(Hold { iterations, through_arrivals: false });
        Ok(())
    }
}
