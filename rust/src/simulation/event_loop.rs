//! The event loop: all replicas on one calendar, instant by instant, in the order of R4.

mod calendar;

use std::cmp::Reverse;

use super::run::{Order, Polls, Run};
use crate::clock::{Instant, Long};
use crate::error::{Error, Result};
use crate::gate_and_route::{Dispatch, Placed};
use crate::replica::Departure;
use crate::request::Place;
use crate::results::{NO_REPLICA, Status};
use crate::workload::{Arrival, Workload};
pub(super) use calendar::Calendar;

impl Run {
    /// Switches to the event loop, where requests may also arrive or leave because of other events.
    pub(super) fn move_to_event_loop(&mut self) -> Result<()> {
        self.synchronize()?;
        self.order = Order::EventLoop;
        for (place, replica) in self.fleet.replicas.iter().enumerate() {
            self.calendar.in_system += replica.requests();
            self.calendar.set_end(place, replica.next_instant());
        }
        Ok(())
    }

    /// Sets up the dependencies between rows.
    pub(super) fn take_flow(&mut self, workload: &Workload) -> Result<()> {
        let flow = &workload.flow;
        self.results.expect_finishes();
        self.calendar.awaited = flow.parents.to_vec();
        for row in (0..flow.parents.len()).filter(|&row| flow.is_delayed(row) && flow.parents(row) == 0) {
            let at = workload.arrival_at(row).after(flow.delay(row))?;
            if self.options.horizon.is_none_or(|horizon| at <= horizon) {
                self.calendar.released.push(Reverse((at, row as u32)));
            } else {
                self.arrivals.more_to_come = true;
            }
        }
        Ok(())
    }

    /// Checks that some decode replica fits every request that a prefill replica accepts.
    pub(super) fn every_hand_off_fits(&self, workload: &Workload) -> Result<()> {
        let replicas = &self.fleet.replicas;
        for (index, station) in self.stations.iter().enumerate() {
            let Some(link) = station.link else { continue };
            let to = &self.fleet.pools[self.calendar.links[link].to].replicas;
            for row in (0..self.arrivals.rows).filter(|&row| workload.pool(row) == index) {
                let arrival = workload.request(row, Instant::ZERO);
                let fits = |replica: usize| {
                    let (capacity, need) = replicas[replica].capacity_and_need(&arrival);
                    need <= capacity
                };
                let has_more_events = |replica: usize| replicas[replica].sends_on(&arrival) && fits(replica);
                if self.fleet.pools[index].replicas.clone().any(has_more_events) && !to.clone().any(fits) {
                    let blocks = |replica: usize| replicas[replica].capacity_and_need(&arrival);
                    let (capacity, need) = to.clone().map(blocks).max().unwrap_or_default();
                    let what = format!(
                        "the KV of row {} fits nowhere after its prefill: it grows to {need} blocks, the largest \
                         decode replica has {capacity}",
                        arrival.id
                    );
                    return Err(Error::config("decode", what));
                }
            }
        }
        Ok(())
    }

    /// Runs all events before `stop_at`.
    pub(super) fn advance_event_loop(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        loop {
            let instant = self.next_in_event_loop();
            if instant >= self.stop_at {
                return Ok(());
            }
            polls.count(self.results.left())?;
            if instant >= self.sampler.seen {
                self.sampler.sample_before(instant, &self.fleet.replicas, &mut self.results)?;
            }
            self.run_instant(instant, workload)?;
        }
    }

    /// The next event.
    #[inline]
    pub(super) fn next_in_event_loop(&mut self) -> Instant {
        let next = self.next_of_requests();
        match &self.capacities {
            None => next,
            Some(all) => all.join(next),
        }
    }

    /// The next event, except replica events.
    #[inline(always)]
    fn next_of_requests(&mut self) -> Instant {
        let next_arrival = self.next_arrival();
        let calendar = &mut self.calendar;
        let mut others = calendar.ends.least().min(next_arrival);
        for link in &calendar.links {
            others = others.min(link.next_end());
        }
        if let Some(dispatch) = &mut calendar.dispatch {
            others = others.min(dispatch.next_deadline(others));
        }
        if !calendar.cancels.is_empty() {
            others = others.min(self.next_cancel(others));
        }
        let calendar = &mut self.calendar;
        // The patience of an admitted request has no effect.
        while let Some(&Reverse((at, id, replica, place))) = calendar.patience.peek() {
            let awaits = match self.fleet.replicas.get(replica as usize) {
                Some(replica) => replica.awaits_admission(Place(place), id),
                None => self.capacities.as_ref().is_some_and(|all| all.holds(id)),
            };
            if at >= others || awaits {
                return others.min(at);
            }
            calendar.patience.pop();
        }
        others
    }

