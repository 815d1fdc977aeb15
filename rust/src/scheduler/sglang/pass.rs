//! Prefill admission: the requests that a prefill step adds.

use super::reserved::{MOST_RESERVED, Reserved};
use super::{SglangScheduler, emitted, limit, to_emit};
use crate::error::Result;
use crate::plan::{Limit, Plan};
use crate::request::{Place, Requests};

/// Whether more requests may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Go,
    Memory,
    Budget,
}

/// A row picked by a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picked {
    pub(super) place: Place,
    pub(super) tokens: u64,
    /// Whether it arrived from another replica with its context, so that its row is a decode.
    pub(super) has_context: bool,
}

/// An attempt to form a batch of prompts.
#[derive(Debug, Default)]
pub(super) struct Pass {
    page: u64,
    /// Remaining input tokens of the pass, and of its chunk; `None`: no chunking.
    input: i64,
    chunk: Option<i64>,
    reserved: Reserved,
    /// Tokens of the picked rows and of the decodes mixed in.
    current: u64,
    pub(super) picked: Vec<Picked>,
    /// Remaining output and known tokens of all running requests and candidates (`ignore_eos` without a prefix
    /// cache).
    ends: Option<Vec<(u64, u64)>>,
}

impl Pass {
    /// Whether the input budget or the chunk is used up.
    fn is_spent(&self) -> bool {
        self.input <= 0 || self.chunk.is_some_and(|chunk| chunk <= 0)
    }

    fn pick(&mut self, picked: Picked, reserve: u64, plan: &Plan) {
        let tokens = in_pages(picked.tokens, plan);
        self.reserved.add(tokens + self.page + reserve);
        self.current += tokens + self.page;
        self.input -= tokens as i64;
        if let Some(chunk) = &mut self.chunk {
            *chunk -= tokens as i64;
        }
        self.picked.push(picked);
    }
}

/// Tokens rounded up to whole pages.
fn in_pages(tokens: u64, plan: &Plan) -> u64 {
    plan.blocks(tokens) * plan.block_tokens()
}

/// Free tokens of the cache, minus `but` pages. Saturates for an unlimited cache.
fn available(plan: &Plan, but: u64) -> i64 {
    (plan.free_blocks() - but as i64).saturating_mul(plan.block_tokens() as i64)
}

/// Maximum number of waiting requests that the fast path checks.
const FEW: u64 = 8;

impl SglangScheduler {
    /// Fast path: few new requests, with budget for all prompts and memory for all reservations. They are picked
    /// whole, and admission stays open.
    #[inline]
    pub(super) fn admits_all(&mut self, plan: &mut Plan) -> Result<bool> {
        let settings = &self.settings;
        let (chunk_tokens, max_prefill_tokens) = (settings.chunk_tokens, settings.max_prefill_tokens);
        let (max_seqs, ignore_eos) = (settings.max_seqs, settings.ignore_eos);
        let waiting = self.queue.len() as u64;
        let (running, is_many) = (self.running.len() as u64, waiting > FEW);
        if is_many || self.partial.is_some() || ignore_eos || self.mixes() || plan.shares_blocks() {
            return Ok(false);
        }
        let (mut tokens, mut reserve) = (0, waiting * plan.block_tokens() + self.outstanding(plan));
        for place in self.queue.iter() {
            let requests = plan.requests();
            if requests.context(place) + requests.emitted(place) > 0 {
                return Ok(false);
            }
            tokens += in_pages(requests.owed(place), plan);
            reserve += limit(requests, place, self.pool).min(MOST_RESERVED);
        }
        let budget = chunk_tokens.unwrap_or(u64::MAX).min(max_prefill_tokens - 1);
        let has_sequences = waiting <= plan.sequences_left() && running + waiting <= max_seqs;
        if tokens > budget || !has_sequences || available(plan, 0) <= (tokens + reserve) as i64 {
            return Ok(false);
        }
        while let Some(place) = self.queue.first() {
            let owed = plan.requests().owed(place);
            if !plan.try_admit(place, owed, 0, owed, owed)? {
                return Err(plan.broken("a request with room is admitted", place));
            }
            self.queue.remove(place);
            self.last.push(place);
        }
        Ok(true)
    }

