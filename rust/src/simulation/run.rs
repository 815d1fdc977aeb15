//! The events of a cluster, one instant after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::outcome::Outcome;
use super::sampler::Sampler;
use super::{Options, Watch};
use crate::clock::{Instant, Span, product};
use crate::cluster::Cluster;
use crate::error::{Error, Kind, Result};
use crate::gate_and_route::{Dispatch, Placed};
use crate::kv::Segment;
use crate::links::Transfers;
use crate::plan::Limits;
use crate::replica::{Departure, Replica, Role};
use crate::request::Place;
use crate::results::{NO_REPLICA, Recorder, Status};
use crate::router::{Fleet, Router};
use crate::timing::Beyond;
use crate::tournament::Tournament;
use crate::workload::{Arrival, Workload};

/// Replicas that one router chooses from, among all of the run.
struct Station {
    replicas: Range<usize>,
    /// Requests at each of them.
    requests: Tournament<u32>,
    router: Option<Box<dyn Router>>,
    /// The place of its link, if requests go on elsewhere when their prompts are computed.
    link: Option<usize>,
}

/// A run under way. The caller hands it the rows of the workload that it knows, which may be a part of all.
pub(super) struct Run<'a> {
    options: &'a Options,
    stations: Vec<Station>,
    replicas: Vec<Replica>,
    /// The station of each replica.
    station_of: Vec<u32>,
    /// When something happens at each replica next.
    calendar: Tournament<Instant>,
    /// Replicas at which something happened at this instant, and for each the last instant of which it is one, counted.
    touched: Vec<u32>,
    touched_at: Vec<u64>,
    instants: u64,
    links: Vec<Transfers>,
    /// Requests that queue before the replicas.
    dispatch: Option<Dispatch>,
    results: Recorder,
    /// Rows of this part that arrive by the horizon, or may.
    rows: usize,
    /// Rows that do not belong to this part arrive at this instant at the earliest; `NEVER`: there are none.
    known_until: Instant,
    /// Nothing happens from this instant on without a closer look: more rows are needed, or the run is over.
    look_at: Instant,
    /// The next row to arrive that waits for no other, and when it does.
    next_row: usize,
    next_arrival: Instant,
    /// For how many others each row still waits; empty: none does.
    awaited: Vec<u32>,
    /// Does a request that waits for no other arrive after the horizon?
    more_to_come: bool,
    /// Rows that wait for no other any more, by the instant of their arrival.
    released: BinaryHeap<Reverse<(Instant, u32)>>,
    patience: BinaryHeap<Reverse<PatienceEnd>>,
    now: Instant,
    in_system: u64,
    in_system_area: u128,
    waiting_at_last_arrival: u64,
    stalled: bool,
    sampler: Sampler,
}

/// When a request loses patience, its id, its replica and its place there.
type PatienceEnd = (Instant, u32, u32, u32);

/// Events between two polls: often enough for Ctrl-C, rarely enough to cost nothing.
const POLL_EVERY: u32 = 1 << 10;