    /// The next cancellation of a live request, if it is before `others`.
    fn next_cancel(&mut self, others: Instant) -> Instant {
        while let Some(&Reverse((at, _, row))) = self.calendar.cancels.peek() {
            if at >= others || !self.results.has_left(row) {
                return at;
            }
            self.calendar.cancels.pop();
        }
        Instant::NEVER
    }

    /// The replica of a request, and its place there.
    fn place_of(&self, id: u32) -> Option<(usize, Place)> {
        let replicas = self.fleet.replicas.iter().enumerate();
        replicas.filter_map(|(replica, it)| Some((replica, it.place_of(id)?))).next()
    }

    /// When the next request is sent: at once if it was held back and need not be any more.
    #[inline]
    fn next_arrival(&self) -> Instant {
        let calendar = &self.calendar;
        let at = self.next_due().max(self.now);
        if calendar.in_system + (calendar.returning.len() as u64) < calendar.most_in_flight {
            return at;
        }
        calendar.returning.peek().map_or(Instant::NEVER, |&Reverse(returned)| at.max(returned))
    }

    #[inline]
    fn next_due(&self) -> Instant {
        match self.calendar.released.peek() {
            None => self.arrivals.at,
            Some(&Reverse((at, _))) => at.min(self.arrivals.at),
        }
    }

    /// Number of due requests that were not sent.
    pub(super) fn held_back(&self, workload: &Workload) -> usize {
        let horizon = self.options.horizon.unwrap_or(Instant::NEVER);
        let rows = self.arrivals.next..self.arrivals.rows;
        let due = |&row: &usize| !workload.flow.is_delayed(row) && workload.arrival_at(row) <= horizon;
        self.calendar.released.len() + rows.filter(due).count()
    }

    /// Runs all events of one instant, in the order of R4.
    #[inline]
    fn run_instant(&mut self, instant: Instant, workload: &Workload) -> Result<()> {
        self.pass(self.now, instant, self.calendar.in_system)?;
        self.now = instant;
        self.calendar.instants += 1;
        while self.calendar.returning.peek().is_some_and(|&Reverse(at)| at <= instant) {
            self.calendar.returning.pop();
        }
        // No replica is due twice: it forms its next batch later.
        let mut due = self.calendar.ends.first_up_to(instant, 0);
        while let Some(replica) = due {
            self.settle(replica, workload)?;
            due = self.calendar.ends.first_up_to(instant, replica + 1);
        }
        for link in 0..self.calendar.links.len() {
            self.hand_over(link)?;
        }
        if self.capacities.is_some() {
            self.change_replicas()?;
        }
        if !self.calendar.patience.is_empty() {
            self.abandon_due()?;
        }
        if self.calendar.dispatch.is_some() {
            self.abandon_in_dispatch();
        }
        if self.capacities.is_some() {
            self.route_unrouted()?;
        }
        while self.next_arrival() == instant {
            let row = self.take_next_row(workload);
            self.arrive(row, workload)?;
            if !self.calendar.patience.is_empty() && self.next_arrival() > instant {
                // A request without patience leaves before batches are formed, and may make room.
                self.abandon_due()?;
            }
        }
        if !self.calendar.cancels.is_empty() {
            self.cancel_due()?;
        }
        if self.calendar.dispatch.is_some() {
            self.place(workload)?;
        }
        if self.calendar.touched.len() > 1 {
            self.calendar.touched.sort_unstable();
        }
        for index in 0..self.calendar.touched.len() {
            self.form(self.calendar.touched[index] as usize, false)?;
        }
        self.calendar.touched.clear();
        if self.capacities.is_some() { self.end_drains() } else { Ok(()) }
    }

    /// Settles the iterations of a replica that end now.
    #[inline]
    fn settle(&mut self, replica: usize, workload: &Workload) -> Result<()> {
        let before = self.results.left();
        self.fleet.replicas[replica].settle(&mut self.results)?;
        let left = self.results.left() - before;
        self.calendar.in_system -= left;
        if left > 0 && self.results.has_api() && self.calendar.most_in_flight < u64::MAX {
            let returned = self.now.after(self.results.api(replica))?;
            self.calendar.returning.extend(std::iter::repeat_n(Reverse(returned), left as usize));
        }
        if !self.calendar.links.is_empty() || self.calendar.dispatch.is_some() {
            self.send(replica)?;
        }
        if self.results.finished.as_ref().is_some_and(|finished| !finished.is_empty()) {
            self.release(replica, workload)?;
        }
        self.touch(replica);
        Ok(())
    }

