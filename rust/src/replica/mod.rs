//! One engine, from one batch to the next.
//!
//! `plan → price → advance → settle`: the scheduler plans a batch, the timing model prices it, the clock advances
//! over a *stretch* of k identical iterations, and its end settles their effects. An event may cut a running stretch.
//! Because time is whole, no result depends on where stretches end (invariant L8).

// State.
mod state;
mod batch;
mod blocks;
mod groups;
mod layer_groups;
mod steady;
mod wheel;

// Behavior and queries.
mod arrive;
mod in_flight;
mod stretch;
mod settle;
mod ahead;
mod late;
mod drafts;
mod recorded_drafts;
mod read;
mod cache_at;

use std::cell::Cell;

use crate::clock::{Instant, Long, Short, Span, Unit, Width};
use crate::engine::EngineParts;
use crate::error::{Error, Kind, Result};
use crate::features::{Features, Full, Plain, Variant};
use crate::finding::Finding;
use crate::kv::{DetachedBlocks, KvBlocks, RowLimits, Segment};
use crate::plan::{Ahead, Plan};
use crate::request::{FirstToken, History, Phase, Place, Request, Requests};
use crate::results::Members;
use crate::scheduler::Scheduler;
use crate::speculation::{RequestDrafts, SpeculationParts};
use crate::timing::{HostTime, Pace, PiecewiseLinear, Timing};
use ahead::AheadScheduler;
use batch::Batch;
use in_flight::{Drafting, Drafts, InFlight};
use recorded_drafts::RecordedDrafts;
use state::{FIRST_ROW, Measured};
use steady::Decodes;
use stretch::Stretch;

pub(crate) use batch::Chunk;
pub(crate) use groups::Groups;
pub(crate) use state::State;

/// One engine on one GPU group.
pub(crate) struct Replica {
    index: u32,
    scheduler: Box<dyn Scheduler>,
    /// Findings about its configuration.
    findings: Vec<Finding>,
    timing: Box<dyn Timing>,
    /// The timing model, if it is linear and the host takes no time.
    line: Option<PiecewiseLinear<u64>>,
    /// Host time in addition to GPU time, if any.
    host: Option<HostTime>,
    /// Maximum length of a request in tokens.
    max_model_len: u32,
    /// Requests of at most this length, prompt and output, are neither too long nor too large for the cache, and no
    /// plan ahead foresees that they reach the maximum length.
    surely_fits: u64,
    state: State,
    /// The running stretch; if the replica is idle, the last one.
    stretch: Stretch,
    is_idle: bool,
    /// The next event of this replica: the end of a stretch, or the wake-up instant of its scheduler.
    next: Instant,
    stepping: bool,
    role: Role,
    /// Requests about to depart for another replica.
    departing: Vec<Place>,
    departures: Vec<Departure>,
    /// Content of prompts, by place: for requests that may go to another replica, if no cache stores it.
    prefixes: Vec<Vec<Segment>>,
    keeps_prefixes: bool,
    /// Whether a request has state outside `requests`: its content for a cache or another replica, or its drafts.
    has_extra_state: bool,
    reports: Option<cache_at::Reports>,
    /// Sent blocks whose transfer ended during a running iteration.
    arrived: Vec<(Instant, HeldBlocks)>,
    /// Steady decodes whose blocks taken ahead are full.
    due: Vec<Place>,
    /// Rows whose request changes at the end, by their order in the batch.
    ending: Vec<(u64, Place)>,
}

/// The part of a request's life on this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Prefill and decode.
    Whole,
    /// Prefill; the request continues elsewhere.
    Prefill,
    /// Prefill, after which the request leaves, and decodes of requests that arrive with their context.
    Slots,
}

/// A request that leaves for another replica after its prefill.
pub(crate) struct Departure {
    pub(crate) request: Request,
    pub(crate) history: History,
    /// The replica that it leaves, and when.
    pub(crate) from: u32,
    pub(crate) at: Instant,
    /// The blocks that it still holds there.
    pub(crate) held: HeldBlocks,
    /// The content of its prompt.
    pub(crate) content: Vec<Segment>,
    /// Its drafts, and their description in the workload.
    drafting: Drafting,
    recorded: RequestDrafts,
}

