//! A run whose requests are fed as they come, and which tells what happens.
//!
//! It is the run of [`simulate_streamed`](super::simulate_streamed), with two things beside it. Rows come whenever their
//! source likes: what happens before an instant is decided once no row can come before it any more. And tokens are told:
//! when a stretch is over, and, since a stretch may last for long, also those of its iterations that have ended by the
//! instant up to which the run went. No arrival can take those back. So a run that was fed is the run over all of its rows,
//! bit for bit, whenever they came and however often it was asked.

use std::collections::BTreeMap;

use super::options::{Options, Watch};
use super::sampler::Sampler;
use super::streamed::{End, Road};
use super::{Outline, Sink};
use crate::clock::{Instant, Span, Unit};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::failures::Command;
use crate::results::{Emissions, Results, Sample, Status};
use crate::workload::{Columns, Workload};

/// A run that goes on.
pub struct Live {
    road: Road,
    options: Options,
    class_count: usize,
    /// All has happened that happens before this instant.
    now: Instant,
    /// The first arrival that has not happened.
    arrives: Instant,
    /// The last arrival, in seconds.
    last_s: f64,
    rows: u32,
    /// Requests that owe tokens.
    streams: BTreeMap<u32, Stream>,
    /// By replica, the stretch that was under way when the run stopped last.
    under_way: Vec<UnderWay>,
}

/// What a request is told to have emitted, and what it will have.
#[derive(Debug)]
struct Stream {
    told: u32,
    output: u32,
}

/// A stretch of which some iterations have been told.
#[derive(Debug, Default)]
struct UnderWay {
    told: u64,
    emissions: Option<Emissions>,
}

/// What happened since the last news.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Tokens, in order of time, then of replicas.
    pub tokens: Vec<Tokens>,
    /// Requests that left without their last token: rejected, or gone.
    pub left: Vec<(u32, Status)>,
    /// Requests that get so many tokens less than was asked: the longest length comes before.
    pub cut: Vec<(u32, u32)>,
}

/// The tokens of one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// When it ended.
    pub at: Instant,
    /// Where it ran.
    pub replica: u32,
    /// The requests that got a token each.
    pub requests: Vec<u32>,
    /// Those of them for which it was the last.
    pub finished: Vec<u32>,
}