    /// Picks the requests of a prefill step; none if no step can be formed.
    pub(super) fn attempt(&mut self, pass: &mut Pass, plan: &mut Plan) -> Result<()> {
        let running = self.running.len() as u64;
        let along = if self.mixes() { running } else { 0 };
        let outstanding = self.outstanding(plan);
        pass.page = plan.block_tokens();
        pass.input = self.settings.max_prefill_tokens as i64 - along as i64;
        pass.chunk = self.settings.chunk_tokens.map(|chunk| chunk as i64 - along as i64);
        pass.reserved.open(along, running, outstanding, self.share());
        pass.current = along;
        pass.picked.clear();
        pass.ends = None;
        match self.partial {
            Some(place) if !self.continue_partial(place, pass, plan) => Ok(()),
            _ => self.pick(pass, plan),
        }
    }

    /// Adds the next chunk of the partial prefill. Without a free page the engine would run out of memory; here the
    /// chunk waits and the decodes run.
    fn continue_partial(&self, place: Place, pass: &mut Pass, plan: &mut Plan) -> bool {
        let Some(chunk) = pass.chunk else { return false };
        let (available, sum) = (available(plan, 0), |ratio| self.sum(ratio, plan));
        let room = if pass.reserved.leaves_more_than(chunk as u64, available, sum) {
            chunk as u64
        } else {
            let left = pass.reserved.left(available, sum);
            if left > 0 { chunk.min(left) as u64 } else { chunk as u64 }
        };
        let requests = plan.requests();
        let (owed, context) = (requests.owed(place), requests.context(place));
        let pages = requests.at(place).blocks() + plan.free_blocks() as u64;
        let tokens = owed.min(room).min(pages.saturating_mul(pass.page) - context);
        if tokens == 0 {
            return false;
        }
        let reserve = if tokens < owed { 0 } else { self.reserve(place, requests) };
        plan.move_last(place);
        pass.pick(Picked { place, tokens, has_context: false }, reserve, plan);
        true
    }

    /// Tokens reserved for the output of a request with a complete prompt: the whole limit, also after a retraction.
    fn reserve(&self, place: Place, requests: &Requests) -> u64 {
        limit(requests, place, self.pool).min(MOST_RESERVED)
    }

    /// The reserved future output of the running requests, summed from left to right.
    fn sum(&self, ratio: f64, plan: &Plan) -> f64 {
        let running = self.running.iter();
        running.map(|place| to_emit(plan, place).min(MOST_RESERVED) as f64 * ratio).fold(0.0, |sum, share| sum + share)
    }

    fn verdict(&self, pass: &mut Pass, plan: &Plan) -> Verdict {
        let available = available(plan, 0);
        let leaves_some = pass.reserved.leaves_more_than(0, available, |ratio| self.sum(ratio, plan));
        if !leaves_some || available <= pass.current as i64 {
            Verdict::Memory
        } else if pass.is_spent() {
            Verdict::Budget
        } else {
            Verdict::Go
        }
    }

    /// Admits requests from the queue while they have room.
    fn pick(&mut self, pass: &mut Pass, plan: &mut Plan) -> Result<()> {
        let max_picked = self.settings.max_seqs.saturating_sub(self.running.len() as u64);
        let mut next = self.queue.first();
        if pass.is_spent() && self.verdict(pass, plan) == Verdict::Budget {
            return Ok(());
        }
        while let Some(place) = next {
            if pass.picked.len() as u64 >= max_picked {
                self.closed = Some(Limit::MaxSeqs);
            }
            if self.closed.is_some() {
                break;
            }
            let limit = limit(plan.requests(), place, self.pool);
            let has_context = plan.requests().context(place) > 0;
            if !has_context && plan.shares_blocks() {
                plan.refresh(place, plan.requests().known(place) - 1);
                plan.look_up(place);
            }
            let by_ends = self.settings.ignore_eos && !plan.shares_blocks();
            let has_room = if by_ends {
                self.has_room_by_ends(place, has_context, pass, plan)
            } else {
                self.has_room_by_share(place, has_context, limit, pass, plan)
            };
            // A request that has emitted tokens may be refused even an empty cache that had room at its arrival. The
            // engine would wait forever.
            let accepted = if has_room || (pass.picked.is_empty() && plan.cache_is_empty()) {
                self.cut(place, by_ends, pass, plan)
            } else {
                Err(Verdict::Memory)
            };
            let verdict = match accepted {
                Ok(tokens) => {
                    let requests = plan.requests();
                    let reserve = if tokens < requests.owed(place) { 0 } else { limit.min(MOST_RESERVED) };
                    plan.admit(place, requests.context(place))?;
                    pass.pick(Picked { place, tokens, has_context }, reserve, plan);
                    next = self.queue.after(place);
                    self.queue.remove(place);
                    self.verdict(pass, plan)
                }
                Err(verdict) => verdict,
            };
            if verdict == Verdict::Memory {
                let others = !pass.picked.is_empty() || !self.running.is_empty();
                self.closed = others.then_some(Limit::Blocks);
            }
            if accepted.is_err() || verdict != Verdict::Go {
                break;
            }
        }
        Ok(())
    }

