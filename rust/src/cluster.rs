//! What makes a cluster: pools of replicas, a router before each, and links between them.

use serde::Deserialize;

use crate::clock::{SECOND, Span, attoseconds, decimal};
use crate::control::{Control, Patience};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::router::Router;

/// A cluster ready to run. Replicas are numbered through all pools.
pub struct Cluster {
    /// Its pools; a row of the workload names one by its place here.
    pub pools: Vec<Pool>,
    /// Who keeps the requests of the first pool until it says where they go; `None`: requests queue at replicas.
    pub control: Option<(Control, Patience)>,
}

/// Replicas that one router chooses from.
pub struct Pool {
    /// One engine for each replica.
    pub engines: Vec<EngineParts>,
    /// `None`: there is one replica, and nothing to choose.
    pub router: Option<Box<dyn Router>>,
    /// Where requests go when their prompts are computed; `None`: they stay.
    pub hands_to: Option<HandsTo>,
}

impl Cluster {
    /// One replica.
    pub fn of_one(engine: EngineParts) -> Cluster {
        Cluster::of_pools(vec![Pool { engines: vec![engine], router: None, hands_to: None }])
    }

    /// Pools before which nobody waits.
    pub fn of_pools(pools: Vec<Pool>) -> Cluster {
        Cluster { pools, control: None }
    }

    /// Replicas under gate and route.
    pub fn controlled(engines: Vec<EngineParts>, control: Control, patience: Patience) -> Cluster {
        let pool = Pool { engines, router: None, hands_to: None };
        Cluster { pools: vec![pool], control: Some((control, patience)) }
    }

    /// Tests that the parts go together.
    pub(crate) fn check(&self) -> Result<()> {
        for (place, pool) in self.pools.iter().enumerate() {
            let at = |error: Error| error.within(&format!("pools[{place}]"));
            if pool.engines.is_empty() {
                return Err(at(Error::config("replicas", "0: there must be at least one")));
            }
            if pool.router.is_none() && pool.engines.len() > 1 && self.control.is_none() {
                return Err(at(Error::config("router", format!("none before {} replicas", pool.engines.len()))));
            }
            if let Some(hands_to) = pool.hands_to
                && self.pools.get(hands_to.pool).is_none_or(|to| to.hands_to.is_some())
            {
                return Err(at(Error::config("hands_to", "must name a pool that keeps what it gets")));
            }
        }
        Ok(())
    }
}

/// The way of requests from the pool that computes their prompts to the one that emits the rest: bari2025 Alg. 5.
#[derive(Clone, Copy, Debug)]
pub struct HandsTo {
    /// The other pool.
    pub pool: usize,
    /// What their keys and values travel over.
    pub link: Link,
}

/// A link as a user describes it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDescription {
    /// Seconds that every transfer takes.
    pub latency_s: f64,
    /// Bytes that one transfer moves in a second.
    pub bytes_per_s: f64,
    /// Bytes of keys and values of one token.
    pub bytes_per_token: f64,
    /// Transfers at once; `None`: any number.
    pub concurrent: Option<usize>,
}

/// A link between two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    latency: Span,
    /// Attoseconds for a token, as a quotient of whole numbers.
    per_token: (u128, u128),
    /// Transfers at once.
    pub(crate) lanes: usize,
}

impl LinkDescription {
    /// Tests the fields.
    pub fn build(&self) -> Result<Link> {
        const PLACES: i32 = 9;
        let whole = |field, number: f64| {
            let scaled = (number.is_finite() && number >= 0.0).then(|| decimal(number, PLACES)).flatten();
            scaled.ok_or_else(|| Error::config(field, format!("{number}: it must be finite and not negative")))
        };
        let (bytes, speed) = (whole("bytes_per_token", self.bytes_per_token)?, whole("bytes_per_s", self.bytes_per_s)?);
        if speed == 0 {
            return Err(Error::config("bytes_per_s", format!("{}: it must be above 0", self.bytes_per_s)));
        }
        if bytes == 0 && self.bytes_per_token > 0.0 {
            return Err(Error::config("bytes_per_token", format!("{} rounds to nothing", self.bytes_per_token)));
        }
        if self.concurrent == Some(0) {
            return Err(Error::config("concurrent", "0: nothing would ever be transferred"));
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
    /// How long the keys and values of `tokens` tokens travel; the quotient is rounded down.
    pub fn time(&self, tokens: u64) -> Result<Span> {
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