impl<'a> Run<'a> {
    /// A run of which no row is known yet, with the number of its first replica.
    pub(super) fn new(
        first: u32,
        class_count: usize,
        cluster: Cluster,
        options: &'a Options,
        sampler: Sampler,
    ) -> Run<'a> {
        let (mut stations, mut replicas, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let mut station_of = Vec::new();
        for pool in cluster.pools {
            let begin = replicas.len();
            for engine in pool.engines {
                let index = first + replicas.len() as u32;
                let role = match (&cluster.control, &pool.hands_to) {
                    (Some(_), _) => Role::Slots,
                    (None, Some(_)) => Role::Prefill,
                    (None, None) => Role::Whole,
                };
                let measured = options.measured.clone();
                replicas.push(Replica::new(index, engine, role, class_count, measured, options.stepping));
            }
            let link = pool.hands_to.map(|hands_to| {
                links.push(Transfers::new(hands_to.link, hands_to.pool));
                links.len() - 1
            });
            station_of.resize(replicas.len(), stations.len() as u32);
            if let Some(every) = pool.router.as_ref().and_then(|router| router.reports_every()) {
                replicas[begin..].iter_mut().for_each(|replica: &mut Replica| replica.report_every(every));
            }
            let requests = Tournament::new(replicas.len() - begin, 0, u32::MAX);
            stations.push(Station { replicas: begin..replicas.len(), requests, router: pool.router, link });
        }
        let mut results = Recorder::new(class_count, options.iterations, options.batches);
        if !links.is_empty() || cluster.control.is_some() {
            results.keep_hand_offs();
        }
        if cluster.control.is_some() {
            results.finished = Some(Vec::new());
        }
        Run {
            options,
            touched_at: vec![0; replicas.len()],
            station_of,
            calendar: Tournament::new(replicas.len(), Instant::NEVER, Instant::NEVER),
            stations,
            replicas,
            touched: Vec::new(),
            instants: 0,
            links,
            dispatch: cluster.control.map(|(control, patience)| Dispatch::new(control, patience)),
            results,
            rows: 0,
            known_until: Instant::ZERO,
            look_at: Instant::ZERO,
            next_row: 0,
            next_arrival: Instant::NEVER,
            awaited: Vec::new(),
            more_to_come: false,
            released: BinaryHeap::new(),
            patience: BinaryHeap::new(),
            now: Instant::ZERO,
            in_system: 0,
            in_system_area: 0,
            waiting_at_last_arrival: 0,
            stalled: false,
            sampler,
        }
    }

    /// The rows that come next. Others follow that arrive at `known_until` or later; `NEVER`: none does.
    pub(super) fn take(&mut self, workload: &Workload, known_until: Instant) -> Result<()> {
        let (flow, options) = (&workload.flow, self.options);
        self.rows = if flow.is_empty() { options.rows(workload) } else { workload.len() };
        self.more_to_come |= self.rows < workload.len();
        self.known_until = known_until;
        let after_horizon = options.horizon.map_or(Ok(Instant::NEVER), |horizon| horizon.after(Span(1)))?;
        // A row beyond the horizon is the last that a run needs to know.
        self.look_at = if self.more_to_come { after_horizon } else { after_horizon.min(known_until) };
        self.results.extend_to(workload.first as usize + self.rows);
        self.every_hand_off_fits(workload)?;
        if !flow.is_empty() {
            self.results.keep_elapsed((0..self.rows).map(|row| workload.arrival_at(row)).collect());
            self.results.finished = Some(Vec::new());
            self.awaited = flow.parents.to_vec();
        }
        for row in (0..flow.parents.len()).filter(|&row| flow.is_delayed(row) && flow.parents(row) == 0) {
            let at = workload.arrival_at(row).after(flow.delay(row))?;
            if options.horizon.is_none_or(|horizon| at <= horizon) {
                self.released.push(Reverse((at, row as u32)));
            } else {
                self.more_to_come = true;
            }
        }
        self.next_row = 0;
        self.find_next_row(workload);
        Ok(())
    }

    /// The rows of this part that have arrived.
    pub(super) fn arrived(&self) -> usize {
        self.next_row
    }

    /// The results as far as they are there.
    pub(super) fn recorder(&mut self) -> &mut Recorder {
        &mut self.results
    }