impl Live {
    /// A run of which no request is known, over a workload of so many classes.
    pub fn new(class_count: usize, cluster: Cluster, options: &Options) -> Result<Live> {
        cluster.check()?;
        if cluster.control.is_some() {
            return Err(Error::config("gate_and_route", "cannot be fed while it runs"));
        }
        if options.horizon.is_some() {
            return Err(Error::config("horizon_s", "a run that is fed ends when it is told to"));
        }
        if options.max_in_flight.is_some() {
            return Err(Error::config("max_in_flight", "a run that is fed is sent what its clients send"));
        }
        let replicas = cluster.pools.iter().map(|pool| pool.engines.len()).sum();
        let outline = Outline { class_count, arriving: 0, last_arrival: Instant::ZERO };
        let mut road =
            Road::new(&outline, cluster, options, Sampler::new(Instant::ZERO, options, replicas, Unit::ATTOSECOND)?);
        road.record_live_events();
        Ok(Live {
            road,
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

    /// Requests that have come.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that arrive from now on, in order. Returns the id of the first.
    pub fn arrive(&mut self, part: &Columns) -> Result<u32> {
        let first = self.rows;
        let workload = Workload { first, ..part.view(0, self.class_count) };
        workload.check_after(self.last_s).map_err(|error| error.further(first as usize))?;
        let (Some(&last), false) = (part.arrival_s.last(), workload.is_empty()) else { return Ok(first) };
        let arrives = workload.arrival_at(0);
        if arrives < self.now {
            let (at_s, now_s) = (part.arrival_s[0], self.now.seconds());
            return Err(Error::trace(first as usize, format!("arrives at {at_s}, and it is {now_s} already")));
        }
        self.road.take(&workload)?;
        self.arrives = self.arrives.min(arrives);
        self.last_s = last;
        self.rows += workload.len() as u32;
        for (row, &output) in part.output_tokens.iter().enumerate() {
            self.streams.insert(first + row as u32, Stream { told: 0, output: output as u32 });
        }
        self.road.make_room(self.rows as usize);
        Ok(first)
    }

    /// The client of a request takes it back at an instant that has not come. Says whether it is still here; in the
    /// workload that its run is over, it is a [`cancel_s`](Workload::cancel_s).
    pub fn cancel(&mut self, id: u32, at: Instant) -> Result<bool> {
        let is_here = at >= self.now && self.streams.contains_key(&id);
        if is_here {
            self.road.cancel(id, at)?;
        }
        Ok(is_here)
    }

    /// A replica is told to die, to drain or to start at an instant that has not come; in the cluster that its run is
    /// over, that stands in the [`FailuresDescription`](crate::failures::FailuresDescription).
    pub fn tell(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        if at < self.now {
            let (at_s, now_s) = (at.seconds(), self.now.seconds());
            return Err(Error::config("at_s", format!("{at_s}: it is {now_s} already")));
        }
        self.road.tell(replica, at, what)
    }

    /// Lets happen all that happens before an instant: no row that arrives before it will come any more.
    pub fn advance(&mut self, until: Instant, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<News> {
        self.now = self.now.max(until);
        if until > self.arrives {
            self.arrives = Instant::NEVER;
        }
        self.road.advance(until, watch)?;
        let news = self.news(until)?;
        self.road.emit(sink)?;
        Ok(news)
    }

    /// When something happens next that may bring a token, as far as is known; `NEVER`: nothing, if nothing comes.
    pub fn next_instant(&mut self) -> Result<Instant> {
        let mut next = self.road.next_instant().min(self.arrives);
        for UnderWay { told, emissions } in &self.under_way {
            if let Some(emissions) = emissions {
                next = next.min(emissions.end_of((told + 1).min(emissions.count))?);
            }
        }
        Ok(next)
    }

    /// Each replica as it is now.
    pub fn samples(&self) -> Result<Vec<Sample>> {
        self.road.samples(self.now)
    }

    /// No further row will come: lets happen all that is left to, and ends the run.
    pub fn finish(mut self, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<(News, Results)> {
        self.road.advance(Instant::NEVER, watch)?;
        let news = self.news(Instant::NEVER)?;
        let Live { road, options, rows, .. } = self;
        let End { mut leaving, outcome } = road.finish()?;
        leaving.emit(sink, true)?;
        Ok((news, outcome.results(&options, Some(u64::from(rows)))?))
    }

    /// What happened since it was told last, all of it before `until`.
    fn news(&mut self, until: Instant) -> Result<News> {
        let mut news = News::default();
        let mut settled = Vec::new();
        for told in self.road.live_events() {
            settled.append(&mut told.emissions);
            news.left.append(&mut told.left);
            news.cut.append(&mut told.cut);
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
            let told = if is_same { std::mem::take(under_way).told } else { 0 };
            for iteration in told..emissions.count {
                ends.push((emissions.end_of(iteration + 1)?, emissions, iteration));
            }
        }
        self.road.look(|running, replica| self.under_way[replica].go_on(running));
        let mut running = Vec::new();
        for under_way in &mut self.under_way {
            let told = under_way.told;
            if let Some(emissions) = &under_way.emissions {
                let elapsed = until.since(emissions.start).0.saturating_sub(1);
                under_way.told = emissions.pace.count_within(Span(elapsed), emissions.count)?.max(told);
                running.push((told..under_way.told, emissions));
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
                // What a policy throws away and emits again has been told before.
                if before + iteration as u32 >= stream.told {
                    stream.told += 1;
                    tokens.requests.push(id);
                    if stream.told == stream.output {
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
    /// A replica runs this stretch now, or none with tokens.
    fn go_on(&mut self, running: Option<Emissions>) {
        let start = |emissions: &Option<Emissions>| emissions.as_ref().map(|emissions| emissions.start);
        if start(&running) != start(&self.emissions) {
            self.told = 0;
        }
        self.emissions = running;
    }
}
