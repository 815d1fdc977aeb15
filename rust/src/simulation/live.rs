//! A live run: requests arrive while it runs, and it reports its events.
//!
//! It is the run of [`simulate_streamed`](super::simulate_streamed) with two additions. First, rows may be added at
//! any time. The events before an instant run once no row can arrive before it. Second, tokens are reported: at the
//! end of a stretch, and also for iterations of a running stretch that have ended. No arrival can revoke those. So a
//! live run equals the run over all of its rows, bit for bit, however its rows and queries were timed.

use std::collections::BTreeMap;

use super::options::{Options, Watch};
use super::sampler::Sampler;
use super::streamed::{End, Runs};
use super::{Outline, Sink};
use crate::clock::{Instant, Span, Unit};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::failures::Command;
use crate::results::{Emissions, Results, Sample, Status};
use crate::workload::{Columns, Workload};

/// A live run.
pub struct Live {
    runs: Runs,
    options: Options,
    class_count: usize,
    /// All events before this instant have run.
    now: Instant,
    /// The first arrival that has not been processed.
    arrives: Instant,
    /// The last arrival, in seconds.
    last_s: f64,
    rows: u32,
    /// Requests with tokens still to be reported.
    streams: BTreeMap<u32, Stream>,
    /// The running stretch of each replica at the last stop.
    under_way: Vec<UnderWay>,
}

/// Tokens of a request reported so far, and its output length.
#[derive(Debug)]
struct Stream {
    reported: u32,
    output: u32,
}

/// A stretch with the number of its iterations reported so far.
#[derive(Debug, Default)]
struct UnderWay {
    reported: u64,
    emissions: Option<Emissions>,
}

/// Events since the last report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Tokens, by time, then by replica.
    pub tokens: Vec<Tokens>,
    /// Requests that left without their last token: rejected, abandoned or lost.
    pub left: Vec<(u32, Status)>,
    /// Requests whose output is cut by this number of tokens, because of the maximum length.
    pub cut: Vec<(u32, u32)>,
}

/// The tokens of one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// End of the iteration.
    pub at: Instant,
    /// The replica.
    pub replica: u32,
    /// The requests that emitted a token.
    pub requests: Vec<u32>,
    /// The requests that emitted their last token.
    pub finished: Vec<u32>,
}

impl Live {
    /// A run without requests, over a workload with `class_count` classes.
    pub fn new(class_count: usize, cluster: Cluster, options: &Options) -> Result<Live> {
        cluster.check()?;
        if cluster.control.is_some() {
            return Err(Error::config("gate_and_route", "is not supported by live runs"));
        }
        if options.horizon.is_some() {
            return Err(Error::config("horizon_s", "is not supported by live runs, which end on request"));
        }
        if options.max_in_flight.is_some() {
            return Err(Error::config(
                "max_in_flight",
                "is not supported by live runs, whose clients decide when to send",
            ));
        }
        let replicas = cluster.pools.iter().map(|pool| pool.engines.len()).sum();
        let outline = Outline { class_count, arriving: 0, last_arrival: Instant::ZERO };
        let mut runs =
            Runs::new(&outline, cluster, options, Sampler::new(Instant::ZERO, options, replicas, Unit::ATTOSECOND)?);
        runs.record_live_events();
        Ok(Live {
            runs,
            options: options.clone(),
            class_count,
            now: Instant::ZERO,
            arrives: Instant::NEVER,
            last_s: 0.0,
            rows: 0,
            streams: BTreeMap::new(),
            under_way: (0..replicas).map(|_| UnderWay::default()).collect(),
        })
    }

    /// Number of requests so far.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Adds rows in order of arrival. Returns the id of the first.
    pub fn arrive(&mut self, part: &Columns) -> Result<u32> {
        let first = self.rows;
        let workload = Workload { first, ..part.view(0, self.class_count) };
        workload.check_after(self.last_s).map_err(|error| error.further(first as usize))?;
        let (Some(&last), false) = (part.arrival_s.last(), workload.is_empty()) else { return Ok(first) };
        let arrives = workload.arrival_at(0);
        if arrives < self.now {
            let (at_s, now_s) = (part.arrival_s[0], self.now.seconds());
            return Err(Error::trace(
                first as usize,
                format!("must not arrive before the present time {now_s} s, got {at_s}"),
            ));
        }
        self.runs.take(&workload)?;
        self.arrives = self.arrives.min(arrives);
        self.last_s = last;
        self.rows += workload.len() as u32;
        for (row, &output) in part.output_tokens.iter().enumerate() {
            self.streams.insert(first + row as u32, Stream { reported: 0, output: output as u32 });
        }
        self.runs.make_room(self.rows as usize);
        Ok(first)
    }