    /// What a replica can prefill, some replica must be able to go on with: else the cluster makes no sense.
    fn every_hand_off_fits(&self, workload: &Workload) -> Result<()> {
        for (index, station) in self.stations.iter().enumerate() {
            let Some(link) = station.link else { continue };
            let to = &self.stations[self.links[link].to].replicas;
            for row in (0..self.rows).filter(|&row| workload.pool(row) == index) {
                let arrival = workload.request(row, Instant::ZERO);
                let fits = |replica: usize| {
                    let (capacity, need) = self.replicas[replica].capacity_and_need(&arrival);
                    need <= capacity
                };
                let goes_on = |replica: usize| self.replicas[replica].sends_on(&arrival) && fits(replica);
                if station.replicas.clone().any(goes_on) && !to.clone().any(fits) {
                    let blocks = |replica: usize| self.replicas[replica].capacity_and_need(&arrival);
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

    /// The whole run over a workload of which all rows are known.
    pub(super) fn complete(mut self, workload: &Workload, watch: &mut dyn Watch) -> Result<Outcome> {
        self.take(workload, Instant::NEVER)?;
        self.advance(workload, self.rows as u64, watch)?;
        self.finish()
    }

    /// Lets happen what the known rows decide; says whether the run is over. `total` requests are to come in all.
    pub(super) fn advance(&mut self, workload: &Workload, total: u64, watch: &mut dyn Watch) -> Result<bool> {
        let mut countdown = 0;
        loop {
            if countdown == 0 {
                countdown = POLL_EVERY;
                watch.poll(self.results.left(), total)?;
            }
            countdown -= 1;
            let instant = self.next_instant();
            if instant >= self.look_at {
                if self.known_until < Instant::NEVER && !self.more_to_come {
                    return Ok(false);
                }
                if instant == Instant::NEVER && !self.more_to_come && self.drain()? {
                    continue;
                }
                return Ok(true);
            }
            if instant > self.sampler.next {
                self.sampler.sample_before(instant, &self.replicas, &mut self.results)?;
            }
            self.happen(instant, workload)?;
        }
    }

    #[inline]
    fn next_instant(&mut self) -> Instant {
        let mut others = self.calendar.least().min(self.next_arrival());
        for link in &self.links {
            others = others.min(link.next_end());
        }
        if let Some(dispatch) = &mut self.dispatch {
            others = others.min(dispatch.next_deadline(others));
        }
        // The patience of a request that has been admitted is no event any more.
        while let Some(&Reverse((at, id, replica, place))) = self.patience.peek() {
            if at >= others || self.replicas[replica as usize].awaits_admission(Place(place), id) {
                return others.min(at);
            }
            self.patience.pop();
        }
        others
    }

    #[inline]
    fn next_arrival(&self) -> Instant {
        match self.released.peek() {
            None => self.next_arrival,
            Some(&Reverse((at, _))) => at.min(self.next_arrival),
        }
    }

    /// Everything that happens at one instant, in the order of rule 4.
    #[inline]
    fn happen(&mut self, instant: Instant, workload: &Workload) -> Result<()> {
        let span = instant.since(self.now);
        let area = product(span.0, u128::from(self.in_system))?;
        self.in_system_area =
            self.in_system_area.checked_add(area).ok_or_else(|| Error::overflow("∫ number in system dt"))?;
        self.now = instant;
        self.instants += 1;
        if self.calendar.least() == instant {
            // None of them is due again before it has formed its next batch.
            let mut due = Some(self.calendar.place_of_least());
            while let Some(replica) = due {
                self.settle(replica, workload)?;
                due = self.calendar.next_place_of_least(replica);
            }
        }
        for link in 0..self.links.len() {
            self.hand_over(link)?;
        }
        if !self.patience.is_empty() {
            self.lose_patience()?;
        }
        if self.dispatch.is_some() {
            self.give_up();
        }
        while self.next_arrival() == instant {
            let row = self.take_next_row(workload);
            self.arrive(row, workload)?;
        }
        if !self.patience.is_empty() {
            // A request that arrived without any patience leaves before a batch is formed.
            self.lose_patience()?;
        }
        if self.dispatch.is_some() {
            self.place(workload)?;
        }
        if self.touched.len() > 1 {
            self.touched.sort_unstable();
        }
        for index in 0..self.touched.len() {
            self.form(self.touched[index] as usize, false)?;
        }
        self.touched.clear();
        Ok(())
    }

    /// Settles the iterations of a replica that end now.
    #[inline]
    fn settle(&mut self, replica: usize, workload: &Workload) -> Result<()> {
        let before = self.results.left();
        self.replicas[replica].settle(&mut self.results)?;
        self.in_system -= self.results.left() - before;
        if !self.links.is_empty() || self.dispatch.is_some() {
            self.send(replica)?;
        }
        if self.results.finished.as_ref().is_some_and(|finished| !finished.is_empty()) {
            self.release(replica, workload)?;
        }
        self.touch(replica);
        Ok(())
    }

    /// Requests that leave a replica with their prompts computed set out for the next one.
    fn send(&mut self, replica: usize) -> Result<()> {
        if let Some(dispatch) = &mut self.dispatch {
            let departures: Vec<Departure> = self.replicas[replica].departures().collect();
            for mut departure in departures {
                // A request that waits for a slot has left its keys and values with the host.
                self.replicas[replica].release(std::mem::take(&mut departure.held), self.now)?;
                dispatch.prefilled(departure);
            }
            return Ok(());
        }
        let Some(link) = self.stations[self.station_of[replica] as usize].link else { return Ok(()) };
        for departure in self.replicas[replica].departures() {
            self.links[link].push(departure, self.now)?;
        }
        Ok(())
    }

    /// The slots of the finished are free; a request that waited for the last of them will arrive after its delay.
    fn release(&mut self, replica: usize, workload: &Workload) -> Result<()> {
        let finished = self.results.finished.replace(Vec::new()).unwrap_or_default();
        for row in finished {
            if let Some(dispatch) = &mut self.dispatch {
                dispatch.decoded(replica);
            }
            if workload.flow.is_empty() {
                continue;
            }
            for &child in workload.flow.children(row as usize) {
                let awaited = &mut self.awaited[child as usize];
                *awaited -= 1;
                if *awaited == 0 {
                    let at = self.now.after(workload.flow.delay(child as usize))?;
                    self.released.push(Reverse((at, child)));
                }
            }
        }
        Ok(())
    }

    /// Hand-offs arrive: their blocks at the source are given up, the router of the other pool is asked.
    fn hand_over(&mut self, link: usize) -> Result<()> {
        while let Some(mut departure) = self.links[link].pop(self.now)? {
            let source = departure.from as usize;
            self.replicas[source].release(std::mem::take(&mut departure.held), self.now)?;
            self.touch(source);
            let replica = self.route(self.links[link].to, &departure.request.arrival, &mut departure.content, true)?;
            self.replicas[replica].receive(departure, self.now)?;
            self.touch(replica);
        }
        Ok(())
    }

    /// Something happened at a replica: if it is idle, it forms a batch once all has happened that does at this instant.
    #[inline]
    fn touch(&mut self, replica: usize) {
        self.count_requests(replica);
        if self.touched_at[replica] != self.instants {
            self.touched_at[replica] = self.instants;
            self.touched.push(replica as u32);
        }
    }

    /// Keeps the number of requests at a replica where a router looks at it.
    #[inline]
    fn count_requests(&mut self, replica: usize) {
        let station = &mut self.stations[self.station_of[replica] as usize];
        if station.router.is_some() {
            station.requests.set(replica - station.replicas.start, self.replicas[replica].requests() as u32);
        }
    }

    /// Lets an idle replica form a batch. Says whether an iteration runs now.
    #[inline]
    fn form(&mut self, index: usize, drain: bool) -> Result<bool> {
        let replica = &mut self.replicas[index];
        let runs = replica.is_idle() && !replica.is_empty() && replica.form(self.now, drain)?;
        self.calendar.set(index, replica.next_instant());
        Ok(runs)
    }

    fn lose_patience(&mut self) -> Result<()> {
        while let Some(&Reverse((at, id, replica, place))) = self.patience.peek() {
            if at > self.now {
                break;
            }
            self.patience.pop();
            if self.replicas[replica as usize].abandon(Place(place), id, self.now, &mut self.results)? {
                self.in_system -= 1;
                self.touch(replica as usize);
            }
        }
        Ok(())
    }

    /// A request that has waited long enough before the replicas gives up.
    fn give_up(&mut self) {
        let Some(dispatch) = &mut self.dispatch else { return };
        while let Some((request, replica)) = dispatch.give_up(self.now) {
            self.results.leave(&request, replica, Status::Abandoned, self.now);
            self.in_system -= 1;
        }
    }

    /// The control says which request goes where; one that still waits then draws its patience.
    fn place(&mut self, workload: &Workload) -> Result<()> {
        while let Some(placed) = self.dispatch.as_mut().and_then(Dispatch::place) {
            let (Placed::Prefill(_, replica) | Placed::Decode(_, replica)) = placed;
            match placed {
                Placed::Prefill(arrival, _) => {
                    let content = workload.content.of((arrival.row - workload.first) as usize);
                    self.replicas[replica].arrive(arrival, &content, &mut self.results)?;
                }
                Placed::Decode(departure, _) => self.replicas[replica].receive(*departure, self.now)?,
            }
            self.touch(replica);
        }
        self.dispatch.as_mut().map_or(Ok(()), |dispatch| dispatch.wait(self.now))
    }

    /// The row that arrives now: the lowest of those that do.
    #[inline]
    fn take_next_row(&mut self, workload: &Workload) -> usize {
        if let Some(&Reverse((at, row))) = self.released.peek()
            && (at, row as usize) < (self.next_arrival, self.next_row)
        {
            self.released.pop();
            return row as usize;
        }
        let row = self.next_row;
        self.next_row += 1;
        self.find_next_row(workload);
        row
    }

    /// Passes over rows that come later.
    #[inline]
    fn find_next_row(&mut self, workload: &Workload) {
        while workload.flow.is_delayed(self.next_row) {
            self.next_row += 1;
        }
        self.next_arrival = if self.next_row < self.rows { workload.arrival_at(self.next_row) } else { Instant::NEVER };
        if self.next_arrival < Instant::NEVER && self.options.horizon.is_some_and(|horizon| self.next_arrival > horizon)
        {
            self.more_to_come = true;
            self.next_arrival = Instant::NEVER;
        }
    }

    #[inline]
    fn arrive(&mut self, row: usize, workload: &Workload) -> Result<()> {
        let arrival = workload.request(row, self.now);
        if let Some(dispatch) = &mut self.dispatch {
            // All replicas are alike.
            match self.replicas[0].refuses(&arrival) {
                Some(reason) => self.results.reject(&arrival, NO_REPLICA, reason),
                None => {
                    dispatch.arrive(arrival);
                    self.in_system += 1;
                }
            }
            if self.next_arrival == Instant::NEVER {
                self.waiting_at_last_arrival = self.waiting();
            }
            return Ok(());
        }
        let pool = workload.pool(row);
        let mut content = workload.content.of(row);
        let replica = self.route(pool, &arrival, &mut content, false)?;
        if let Some(reason) = self.refuses_afterwards(pool, replica, &arrival) {
            self.results.reject(&arrival, replica as u32, reason);
        } else if let Some(place) = self.replicas[replica].arrive(arrival, &content, &mut self.results)? {
            self.in_system += 1;
            if let Some(patience) = workload.patience(row) {
                self.patience.push(Reverse((self.now.after(patience)?, arrival.id, replica as u32, place.0)));
            }
            self.touch(replica);
        }
        if self.next_arrival == Instant::NEVER {
            self.waiting_at_last_arrival = self.waiting();
        }
        Ok(())
    }

    /// Requests in all queues.
    fn waiting(&self) -> u64 {
        let before_replicas = self.dispatch.as_ref().map_or(0, Dispatch::len) as u64;
        self.replicas.iter().map(Replica::waiting).sum::<u64>() + before_replicas
    }

    /// Why no replica to which a request is handed off can ever serve it, if that is so.
    #[inline]
    fn refuses_afterwards(&self, pool: usize, replica: usize, arrival: &Arrival) -> Option<&'static str> {
        let link = self.stations[pool].link.filter(|_| self.replicas[replica].sends_on(arrival))?;
        let mut reason = None;
        for replica in self.stations[self.links[link].to].replicas.clone() {
            reason = Some(self.replicas[replica].refuses(arrival)?);
        }
        reason
    }

    /// The replica of a pool to which a request goes whose prompt begins with this content. While the router is asked, what
    /// it may look at is its own.
    #[inline]
    fn route(
        &mut self,
        pool: usize,
        arrival: &Arrival,
        content: &mut Vec<Segment>,
        is_handed_off: bool,
    ) -> Result<usize> {
        let Station { replicas, requests, router, .. } = &mut self.stations[pool];
        let Some(router) = router else { return Ok(replicas.start) };
        let mut fleet = Fleet {
            replicas: std::mem::take(&mut self.replicas),
            part: replicas.clone(),
            requests: std::mem::take(requests),
            now: self.now,
            content: std::mem::take(content),
            prompt_tokens: arrival.prompt_tokens,
            is_handed_off,
        };
        let chosen = router.route(arrival, &mut fleet);
        (self.replicas, *requests, *content) = (fleet.replicas, fleet.requests, fleet.content);
        let chosen = chosen?;
        if chosen >= replicas.len() {
            return Err(Kind::Route {
                at_s: self.now.seconds().to_string(),
                request: arrival.id,
                answer: chosen.to_string(),
                replicas: replicas.len(),
            }
            .into());
        }
        Ok(replicas.start + chosen)
    }

    /// Nothing is left to happen: a replica that still holds requests is asked once more (rule 5).
    fn drain(&mut self) -> Result<bool> {
        if self.replicas.iter().all(Replica::is_empty) {
            self.stalled = self.dispatch.as_ref().is_some_and(|dispatch| dispatch.len() > 0);
            return Ok(false);
        }
        let is_first = self.results.results.drained.is_empty();
        let mut here: Vec<u32> = Vec::new();
        if is_first {
            here = self.replicas.iter().flat_map(Replica::ids).collect();
        }
        let mut runs = false;
        for replica in 0..self.replicas.len() {
            runs |= self.form(replica, true)?;
        }
        if runs && is_first {
            self.results.results.drained = here;
        }
        self.stalled = !runs && self.calendar.least() == Instant::NEVER;
        Ok(!self.stalled)
    }

    pub(super) fn finish(mut self) -> Result<Outcome> {
        let goes_on = self.next_instant() < Instant::NEVER;
        let end = match self.options.horizon {
            Some(horizon) if goes_on => horizon,
            _ => self.now,
        };
        // At the horizon the number in the system falls at the ends of the iterations before it.
        self.sampler.sample_before(end, &self.replicas, &mut self.results)?;
        let last = self.replicas.iter().map(|replica| replica.sample(end)).collect::<Result<_>>()?;
        let before = self.results.left();
        for replica in &mut self.replicas {
            replica.stop(end, &mut self.results)?;
        }
        debug_assert_eq!(before, self.results.left(), "a stretch ends with the first completion in it");
        for departure in self.links.iter_mut().flat_map(Transfers::drain) {
            let Departure { request, from, at, .. } = departure;
            self.results.leave(&request.handed_off(from, at, end), from, Status::Unfinished, end);
        }
        for (request, replica) in self.dispatch.iter_mut().flat_map(|dispatch| dispatch.drain(end)) {
            self.results.leave(&request, replica, Status::Unfinished, end);
        }
        let rest = product(end.since(self.now).0, u128::from(self.in_system))?;
        let budget = self.replicas[0].token_budget();
        let is_common = self.replicas.iter().all(|replica| replica.token_budget() == budget);
        self.results.results.block_operations = self.replicas.iter().filter_map(Replica::block_operations).collect();
        let mut outcome = Outcome {
            rejections: std::mem::take(&mut self.results.rejections),
            goes_on,
            stalled: self.stalled,
            most_preempted: self.replicas.iter().map(Replica::most_preempted).max().unwrap_or(0),
            beyond: self.replicas.iter().map(Replica::beyond).fold(Beyond::default(), Beyond::and),
            findings: self.replicas.iter().flat_map(Replica::findings).copied().collect(),
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            token_budget: if is_common { budget } else { Limits::NONE },
            replicas: self.replicas.len(),
            never_came: self.awaited.iter().filter(|&&awaited| awaited > 0).count(),
            unused: self.replicas.iter().filter(|replica| replica.is_unused()).count(),
            last,
            results: std::mem::take(&mut self.results.results),
        };
        let totals = &mut outcome.results.totals;
        totals.end = end;
        totals.in_system =
            self.in_system_area.checked_add(rest).ok_or_else(|| Error::overflow("∫ number in system dt"))?;
        totals.sojourn = self.results.sojourn();
        Ok(outcome)
    }
}