    /// The number of tokens of a candidate to compute.
    fn cut(&self, place: Place, by_ends: bool, pass: &Pass, plan: &Plan) -> std::result::Result<u64, Verdict> {
        let owed = plan.requests().owed(place);
        let pages = in_pages(owed, plan) as i64;
        match pass.chunk {
            Some(chunk) if by_ends => Ok(owed.min(chunk as u64)),
            Some(chunk) if pages > chunk => match chunk as u64 / pass.page * pass.page {
                0 => Err(Verdict::Budget),
                whole => Ok(whole),
            },
            None if !by_ends && !pass.picked.is_empty() && pages >= pass.input => Err(Verdict::Budget),
            _ => Ok(owed),
        }
    }

    /// Whether a candidate has room next to the reserved shares.
    fn has_room_by_share(&self, place: Place, has_context: bool, limit: u64, pass: &mut Pass, plan: &Plan) -> bool {
        let requests = plan.requests();
        let own = if has_context { requests.next_context(place) } else { requests.owed(place) };
        let least = own + (limit - emitted(plan, place)).min(MOST_RESERVED) + pass.page;
        // A cache hit is not free any more once it is held. A context from another replica is not in the cache yet.
        let available = available(plan, if has_context { 0 } else { plan.unreferenced_hit(place) });
        pass.reserved.leaves_more_than(least, available, |ratio| self.sum(ratio, plan))
    }

    /// The variant for known output lengths: requests that end first free their memory for the others.
    fn has_room_by_ends(&self, place: Place, has_context: bool, pass: &mut Pass, plan: &Plan) -> bool {
        let requests = plan.requests();
        let own = if has_context { requests.next_context(place) } else { requests.owed(place) };
        let need = in_pages(own, plan) + pass.page;
        let available = available(plan, 0);
        let left = i128::from(available) - i128::from(pass.current);
        let has_room = pass.reserved.leaves_more_than(need - 1, available, |ratio| self.sum(ratio, plan));
        if i128::from(need) > left || !has_room {
            return false;
        }
        let known = |place: Place| requests.known(place) - plan.tokens_in_flight(place);
        let end = |place: Place| (to_emit(plan, place), known(place));
        match &mut pass.ends {
            Some(ends) => {
                let own = end(place);
                let index = ends.iter().position(|&(to_emit, _)| own.0 <= to_emit);
                ends.insert(index.unwrap_or(ends.len().saturating_sub(1)), own);
            }
            ends => {
                let picked = pass.picked.iter().map(|row| row.place);
                let all = std::iter::once(place).chain(self.running.iter()).chain(picked);
                let mut all: Vec<(u64, u64)> = all.map(end).filter(|&(to_emit, _)| to_emit > 0).collect();
                all.sort_by_key(|&(to_emit, _)| to_emit);
                *ends = Some(all);
            }
        }
        let ends = pass.ends.as_deref().unwrap_or_default();
        let mut freed = 0;
        for (index, &(to_emit, known)) in ends.iter().enumerate() {
            let rows = (ends.len() - index) as i128;
            if left - i128::from(need) + freed - i128::from(to_emit) * rows <= rows {
                return false;
            }
            freed += i128::from(known);
        }
        true
    }
}