    /// Sends requests with complete prompts to their next replica.
    fn send(&mut self, replica: usize) -> Result<()> {
        if let Some(dispatch) = &mut self.calendar.dispatch {
            let departures: Vec<Departure> = self.fleet.replicas[replica].departures().collect();
            for mut departure in departures {
                // A request that waits for a slot has its keys and values on the host.
                self.fleet.replicas[replica].release(std::mem::take(&mut departure.held), self.now)?;
                dispatch.prefilled(departure);
            }
            return Ok(());
        }
        let Some(link) = self.stations[self.fleet.pool_of(replica)].link else { return Ok(()) };
        for departure in self.fleet.replicas[replica].departures() {
            self.calendar.links[link].push(departure, self.now)?;
        }
        Ok(())
    }

    /// Frees the slots of finished requests, and releases the rows that depended on them.
    fn release(&mut self, replica: usize, workload: &Workload) -> Result<()> {
        let finished = self.results.finished.replace(Vec::new()).unwrap_or_default();
        for row in finished {
            if let Some(dispatch) = &mut self.calendar.dispatch {
                dispatch.decoded(replica);
            }
            if workload.flow.is_empty() {
                continue;
            }
            for &child in workload.flow.children(row as usize) {
                let awaited = &mut self.calendar.awaited[child as usize];
                *awaited -= 1;
                if *awaited == 0 {
                    let api = self.results.api(replica);
                    let at = self.now.after(api)?.after(workload.flow.delay(child as usize))?;
                    self.calendar.released.push(Reverse((at, child)));
                }
            }
        }
        Ok(())
    }

    /// Completes hand-offs: frees the blocks at the source and routes the request in the other pool.
    fn hand_over(&mut self, link: usize) -> Result<()> {
        while let Some(mut departure) = self.calendar.links[link].pop(self.now)? {
            let source = departure.from as usize;
            self.fleet.replicas[source].release(std::mem::take(&mut departure.held), self.now)?;
            self.touch(source);
            self.fleet.content.set(&departure.content);
            let replica = self.route(self.calendar.links[link].to, &departure.history.arrival, true)?;
            self.fleet.replicas[replica].receive(departure, self.now)?;
            self.touch(replica);
        }
        Ok(())
    }

    /// Marks a replica: if it is idle, it forms a batch after all other events of this instant.
    #[inline]
    pub(super) fn touch(&mut self, replica: usize) {
        self.fleet.count_requests(replica);
        let calendar = &mut self.calendar;
        if calendar.touched_at[replica] != calendar.instants {
            calendar.touched_at[replica] = calendar.instants;
            calendar.touched.push(replica as u32);
        }
    }

    fn abandon_due(&mut self) -> Result<()> {
        while let Some(&Reverse((at, id, replica, place))) = self.calendar.patience.peek() {
            if at > self.now {
                break;
            }
            self.calendar.patience.pop();
            let Some(waits_at) = self.fleet.replicas.get_mut(replica as usize) else {
                self.abandon_unrouted(id);
                continue;
            };
            if waits_at.abandon(Place(place), id, self.now, &mut self.results)? {
                self.calendar.in_system -= 1;
                self.touch(replica as usize);
            }
        }
        Ok(())
    }

    /// Applies cancellations.
    fn cancel_due(&mut self) -> Result<()> {
        while let Some(&Reverse((at, id, _))) = self.calendar.cancels.peek() {
            if at > self.now {
                break;
            }
            self.calendar.cancels.pop();
            if let Some((replica, place)) = self.place_of(id) {
                if self.fleet.replicas[replica].cancel(place, self.now, &mut self.results)? {
                    self.calendar.in_system -= 1;
                }
                self.touch(replica);
            } else if self.calendar.links.iter_mut().any(|link| link.cancel(id)) {
                self.results.cancel(id);
            } else {
                self.cancel_unrouted(id);
            }
        }
        Ok(())
    }

    /// Abandons requests whose patience ended before their admission.
    fn abandon_in_dispatch(&mut self) {
        let Some(dispatch) = &mut self.calendar.dispatch else { return };
        while let Some((history, replica)) = dispatch.give_up(self.now) {
            self.results.leave::<Long>(&history, replica, Status::Abandoned, self.now);
            self.calendar.in_system -= 1;
        }
    }

