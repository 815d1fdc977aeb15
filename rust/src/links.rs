//! Links between pools, and the transfers of keys and values over them.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;

use crate::clock::{Instant, SECOND, Span, attoseconds, decimal};
use crate::error::{Error, Result};
use crate::replica::Departure;

/// A link as a user describes it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDescription {
    /// Latency of every transfer, in seconds.
    pub latency_s: f64,
    /// Bandwidth of one transfer, in bytes per second.
    pub bytes_per_s: f64,
    /// Bytes of keys and values per token.
    pub bytes_per_token: f64,
    /// Maximum number of concurrent transfers; `None`: unlimited.
    pub concurrent: Option<usize>,
}

/// A link between two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    latency: Span,
    /// Attoseconds per token, as a quotient of whole numbers.
    per_token: (u128, u128),
    /// Maximum number of concurrent transfers.
    pub(crate) lanes: usize,
}

impl LinkDescription {
    /// Checks the fields and builds the link.
    pub fn build(&self) -> Result<Link> {
        const PLACES: i32 = 9;
        let whole = |field, number: f64| {
            let scaled = (number.is_finite() && number >= 0.0).then(|| decimal(number, PLACES)).flatten();
            scaled.ok_or_else(|| Error::config(field, format!("must be finite and non-negative, got {number}")))
        };
        let (bytes, speed) = (whole("bytes_per_token", self.bytes_per_token)?, whole("bytes_per_s", self.bytes_per_s)?);
        if speed == 0 {
            return Err(Error::config("bytes_per_s", format!("must be above 0, got {}", self.bytes_per_s)));
        }
        if bytes == 0 && self.bytes_per_token > 0.0 {
            return Err(Error::config("bytes_per_token", format!("must not round to 0, got {}", self.bytes_per_token)));
        }
        if self.concurrent == Some(0) {
            return Err(Error::config("concurrent", "must be at least 1, got 0"));
        }
        let shared = greatest_common_divisor(bytes, speed);
        let numerator = (bytes / shared).checked_mul(SECOND).ok_or_else(|| Error::overflow("bytes_per_token"))?;
        Ok(Link {
            latency: Span(attoseconds(self.latency_s, "latency_s")?),
            per_token: (numerator, speed / shared),
            lanes: self.concurrent.unwrap_or(usize::MAX),
        })
    }
}

impl Link {
    /// Transfer time of the keys and values of `tokens` tokens, rounded down.
    pub(crate) fn time(&self, tokens: u64) -> Result<Span> {
        let (numerator, denominator) = self.per_token;
        let bytes = numerator.checked_mul(u128::from(tokens)).ok_or_else(|| Error::overflow("a transfer"))?;
        self.latency.plus(Span(bytes / denominator))
    }
}

fn greatest_common_divisor(left: u128, right: u128) -> u128 {
    let (mut left, mut right) = (left, right);
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// The transfers over one link: one per lane, the rest first come, first served.
pub(crate) struct Transfers {
    link: Link,
    /// The destination pool.
    pub(crate) to: usize,
    waiting: VecDeque<Departure>,
    /// By end, then by request.
    under_way: BTreeMap<(Instant, u32), Departure>,
}

impl Transfers {
    pub(crate) fn new(link: Link, to: usize) -> Transfers {
        Transfers { link, to, waiting: VecDeque::new(), under_way: BTreeMap::new() }
    }

    /// When the first transfer ends.
    pub(crate) fn next_end(&self) -> Instant {
        self.under_way.first_key_value().map_or(Instant::NEVER, |(&(end, _), _)| end)
    }

    /// Queues a request for transfer.
    pub(crate) fn push(&mut self, departure: Departure, now: Instant) -> Result<()> {
        self.waiting.push_back(departure);
        self.start(now)
    }

    /// The next request whose transfer has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Result<Option<Departure>> {
        if self.next_end() > now {
            return Ok(None);
        }
        let ended = self.under_way.pop_first().map(|(_, departure)| departure);
        self.start(now)?;
        Ok(ended)
    }

    fn start(&mut self, now: Instant) -> Result<()> {
        while self.under_way.len() < self.link.lanes {
            let Some(departure) = self.waiting.pop_front() else { break };
            let end = now.after(self.link.time(departure.request.context_held())?)?;
            self.under_way.insert((end, departure.history.arrival.id), departure);
        }
        Ok(())
    }

    /// Makes the next token of a request in transfer its last. Returns whether the request is here.
    pub(crate) fn cancel(&mut self, id: u32) -> bool {
        let mut departures = self.under_way.values_mut().chain(&mut self.waiting);
        let Some(departure) = departures.find(|departure| departure.request.id == id) else { return false };
        departure.request.output_tokens = departure.request.emitted + 1;
        true
    }

    /// All requests in transfer or waiting for a lane.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Departure> {
        std::mem::take(&mut self.under_way).into_values().chain(self.waiting.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_latency_and_bytes_over_bandwidth() {
        let link = LinkDescription { latency_s: 0.001, bytes_per_s: 3.0, bytes_per_token: 2.0, concurrent: Some(1) };
        let link = link.build().expect("a link");
        // 1 ms and 10 / 3 s, rounded down.
        assert_eq!(link.time(5).expect("a span"), Span(1_000_000_000_000_000 + 3_333_333_333_333_333_333));
        let real = LinkDescription { latency_s: 0.0, bytes_per_s: 50e9, bytes_per_token: 131_072.0, concurrent: None };
        assert_eq!(
            real.build().expect("a link").time(u64::from(u32::MAX)).expect("a span").seconds().floor(),
            11_258.0
        );
    }

    #[test]
    fn a_link_that_cannot_be_is_an_error() {
        let fine = LinkDescription { latency_s: 0.0, bytes_per_s: 1.0, bytes_per_token: 1.0, concurrent: None };
        assert!(fine.build().is_ok());
        for wrong in [
            LinkDescription { latency_s: -1.0, ..fine },
            LinkDescription { bytes_per_s: 0.0, ..fine },
            LinkDescription { bytes_per_s: f64::NAN, ..fine },
            LinkDescription { bytes_per_token: -1.0, ..fine },
            LinkDescription { bytes_per_token: 1e-12, ..fine },
            LinkDescription { concurrent: Some(0), ..fine },
        ] {
            assert!(wrong.build().is_err(), "{wrong:?}");
        }
    }
}
