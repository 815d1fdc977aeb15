//! Requests come: from clients, or from another replica with their context. One that waits too long goes.

use super::in_flight::Drafting;
use super::{Departure, Replica, Stranded};
use crate::clock::{Instant, Long};
use crate::error::Result;
use crate::features::Full;
use crate::kv::Segment;
use crate::request::{History, Phase, Place, Request};
use crate::results::{Recorder, Status};
use crate::scheduler::Notice;
use crate::workload::Arrival;

impl Replica {
    /// A request arrives whose prompt begins with `content`. One that can never fit is rejected at once.
    #[inline(never)]
    pub(crate) fn arrive(
        &mut self,
        arrival: &Arrival,
        content: &[Segment],
        results: &mut Recorder,
    ) -> Result<Option<Place>> {
        self.arrive_here(arrival, content, results)
    }

    /// The same for a caller that the hottest code is to be a part of.
    #[inline(always)]
    pub(crate) fn arrive_here(
        &mut self,
        arrival: &Arrival,
        content: &[Segment],
        results: &mut Recorder,
    ) -> Result<Option<Place>> {
        if u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens) > self.surely_fits {
            return self.arrive_long(arrival, content, results);
        }
        if let Some(reason) = self.scheduler.refuses(arrival, &self.state.blocks) {
            results.reject(arrival, self.index, reason);
            return Ok(None);
        }
        self.take_in(arrival, content).map(Some)
    }

    /// The same for one that may be too long. Then its output ends with the longest length.
    #[inline(never)]
    fn arrive_long(&mut self, arrival: &Arrival, content: &[Segment], results: &mut Recorder) -> Result<Option<Place>> {
        if let Some(reason) = self.refuses(arrival) {
            results.reject(arrival, self.index, reason);
            return Ok(None);
        }
        let mut arrival = *arrival;
        if self.is_too_long(&arrival) {
            let shorter = self.cut_to_length(&arrival);
            results.cut(&arrival, arrival.output_tokens - shorter.output_tokens);
            arrival = shorter;
        }
        self.take_in(&arrival, content).map(Some)
    }

    #[inline(always)]
    fn take_in(&mut self, arrival: &Arrival, content: &[Segment]) -> Result<Place> {
        self.state.brought_tokens += u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        let place = self.state.requests.insert(arrival);
        if self.notes_more {
            self.note_more(place, content, arrival);
        }
        self.queue(place, arrival.prompt_tokens, arrival.at)?;
        Ok(place)
    }

    #[inline(never)]
    fn note_more(&mut self, place: Place, content: &[Segment], arrival: &Arrival) {
        self.state.blocks.open(place, content, arrival);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, Drafting::default());
        }
        if self.keeps_prefixes {
            self.keep_prefix(place, content);
        }
    }

    #[inline(never)]
    fn keep_prefix(&mut self, place: Place, content: &[Segment]) {
        if self.prefixes.len() <= place.index() {
            self.prefixes.resize_with(place.index() + 1, Vec::new);
        }
        self.prefixes[place.index()] = content.to_vec();
    }

    /// A request comes that has waited for a replica, or whose own has died: its prompt is longer by the tokens that its
    /// client has. One that can never fit is rejected.
    pub(crate) fn arrive_late(
        &mut self,
        stranded: Stranded,
        now: Instant,
        results: &mut Recorder,
    ) -> Result<Option<Place>> {
        let Stranded { emitted, ref history, .. } = stranded;
        let mut arrival = history.arrival;
        let (prompt_tokens, output_tokens) = (arrival.prompt_tokens + emitted, arrival.output_tokens - emitted);
        if let Some(reason) = self.refuses(&Arrival { prompt_tokens, output_tokens, ..arrival }) {
            results.refuse(&arrival, reason);
            stranded.leave(self.index, Status::Rejected, now, results);
            return Ok(None);
        }
        if self.is_too_long(&arrival) {
            let shorter = self.cut_to_length(&arrival);
            results.cut(&arrival, arrival.output_tokens - shorter.output_tokens);
            arrival = shorter;
        }
        let Stranded { history, content, drafting, accepted, .. } = stranded;
        let retries = history.retries();
        let request = Request::sent(&arrival, emitted, now);
        self.state.brought_tokens += u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens - emitted);
        let place = self.state.requests.put(request, History { arrival, ..history.sent(retries, now) });
        self.state.blocks.open(place, &content, &arrival);
        self.accepted.put(place, accepted);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, drafting);
        }
        if self.keeps_prefixes {
            self.keep_prefix(place, &content);
        }
        self.queue(place, arrival.prompt_tokens, now)?;
        Ok(Some(place))
    }

    /// It may die: what its requests begin with is kept, so that they can be sent elsewhere.
    pub(crate) fn may_die(&mut self) {
        self.keeps_prefixes = !self.state.blocks.has_cache();
        self.notes_more = true;
    }

    /// It stands in the place of another one and goes on with its counts.
    pub(crate) fn replace(&mut self, other: &Replica) {
        let (state, before) = (&mut self.state, &other.state);
        state.prefilled_tokens = before.prefilled_tokens;
        state.emitted_tokens = before.emitted_tokens;
        state.brought_tokens = before.prefilled_tokens + before.emitted_tokens;
        state.cached_tokens = before.cached_tokens;
    }

    /// A request comes from another replica with its context, which is kept on the host until it is admitted.
    pub(crate) fn receive(&mut self, departure: Departure, now: Instant) -> Result<()> {
        let request = departure.request.handed_off(now);
        let history = departure.history.handed_off(departure.from, departure.at, now);
        self.state.brought_tokens += u64::from(request.output_tokens - request.emitted);
        let (arrival, prompt) = (history.arrival, request.prompt_tokens);
        let place = self.state.requests.put(request, history);
        self.state.blocks.open(place, &departure.content, &arrival);
        self.accepted.put(place, departure.accepted);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, departure.drafting);
        }
        self.queue(place, prompt, now)
    }

    /// The workload says of a request that has just come how many drafts of its rows that emit are accepted, in order.
    pub(crate) fn tell_accepted(&mut self, place: Place, accepted: &[u16]) {
        self.accepted.put(place, accepted.to_vec());
    }

    /// A request joins the queue.
    #[inline(always)]
    fn queue(&mut self, place: Place, prompt: u32, now: Instant) -> Result<()> {
        self.state.comes_to_wait(prompt);
        self.state.waiting += 1;
        self.scheduler.notice(Notice::Arrived(place), &self.state.requests);
        if self.is_idle {
            return Ok(());
        }
        if self.state.ahead.is_some() {
            return self.queue_ahead(now);
        }
        let stretch = &mut self.stretch;
        if !stretch.through_arrivals {
            self.cut(now)?;
        } else if stretch.before_a_request_waits == u64::MAX {
            stretch.before_a_request_waits = stretch.begun_before(now)?;
        }
        Ok(())
    }

    /// Does this request still wait for its first admission? A place that is empty or taken by another is told from one
    /// where `id` still waits, since a request that left waits no more.
    pub(crate) fn awaits_admission(&self, place: Place, id: u32) -> bool {
        let request = self.state.requests.at(place);
        request.id == id && request.phase() == Phase::Waiting && self.state.requests.history(place).is_new()
    }

    /// A request runs out of patience, if it still waits for its first admission.
    pub(crate) fn abandon(&mut self, place: Place, id: u32, now: Instant, results: &mut Recorder) -> Result<bool> {
        if !self.awaits_admission(place, id) {
            return Ok(false);
        }
        results.leave::<Long>(self.state.requests.history(place), self.index, Status::Abandoned, now);
        self.scheduler.notice(Notice::Left(place), &self.state.requests);
        let arrival = *self.state.requests.arrival(place);
        self.state.brought_tokens -= u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        self.state.waits_no_more(arrival.prompt_tokens);
        self.state.remove::<Full>(place);
        // One that was taken back would have lost its patience later.
        self.state.requests.at_mut(place).phase = Phase::Started;
        self.state.waiting -= 1;
        if self.is_idle && self.is_empty() {
            // Nothing is left that a scheduler wanted to be woken for.
            self.next = Instant::NEVER;
        }
        self.cut(now)?;
        Ok(true)
    }

    /// The client of a request takes it back. Before its first admission it leaves at once, and this says so; afterwards
    /// its next token is its last.
    pub(crate) fn cancel(&mut self, place: Place, now: Instant, results: &mut Recorder) -> Result<bool> {
        let id = self.state.requests.at(place).id;
        if self.abandon(place, id, now, results)? {
            results.taken_back += 1;
            return Ok(true);
        }
        results.cancel(id);
        self.cut(now)?;
        // Where its last iteration ends at this very instant the token of that came before.
        let running = if self.is_idle { 0 } else { self.stretch.count + u64::from(self.stretch.end <= now) };
        self.state.end_soon(place, running);
        Ok(false)
    }
}

impl Stranded {
    /// A request that had no replica yet; of its drafts the workload says this.
    pub(crate) fn new(arrival: Arrival, content: &[Segment], accepted: &[u16]) -> Stranded {
        let (history, drafting) = (History::new(arrival), Drafting::default());
        Stranded { emitted: 0, history, content: content.to_vec(), drafting, accepted: accepted.to_vec() }
    }

    /// It leaves, or is still here when the run ends.
    pub(crate) fn leave(&self, replica: u32, status: Status, now: Instant, results: &mut Recorder) {
        results.drafts(&self.history.arrival, self.drafting.drafted, self.drafting.accepted);
        results.leave::<Long>(&self.history, replica, status, now);
    }
}