    /// Places requests as the control decides. Requests that still wait then draw their patience.
    fn place(&mut self, workload: &Workload) -> Result<()> {
        while let Some(placed) = self.calendar.dispatch.as_mut().and_then(Dispatch::place) {
            let (Placed::Prefill(_, replica) | Placed::Decode(_, replica)) = placed;
            match placed {
                Placed::Prefill(arrival, _) => {
                    let row = (arrival.row - workload.first) as usize;
                    self.fleet.content.read(&workload.content, row);
                    self.deliver(replica, &arrival, row, workload)?;
                }
                Placed::Decode(departure, _) => self.fleet.replicas[replica].receive(*departure, self.now)?,
            }
            self.touch(replica);
        }
        self.calendar.dispatch.as_mut().map_or(Ok(()), |dispatch| dispatch.wait(self.now))
    }

    /// The lowest row that arrives now.
    #[inline]
    fn take_next_row(&mut self, workload: &Workload) -> usize {
        if let Some(&Reverse((at, row))) = self.calendar.released.peek()
            && (at, row as usize) < (self.arrivals.at, self.arrivals.next)
        {
            self.calendar.released.pop();
            return row as usize;
        }
        self.arrivals.pop(workload)
    }

    #[inline]
    fn arrive(&mut self, row: usize, workload: &Workload) -> Result<()> {
        let arrival = self.arrivals.request(row, self.now, workload);
        if let Some(dispatch) = &mut self.calendar.dispatch {
            // All replicas have the same configuration.
            match self.fleet.replicas[0].refuses(&arrival) {
                Some(reason) => self.results.reject(&arrival, NO_REPLICA, reason),
                None => {
                    dispatch.arrive(arrival);
                    self.calendar.in_system += 1;
                }
            }
        } else {
            let pool = workload.pool(row);
            self.fleet.content.read(&workload.content, row);
            if self.capacities.is_some() && self.queue_if_no_replica(row, &arrival, workload)? {
                self.note_last_arrival();
                return Ok(());
            }
            let replica = self.route(pool, &arrival, false)?;
            if let Some(reason) = self.refuses_afterwards(pool, replica, &arrival) {
                self.results.reject(&arrival, replica as u32, reason);
            } else if let Some(place) = self.deliver(replica, &arrival, row, workload)? {
                self.calendar.in_system += 1;
                self.expect_cancel(row, &arrival, workload)?;
                if let Some(patience) = workload.patience(row) {
                    let end = (self.now.after(patience)?, arrival.id, replica as u32, place.0);
                    self.calendar.patience.push(Reverse(end));
                }
                self.touch(replica);
            }
        }
        self.note_last_arrival();
        Ok(())
    }

    /// Schedules the cancellation of a request, if any.
    #[inline]
    pub(super) fn expect_cancel(&mut self, row: usize, arrival: &Arrival, workload: &Workload) -> Result<()> {
        if let Some(span) = workload.canceled_after(row) {
            self.calendar.cancel(arrival.id, arrival.row, self.now.after(span)?);
            self.results.expect_finishes();
        }
        Ok(())
    }

    #[inline]
    fn note_last_arrival(&mut self) {
        if self.arrivals.at == Instant::NEVER {
            self.waiting_at_last_arrival = self.waiting();
        }
    }

    /// Delivers a request to a replica, with its data from the workload.
    #[inline]
    fn deliver(&mut self, replica: usize, arrival: &Arrival, row: usize, workload: &Workload) -> Result<Option<Place>> {
        let to = &mut self.fleet.replicas[replica];
        let place = to.arrive(arrival, &self.fleet.content, &mut self.results)?;
        if let Some(place) = place.filter(|_| workload.describes_drafts()) {
            to.set_drafts(place, workload.drafts(row)?);
        }
        Ok(place)
    }

    /// Why no replica of the hand-off can ever serve a request, if so.
    #[inline]
    fn refuses_afterwards(&self, pool: usize, replica: usize, arrival: &Arrival) -> Option<&'static str> {
        let replicas = &self.fleet.replicas;
        let link = self.stations[pool].link.filter(|_| replicas[replica].sends_on(arrival))?;
        let mut reason = None;
        for replica in self.fleet.pools[self.calendar.links[link].to].replicas.clone() {
            reason = Some(replicas[replica].refuses(arrival)?);
        }
        reason
    }
}