    /// Cancels a request at a future instant. Returns whether it is still live. In the equivalent workload, this is
    /// its [`cancel_s`](Workload::cancel_s).
    pub fn cancel(&mut self, id: u32, at: Instant) -> Result<bool> {
        let is_here = at >= self.now && self.streams.contains_key(&id);
        if is_here {
            self.runs.cancel(id, at)?;
        }
        Ok(is_here)
    }

    /// Schedules a failure, drain or start of a replica at a future instant. In the equivalent cluster, this is in
    /// the [`FailuresDescription`](crate::failures::FailuresDescription).
    pub fn add_command(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        if at < self.now {
            let (at_s, now_s) = (at.seconds(), self.now.seconds());
            return Err(Error::config("at_s", format!("must not be before the present time {now_s} s, got {at_s}")));
        }
        self.runs.add_command(replica, at, what)
    }

    /// Runs all events before `until`. No row may arrive earlier any more.
    pub fn advance(&mut self, until: Instant, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<News> {
        self.now = self.now.max(until);
        if until > self.arrives {
            self.arrives = Instant::NEVER;
        }
        self.runs.advance(until, watch)?;
        let news = self.news(until)?;
        self.runs.emit(sink)?;
        Ok(news)
    }

    /// The next known event that may emit a token; `NEVER` if there is none.
    pub fn next_instant(&mut self) -> Result<Instant> {
        let mut next = self.runs.next_instant().min(self.arrives);
        for UnderWay { reported, emissions } in &self.under_way {
            if let Some(emissions) = emissions {
                next = next.min(emissions.end_of((reported + 1).min(emissions.count))?);
            }
        }
        Ok(next)
    }

    /// A sample of each replica now.
    pub fn samples(&self) -> Result<Vec<Sample>> {
        self.runs.samples(self.now)
    }

    /// Runs the remaining events without further rows, and ends the run.
    pub fn finish(mut self, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<(News, Results)> {
        self.runs.advance(Instant::NEVER, watch)?;
        let news = self.news(Instant::NEVER)?;
        let Live { runs, options, rows, .. } = self;
        let End { mut leaving, outcome } = runs.finish()?;
        leaving.emit(sink, true)?;
        Ok((news, outcome.results(&options, Some(u64::from(rows)))?))
    }

    /// The events since the last report, all before `until`.
    fn news(&mut self, until: Instant) -> Result<News> {
        let mut news = News::default();
        let mut settled = Vec::new();
        for events in self.runs.live_events() {
            settled.append(&mut events.emissions);
            news.left.append(&mut events.left);
            news.cut.append(&mut events.cut);
        }
        for &(id, tokens) in &news.cut {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.output -= tokens;
            }
        }
        for (id, _) in &news.left {
            self.streams.remove(id);
        }
        let mut ends = Vec::new();
        for emissions in &settled {
            let under_way = &mut self.under_way[emissions.replica as usize];
            let is_same = under_way.emissions.as_ref().is_some_and(|other| other.start == emissions.start);
            let reported = if is_same { std::mem::take(under_way).reported } else { 0 };
            for iteration in reported..emissions.count {
                ends.push((emissions.end_of(iteration + 1)?, emissions, iteration));
            }
        }
        self.runs.visit_running(|running, replica| self.under_way[replica].update(running));
        let mut running = Vec::new();
        for under_way in &mut self.under_way {
            let reported = under_way.reported;
            if let Some(emissions) = &under_way.emissions {
                let elapsed = until.since(emissions.start).0.saturating_sub(1);
                under_way.reported = emissions.pace.count_within(Span(elapsed), emissions.count)?.max(reported);
                running.push((reported..under_way.reported, emissions));
            }
        }
        for (iterations, emissions) in running {
            for iteration in iterations {
                ends.push((emissions.end_of(iteration + 1)?, emissions, iteration));
            }
        }
        ends.sort_by_key(|&(at, emissions, _)| (at, emissions.replica));
        for (at, emissions, iteration) in ends {
            let mut tokens = Tokens { at, replica: emissions.replica, requests: Vec::new(), finished: Vec::new() };
            for &(id, before) in &emissions.requests {
                let Some(stream) = self.streams.get_mut(&id) else { continue };
                // Tokens that a policy discards and emits again were reported before.
                if before + iteration as u32 >= stream.reported {
                    stream.reported += 1;
                    tokens.requests.push(id);
                    if stream.reported == stream.output {
                        tokens.finished.push(id);
                        self.streams.remove(&id);
                    }
                }
            }
            if !tokens.requests.is_empty() {
                news.tokens.push(tokens);
            }
        }
        Ok(news)
    }
}

impl UnderWay {
    /// Sets the running stretch; `None` if no stretch emits tokens.
    fn update(&mut self, running: Option<Emissions>) {
        let start = |emissions: &Option<Emissions>| emissions.as_ref().map(|emissions| emissions.start);
        if start(&running) != start(&self.emissions) {
            self.reported = 0;
        }
        self.emissions = running;
    }
}