/// A request without a replica: none is open, or its own failed.
#[derive(Clone, Debug)]
pub(crate) struct Stranded {
    /// Emitted tokens, which the client has.
    pub(crate) emitted: u32,
    pub(crate) history: History,
    /// The content of its prompt.
    pub(crate) content: Vec<Segment>,
    /// Its drafts, and their description in the workload.
    drafting: Drafting,
    recorded: RequestDrafts,
}

/// Blocks of a request in transfer to another replica.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks {
    blocks: u64,
    kept: DetachedBlocks,
}

/// Limit of preemptions without an emitted token, against policies in an endless loop. It is higher than any policy
/// needs that preempts its requests one plan at a time.
const MAX_PREEMPTIONS_PER_TOKEN: u64 = 1 << 16;

/// The end of `count` iterations.
#[inline(always)]
fn end_after(start: Instant, pace: &Pace, count: u64) -> Result<Instant> {
    start.after(pace.total(count)?)
}

impl Replica {
    /// An idle replica. Requests outside `measured` are excluded from histograms. With `stepping` every stretch is
    /// one iteration. The engine counts time in this unit.
    pub(crate) fn new(
        index: u32,
        engine: EngineParts,
        role: Role,
        classes: usize,
        measured: std::ops::Range<u32>,
        stepping: bool,
        unit: Unit,
    ) -> Replica {
        let speculation = engine.scheduler.speculates();
        let ahead = engine.scheduler.plans_ahead();
        let rows = RowLimits {
            token_budget: engine.scheduler.limits().token_budget,
            plans_ahead: ahead.is_some(),
            max_model_len: u64::from(engine.max_model_len),
        };
        let blocks = KvBlocks::of(&engine.kv, speculation.as_ref().map_or(0, SpeculationParts::beyond_block), rows);
        let keeps_prefixes = role == Role::Prefill && !blocks.has_cache();
        let has_extra_state =
            keeps_prefixes || blocks.has_cache() || blocks.has_layer_groups() || speculation.is_some();
        let longest = blocks.tokens().min(u64::from(engine.max_model_len) - u64::from(ahead.is_some()));
        // With drafts, the last token takes a slot too.
        let surely_fits = if speculation.is_some() { 0 } else { longest };
        let moduli = engine.timing.moduli().to_vec();
        let findings = engine.scheduler.findings(&engine.kv);
        let limits = engine.scheduler.limits();
        let drafts = speculation.map(|parts| Drafts::new(parts, engine.max_model_len, engine.first_token, &blocks));
        let has_little = !blocks.has_cache()
            && !blocks.has_layer_groups()
            && drafts.is_none()
            && role == Role::Whole
            && classes == 1
            && moduli.is_empty()
            && !limits.frees_with_batch
            && engine.first_token == FirstToken::Prefill;
        let scheduler = match ahead {
            Some(ahead) => {
                let pause = Span(unit.count(ahead.pause.0));
                Box::new(AheadScheduler::new(engine.scheduler, Ahead { pause, ..ahead }))
            }
            None => engine.scheduler,
        };
        let takes_short_way = engine.host.is_zero() && drafts.is_none();
        let line = engine.timing.short_line().filter(|_| takes_short_way);
        Replica {
            index,
            state: State {
                unit,
                requests: Requests::new(engine.first_token, engine.max_model_len),
                variant: match (has_little, ahead) {
                    (false, _) => Variant::Full,
                    (true, None) => Variant::Plain,
                    (true, Some(_)) => Variant::Ahead,
                },
                steady: 0,
                further_growth: Cell::default(),
                is_resting: false,
                drains_last: false,
                groups: Groups::new(Decodes::new(blocks.block_tokens(), Members::new(classes), &moduli)),
                blocks,
                moduli,
                limits,
                caches_in_row_order: false,
                batch: Batch::new(),
                running: 0,
                waiting: 0,
                first_row: FIRST_ROW,
                last_row: FIRST_ROW,
                prefilled_tokens: 0,
                emitted_tokens: 0,
                brought_tokens: 0,
                waiting_blocks: None,
                kept: DetachedBlocks::default(),
                sent_blocks: 0,
                cached_tokens: 0,
                preemptions_since_token: 0,
                iterations: 0,
                idle: Span::ZERO,
                last_end: Instant::ZERO,
                swap_charge: Span::ZERO,
                most_preempted: 0,
                measured: Measured::new(measured),
                recorded_drafts: RecordedDrafts::default(),
                drafts: drafts.map(Box::new),
                ahead: ahead.map(|ahead| Box::new(InFlight::new(ahead))),
            },
            findings,
            scheduler,
            line: line.cloned(),
            timing: engine.timing,
            host: Some(engine.host).filter(|host| !host.is_zero()),
            max_model_len: engine.max_model_len,
            surely_fits,
            stretch: Stretch::default(),
            is_idle: true,
            next: Instant::NEVER,
            stepping,
            role,
            departing: Vec::new(),
            departures: Vec::new(),
            prefixes: Vec::new(),
            keeps_prefixes,
            has_extra_state,
            reports: None,
            arrived: Vec::new(),
            due: Vec::new(),
            ending: Vec::new(),
        }
    }

