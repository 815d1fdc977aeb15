//! Preemption, and the return of swapped requests.

use super::Plan;
use crate::clock::Span;
use crate::error::Result;
use crate::features::Full;
use crate::request::{Phase, Place};

/// The way a preempted request gives up its blocks (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// The context is lost, the emitted tokens are kept, and both are prefilled again.
    Recompute,
    /// The context and the emitted tokens are lost: the request restarts from its prompt (ao2025 A.3).
    Restart,
    /// The context moves to the host and back; each move takes time: li2025 (A.3).
    Swap {
        /// Time per token of context.
        per_token: Span,
        /// Time per move.
        base: Span,
    },
}

impl Preemption {
    /// Whether a preemption takes no time besides recomputation.
    pub(crate) fn takes_no_time(self) -> bool {
        match self {
            Preemption::Recompute | Preemption::Restart => true,
            Preemption::Swap { per_token, base } => per_token == Span::ZERO && base == Span::ZERO,
        }
    }
}

impl Plan<'_> {
    /// Swaps a request in, with the blocks for `tokens` tokens in all.
    pub fn swap_in(&mut self, place: Place, preemption: Preemption, tokens: u64) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Swapped {
            return Err(self.broken("only a swapped request can be swapped in", place));
        }
        self.take_sequence(place)?;
        let context = self.state.requests.context(place);
        let blocks = self.state.blocks.need(tokens.max(context));
        self.take(place, blocks)?;
        self.state.blocks.scheduled(place, context);
        self.charge_swap(preemption, context)
    }

    /// Preempts an admitted request to free blocks for another; it waits again. A request placed earlier in this plan
    /// has already taken the free blocks.
    pub fn preempt(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        self.state.lose_in_flight(place);
        let is_dropped = self.state.drops_token_of(place);
        self.leave_batch(place)?;
        self.reserve(0);
        self.give_up(place, preemption)?;
        if is_dropped {
            self.state.drop_token(place);
        }
        Ok(())
    }

    pub(super) fn leave_batch(&mut self, place: Place) -> Result<()> {
        match self.state.requests.at(place).phase {
            Phase::Decoding => self.state.leave_decodes(place),
            Phase::Started => self.withdraw_chunk(place)?,
            Phase::Waiting | Phase::Swapped => {
                return Err(self.broken("only an admitted request can be preempted", place));
            }
        }
        Ok(())
    }

    pub(super) fn give_up(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        let context = self.state.requests.context(place);
        self.state.release::<Full>(place, false);
        let (request, history) = self.state.requests.both_mut(place);
        history.preemptions += 1;
        self.state.most_preempted = self.state.most_preempted.max(history.preemptions);
        if let Preemption::Swap { .. } = preemption {
            request.phase = Phase::Swapped;
        } else {
            let prompt = request.prompt_tokens;
            self.state.brought_tokens += u64::from(prompt.min(request.computed));
            if preemption == Preemption::Restart {
                self.state.brought_tokens += u64::from(request.emitted);
                history.discarded_tokens += u64::from(request.emitted);
                request.emitted = 0;
            }
            request.computed = 0;
            request.ready = false;
            request.phase = Phase::Waiting;
            self.state.drop_offer(place);
            self.state.add_waiting_blocks(prompt);
        }
        self.state.running -= 1;
        self.state.waiting += 1;
        self.state.batch.preempted.push(place);
        self.charge_swap(preemption, context)
    }

    fn withdraw_chunk(&mut self, place: Place) -> Result<()> {
        if self.state.batch.admitted.contains(&place) {
            return Err(self.broken("a plan must not preempt a request that it admits", place));
        }
        if self.state.batch.withdraw(place) {
            self.state.requests.at_mut(place).placed = false;
        }
        Ok(())
    }

    fn charge_swap(&mut self, preemption: Preemption, context: u64) -> Result<()> {
        if let Preemption::Swap { per_token, base } = preemption {
            let cost = per_token.times(u128::from(context))?.plus(base)?;
            self.state.swap_charge = self.state.swap_charge.plus(cost)?;
            self.state.needs_all_features();
        }
        Ok(())
    }
}
