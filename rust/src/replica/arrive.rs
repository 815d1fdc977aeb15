//! Arrivals from clients and other replicas, abandonment and cancellation.

use super::in_flight::Drafting;
use super::{Departure, Replica, Stranded};
use crate::clock::{Instant, Long};
use crate::error::Result;
use crate::features::Full;
use crate::kv::Segment;
use crate::request::{History, Phase, Place, Request};
use crate::results::{Recorder, Status};
use crate::scheduler::Notice;
use crate::speculation::RequestDrafts;
use crate::workload::Arrival;

impl Replica {
    /// Handles the arrival of a request whose prompt begins with `content`. A request that can never fit is rejected.
    pub(crate) fn arrive(
        &mut self,
        arrival: &Arrival,
        content: &[Segment],
        results: &mut Recorder,
    ) -> Result<Option<Place>> {
        self.arrive_here(arrival, content, results)
    }

    /// [`Replica::arrive`] inlined into the hottest caller.
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
        self.accept(arrival, content).map(Some)
    }

    /// Handles a request that may be too long: its output is cut to the maximum length.
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
        self.accept(&self.with_limit_in_length(&arrival), content).map(Some)
    }

    #[inline(always)]
    fn accept(&mut self, arrival: &Arrival, content: &[Segment]) -> Result<Place> {
        self.state.brought_tokens += u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        let place = self.state.requests.insert(arrival);
        if self.has_extra_state {
            self.open_extra_state(place, content, arrival);
        }
        self.queue(place, arrival.prompt_tokens, arrival.at)?;
        Ok(place)
    }

    fn open_extra_state(&mut self, place: Place, content: &[Segment], arrival: &Arrival) {
        self.state.blocks.open(place, content, arrival);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, Drafting::default());
        }
        if self.keeps_prefixes {
            self.keep_prefix(place, content);
        }
    }

    fn keep_prefix(&mut self, place: Place, content: &[Segment]) {
        if self.prefixes.len() <= place.index() {
            self.prefixes.resize_with(place.index() + 1, Vec::new);
        }
        self.prefixes[place.index()] = content.to_vec();
    }

    /// Handles a request that waited for a replica, or whose own replica failed. Its emitted tokens extend its
    /// prompt. A request that can never fit is rejected.
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
        arrival = self.with_limit_in_length(&arrival);
        let Stranded { history, content, drafting, recorded, .. } = stranded;
        let retries = history.retries();
        let request = Request::sent(&arrival, emitted, now);
        self.state.brought_tokens += u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens - emitted);
        let place = self.state.requests.put(request, History { arrival, ..history.sent(retries, now) });
        self.state.blocks.open(place, &content, &arrival);
        self.state.recorded_drafts.put(place, recorded);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, drafting);
        }
        if self.keeps_prefixes {
            self.keep_prefix(place, &content);
        }
        self.queue(place, arrival.prompt_tokens, now)?;
        Ok(Some(place))
    }

    /// Prepares for failures: keeps the content of prompts, so that requests can be retried elsewhere.
    pub(crate) fn may_die(&mut self) {
        self.keeps_prefixes = !self.state.blocks.has_cache();
        self.has_extra_state = true;
    }

    /// Continues the counters of the replica that it replaces.
    pub(crate) fn replace(&mut self, other: &Replica) {
        let (state, before) = (&mut self.state, &other.state);
        state.prefilled_tokens = before.prefilled_tokens;
        state.emitted_tokens = before.emitted_tokens;
        state.brought_tokens = before.prefilled_tokens + before.emitted_tokens;
        state.cached_tokens = before.cached_tokens;
    }

    /// Receives a request from another replica. Its context stays on the host until admission.
    pub(crate) fn receive(&mut self, departure: Departure, now: Instant) -> Result<()> {
        let request = departure.request.handed_off(now);
        let history = departure.history.handed_off(departure.from, departure.at, now);
        self.state.brought_tokens += u64::from(request.output_tokens - request.emitted);
        let (arrival, prompt) = (history.arrival, request.prompt_tokens);
        let place = self.state.requests.put(request, history);
        self.state.blocks.open(place, &departure.content, &arrival);
        self.state.recorded_drafts.put(place, departure.recorded);
        if let Some(drafts) = &mut self.state.drafts {
            drafts.open(place, departure.drafting);
        }
        self.queue(place, prompt, now)
    }

    /// Sets the drafts of a new request as its workload describes them.
    pub(crate) fn set_drafts(&mut self, place: Place, recorded: RequestDrafts) {
        self.state.recorded_drafts.put(place, recorded);
    }

    /// Adds a request to the queue.
    #[inline(always)]
    fn queue(&mut self, place: Place, prompt: u32, now: Instant) -> Result<()> {
        self.state.add_waiting_blocks(prompt);
        self.state.waiting += 1;
        self.scheduler.notice(Notice::Arrived(place), &self.state.requests);
        if self.is_idle {
            return Ok(());
        }
        if self.state.ahead.is_some() {
            return self.queue_while_planned(now);
        }
        let stretch = &mut self.stretch;
        if !stretch.through_arrivals {
            self.cut(now)?;
        } else if stretch.before_a_request_waits == u64::MAX {
            stretch.before_a_request_waits = stretch.begun_before(now)?;
        }
        Ok(())
    }

    /// Whether request `id` still waits at this place for its first admission. The place may be vacant or reused.
    pub(crate) fn awaits_admission(&self, place: Place, id: u32) -> bool {
        let request = self.state.requests.at(place);
        request.id == id && request.phase() == Phase::Waiting && self.state.requests.history(place).is_new()
    }

    /// Abandons a request that still waits for its first admission.
    pub(crate) fn abandon(&mut self, place: Place, id: u32, now: Instant, results: &mut Recorder) -> Result<bool> {
        if !self.awaits_admission(place, id) {
            return Ok(false);
        }
        results.leave::<Long>(self.state.requests.history(place), self.index, Status::Abandoned, now);
        self.scheduler.notice(Notice::Left(place), &self.state.requests);
        let arrival = *self.state.requests.arrival(place);
        self.state.brought_tokens -= u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        self.state.remove_waiting_blocks(arrival.prompt_tokens);
        self.state.remove::<Full>(place);
        // A cancelled request may still have a patience event later.
        self.state.requests.at_mut(place).phase = Phase::Started;
        self.state.waiting -= 1;
        if self.is_idle && self.is_empty() {
            // No request is left that the scheduler could be woken for.
            self.next = Instant::NEVER;
        }
        self.cut(now)?;
        Ok(true)
    }

    /// Cancels a request. Before its first admission it leaves at once, and the result is true. Afterwards its next
    /// token is its last.
    pub(crate) fn cancel(&mut self, place: Place, now: Instant, results: &mut Recorder) -> Result<bool> {
        let id = self.state.requests.at(place).id;
        if self.abandon(place, id, now, results)? {
            results.taken_back += 1;
            return Ok(true);
        }
        results.cancel(id);
        self.cut(now)?;
        // If its last iteration ends at `now`, the token of that iteration came before.
        let running = if self.is_idle { 0 } else { self.stretch.count + u64::from(self.stretch.end <= now) };
        self.state.end_soon(place, running);
        Ok(false)
    }
}

impl Stranded {
    /// A request that had no replica yet, with its drafts from the workload.
    pub(crate) fn new(arrival: Arrival, content: &[Segment], recorded: RequestDrafts) -> Stranded {
        let (history, drafting) = (History::new(arrival), Drafting::default());
        Stranded { emitted: 0, history, content: content.to_vec(), drafting, recorded }
    }

    /// Records its departure, or its status at the end of the run.
    pub(crate) fn leave(&self, replica: u32, status: Status, now: Instant, results: &mut Recorder) {
        results.drafts(&self.history.arrival, self.drafting.drafted, self.drafting.accepted);
        results.leave::<Long>(&self.history, replica, status, now);
    }
}