    /// Lists each stretch at its end.
    pub(crate) fn is_listed(&mut self) {
        self.state.needs_all_features();
    }

    /// Switches to times of any length.
    pub(crate) fn has_long_times(&mut self) {
        self.state.variant = self.state.variant.long();
    }

    /// Starts to count the blocks of queued prompts, for a router that reads them.
    pub(crate) fn count_waiting_blocks(&mut self) {
        self.state.waiting_blocks = Some(0);
    }

    /// During a drain: whether no other replica has requests.
    pub(crate) fn drains_last(&mut self, is_last: bool) {
        self.state.drains_last = is_last;
    }

    /// The running stretch.
    #[inline]
    fn stretch(&self) -> Option<&Stretch> {
        (!self.is_idle).then_some(&self.stretch)
    }

    /// Requests that left for another replica since the last call, in order of ids.
    pub(crate) fn departures(&mut self) -> std::vec::Drain<'_, Departure> {
        self.departures.drain(..)
    }

    /// Releases the blocks of a departed request after its transfer. The next batch sees them as free.
    pub(crate) fn release(&mut self, held: HeldBlocks, now: Instant) -> Result<()> {
        self.arrived.push((now, held));
        if self.is_idle {
            self.free_arrived(now);
        }
        self.cut(now)
    }

    /// Ends the running stretch with the iteration that runs at `now`.
    #[inline]
    fn cut(&mut self, now: Instant) -> Result<()> {
        if self.is_idle || self.stretch.count == 1 { Ok(()) } else { self.cut_further(now) }
    }

    fn cut_further(&mut self, now: Instant) -> Result<()> {
        let stretch = &mut self.stretch;
        if stretch.end <= now {
            return Ok(());
        }
        // An iteration that ends at `now` is over; otherwise the running one is the last.
        stretch.count = stretch.begun_before(now)?;
        stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        if stretch.end == now && self.state.ahead.is_some() {
            // The batch that begins at `now` is formed already.
            stretch.count += 1;
            stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        }
        self.next = stretch.end;
        Ok(())
    }

    /// Forms the next batch, if the scheduler plans one. Returns whether an iteration runs now.
    pub(crate) fn form(&mut self, now: Instant, drain: bool) -> Result<bool> {
        self.form_here::<Long>(now, drain)
    }

    /// [`Replica::form`] inlined into the hottest caller, for times of this width.
    #[inline(always)]
    pub(crate) fn form_here<W: Width>(&mut self, now: Instant, drain: bool) -> Result<bool> {
        debug_assert!(self.is_idle, "an iteration cannot be interrupted");
        match self.state.variant {
            Variant::Plain if W::IS_SHORT => self.form_with::<Plain<Short>>(now, drain),
            Variant::PlainLong if !W::IS_SHORT => self.form_with::<Plain<Long>>(now, drain),
            _ => self.form_rarer(now, drain),
        }
    }

    fn form_rarer(&mut self, now: Instant, drain: bool) -> Result<bool> {
        match self.state.variant {
            Variant::Plain => self.form_with::<Plain<Short>>(now, drain),
            Variant::PlainLong => self.form_with::<Plain<Long>>(now, drain),
            Variant::Ahead | Variant::Full => self.form_with::<Full<Short>>(now, drain),
            Variant::AheadLong | Variant::FullLong => self.form_with::<Full<Long>>(now, drain),
        }
    }

    #[inline(always)]
    fn form_with<F: Features>(&mut self, now: Instant, drain: bool) -> Result<bool> {
        if F::FULL {
            self.report(now)?;
        }
        loop {
            self.make_plan::<F>(now, now, drain)?;
            let batch = &self.state.batch;
            if batch.chunk_tokens > 0 || self.state.steady > 0 {
                break;
            }
            if batch.preempted.is_empty() && !(F::FULL && self.state.hit_is_too_fresh()) {
                self.next = batch.wake_at.filter(|&at| at > now).unwrap_or(Instant::NEVER);
                return Ok(false);
            }
        }
        if self.state.is_covered_by::<F>() {
            self.run::<F>(now)?;
        } else {
            // The plan added a group or a swap.
            self.run_fully(now)?;
        }
        Ok(true)
    }

    /// Runs the scheduler's plan for a batch that begins now or later.
    #[inline(always)]
    fn make_plan<F: Features>(&mut self, now: Instant, begins: Instant, drain: bool) -> Result<()> {
        self.state.clear_batch::<F>();
        if F::FULL && self.state.blocks.has_cache() {
            self.state.publish_followed(0);
        }
        self.scheduler.plan(&mut Plan::new(&mut self.state, now, begins, drain))?;
        if F::FULL {
            self.state.remove_missing_drafts();
        }
        if F::FULL && !self.state.batch.looked_up.is_empty() {
            self.state.discard_hits();
        }
        if F::FULL && self.state.blocks.has_layer_groups() {
            self.state.end_plan_of_groups();
        }
        self.check_plan(now)
    }

    /// Checks the plan as a whole (R6).
    #[inline(always)]
    fn check_plan(&mut self, now: Instant) -> Result<()> {
        let state = &self.state;
        let is_placed = |&place: &Place| {
            let request = state.requests.at(place);
            request.placed || request.phase() == Phase::Decoding
        };
        if state.steady + state.batch.chunk_tokens > state.limits.token_budget
            || !state.has_free(0)
            || !(state.batch.is_each_placed || state.batch.admitted.iter().all(is_placed))
        {
            return Err(self.broken_rule(now));
        }
        if !state.batch.preempted.is_empty() {
            self.count_preemptions(now)?;
        }
        Ok(())
    }

    /// The rule that the plan violated.
    #[cold]
    fn broken_rule(&self, now: Instant) -> Error {
        let state = &self.state;
        let tokens = state.steady + state.batch.chunk_tokens;
        if tokens > state.limits.token_budget {
            return state.broken(
                now,
                "an iteration must not load more tokens than the budget",
                format!("{tokens} tokens"),
            );
        }
        if !state.has_free(0) {
            let what = format!("{} decodes, {} free blocks", state.steady, state.blocks.free());
            return state.broken(now, "a plan takes at most the free blocks", what);
        }
        let is_left_out = |request: &&Request| !request.placed && request.phase() != Phase::Decoding;
        let left_out = state.batch.admitted.iter().map(|&place| state.requests.at(place)).find(is_left_out);
        let what = left_out.map_or_else(String::new, |request| format!("request {}", request.id));
        state.broken(now, "a request is admitted by the batch that computes its first chunk", what)
    }

    fn count_preemptions(&mut self, now: Instant) -> Result<()> {
        let state = &mut self.state;
        state.preemptions_since_token += state.batch.preempted.len() as u64;
        if state.preemptions_since_token >= MAX_PREEMPTIONS_PER_TOKEN {
            let what = format!("{} preemptions without an emitted token", state.preemptions_since_token);
            return Err(state.broken(now, "preemption must make progress", what));
        }
        Ok(())
    }

    /// The pace of the batch.
    fn price(&mut self) -> Result<Pace> {
        self.state.batch.list_priced();
        let shape = self.state.shape(&self.state.batch.priced);
        let mut pace = self.timing.pace(&shape)?;
        if let Some(drafts) = &self.state.drafts {
            pace.first = pace.first.plus(drafts.drafting(pace.first, &shape)?)?;
        }
        match &self.host {
            Some(host) => host.add_to(pace, &shape),
            None => Ok(pace),
        }
    }

    /// The end of a stretch of `count` iterations, or of fewer iterations whose end fits 64 bits, if any.
    #[cold]
    fn far_end(&mut self, now: Instant, pace: &Pace, count: u64) -> Result<(Instant, u64)> {
        // If stretches are listed, only events may end them.
        let mut fewer = if self.state.unit == Unit::ATTOSECOND { 0 } else { count / 2 };
        while fewer > 0 {
            if let Some(end) = pace.short_end(now, fewer) {
                return Ok((end, fewer));
            }
            fewer /= 2;
        }
        self.has_long_times();
        Ok((end_after(now, pace, count)?, count))
    }

    fn run_fully(&mut self, now: Instant) -> Result<()> {
        if self.is_short() { self.run::<Full<Short>>(now) } else { self.run::<Full<Long>>(now) }
    }

    /// Prices the batch and runs it until something changes.
    #[inline(always)]
    fn run<F: Features>(&mut self, now: Instant) -> Result<()> {
        debug_assert!(F::Width::IS_SHORT || !self.is_short(), "64-bit times run in a 64-bit variant");
        let on_line = self.line.as_ref().and_then(|line| self.state.pace_on::<F>(line));
        let takes_time = on_line.is_some();
        let mut pace = match on_line {
            Some(pace) => pace,
            None => self.price()?,
        };
        let state = &mut self.state;
        let (due, growth) = state.until_due_and_growth::<F>();
        let mut count = state.batch.hold.iterations.min(pace.holds).min(state.batch.most_iterations).min(due);
        if count > 1 {
            count = if self.stepping { 1 } else { count.min(self.scheduler.holds(&pace)) };
        }
        if F::FULL && state.swap_charge > Span::ZERO {
            pace.first = pace.first.plus(state.swap_charge)?;
            state.swap_charge = Span::ZERO;
            count = 1;
        }
        let mut count = count.max(1);
        if F::FULL && count > 1 && state.blocks.has_layer_groups() {
            count = state.iterations_of_groups(count);
        }
        let has_cache = F::FULL && state.blocks.has_cache();
        if has_cache {
            count = state.iterations_that_cache_alike(count);
        }
        state.blocks.take_for::<F>(growth);
        let free = state.blocks.free();
        let load = state.steady + state.batch.chunk_tokens + if F::FULL { state.batch.missing_drafts } else { 0 };
        // The first iteration has its blocks. A token takes at most one block, and a decode usually none.
        let mut is_roomy = if count == 1 {
            free > 0
        } else {
            load.saturating_mul(count) < free || state.most_more_blocks(count) < free
        };
        debug_assert!(!is_roomy || state.more_blocks(count) - growth < free, "the upper bound is at least the count");
        if count > 1 && (!is_roomy || has_cache) {
            (count, is_roomy) = state.iterations_that_fit(count, growth);
        }
        if F::AHEAD && count > 1 && state.ahead.as_ref().is_some_and(|ahead| ahead.drops) {
            count = state.iterations_without_a_victim(count, growth);
        }
        if !takes_time && (pace.first == Span::ZERO || (pace.growth < 0 && pace.length(count - 1)? == Span::ZERO)) {
            return Err(Kind::EmptyIteration(state.unit.instant(now).seconds().to_string()).into());
        }
        let (end, count) = match if F::Width::IS_SHORT { pace.short_end(now, count) } else { None } {
            Some(end) => (end, count),
            None if F::Width::IS_SHORT => self.far_end(now, &pace, count)?,
            None => (end_after(now, &pace, count)?, count),
        };
        self.next = end;
        let state = &mut self.state;
        if now != state.last_end {
            state.idle = Span(state.idle.0 + now.since(state.last_end).0);
        }
        self.stretch = Stretch {
            start: now,
            pace,
            count,
            end,
            through_arrivals: state.batch.hold.through_arrivals,
            decodes: state.steady,
            growth,
            load,
            is_roomy,
            before_a_request_waits: if state.waiting > 0 { 0 } else { u64::MAX },
        };
        self.is_idle = false;
        Ok(())
    }
}
