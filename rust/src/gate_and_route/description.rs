//! User-facing description of gate and route: cluster, policy and prices, with checks.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Allocation, AllocationTables, ClassTokens, Control, ControlConfig, ControlledCluster, DecodeRouterKind, GateKind,
    IterationLengths, Patience,
};
use crate::clock::{attoseconds, decimal, product};
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::timing::MixedSolo;
use crate::workload::Workload;

/// Gate and route as described by the user.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateAndRoute {
    /// Kind of the description.
    pub kind: DescriptionKind,
    /// Planned number of requests per replica. Required only if the plan, gate or router uses it.
    pub allocation: Option<AllocationTables>,
    /// n.
    pub replicas: u64,
    /// Iteration times.
    pub timing: Speeds,
    /// B: slots per replica.
    pub slots: u64,
    /// C: tokens per chunk.
    pub chunk: u64,
    /// Prices per token.
    pub prices: Prices,
    /// θ: abandonment rates of waiting requests, per second.
    pub abandonment: Option<Abandonment>,
    /// Gate: the class that is admitted to its prefill next.
    pub gate: GateKind,
    /// Router: the replica of a decode.
    pub router: DecodeRouterKind,
    /// Whether some replicas are reserved for prefills.
    pub planned: bool,
    /// Service model.
    pub service: ServiceKind,
    /// KV cache, used only by the token service.
    pub kv: KvCache,
}

/// Kinds of descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum DescriptionKind {
    /// Gate and route.
    GateAndRoute,
}

/// The two iteration times of lin2026 (2) and (3).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind")]
pub enum Speeds {
    /// τ = α + β·C with a prefill, otherwise 1/γ.
    MixedSolo(MixedSolo),
}

/// Prices per token.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// c_p.
    pub prefill: f64,
    /// c_d.
    pub decode: f64,
}

/// Abandonment rates: one for all classes, or one per class.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Abandonment {
    /// The same rate for all classes.
    Rate(f64),
    /// Rates by class.
    ByClass(BTreeMap<String, f64>),
}

/// Service models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Exponential services, the paper's stochastic model.
    Exponential,
    /// Iterations of a batch, token by token.
    Tokens,
}

/// The description in integers, for a workload with these classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// n, B and the speeds.
    pub cluster: ControlledCluster,
    /// Decision policy.
    pub policy: ControlConfig,
    /// Allocation used by the policy.
    pub allocation: Option<Allocation>,
    /// C.
    pub chunk: u32,
    /// c_p and c_d, in units of 10⁻¹⁸.
    pub prices: (u128, u128),
    /// Mean patience of each class in attoseconds; `None`: infinite.
    patience: Vec<Option<f64>>,
}

impl Setup {
    /// Builds the control with empty queues.
    pub fn control(&self, workload: &Workload, seed: u64) -> Result<Control> {
        let tokens = ClassTokens::of(workload);
        Control::new(&self.policy, &self.cluster, self.allocation.as_ref(), &tokens, seed)
    }

    /// Builds the patience of waiting requests.
    pub fn patience(&self, seed: u64) -> Patience {
        Patience::new(&self.patience, seed)
    }
}

/// Upper limit of replicas, slots and chunk tokens; larger values are mistakes.
const MAX_COUNT: u64 = 1 << 24;
/// Highest price: with 18 decimal places, the revenue fits 128 bits.
const MAX_PRICE: f64 = 1e6;

impl GateAndRoute {
    /// Checks everything that does not depend on the workload; returns the first error.
    pub fn check(&self) -> Result<()> {
        let classes = match (&self.allocation, &self.abandonment) {
            (Some(tables), _) => tables.prefill.keys().cloned().collect(),
            (None, Some(Abandonment::ByClass(rates))) => rates.keys().cloned().collect(),
            _ => Vec::new(),
        };
        self.build(&classes).map(drop)
    }

    /// Converts the description for a workload with these classes.
    pub fn build(&self, classes: &[String]) -> Result<Setup> {
        let within = |name: &str, value: u64| match u32::try_from(value) {
            Ok(value) if (1..=MAX_COUNT).contains(&u64::from(value)) => Ok(value),
            _ => Err(Error::config(name, format!("must be from 1 to {MAX_COUNT}, got {value}"))),
        };
        let (replicas, slots, chunk) =
            (within("replicas", self.replicas)?, within("slots", self.slots)?, within("chunk", self.chunk)?);
        let pace = self.timing.pace(chunk).map_err(|error| error.within("timing"))?;
        self.kv.check().map_err(|error| error.within("kv"))?;
        if self.service == ServiceKind::Exponential && self.kv.tokens.is_some() {
            let message = "a limit requires service=\"tokens\": the exponential service has no KV cache";
            return Err(Error::config("kv.tokens", message));
        }
        if self.service == ServiceKind::Exponential && self.kv.prefix_cache.is_some() {
            let message = "requires service=\"tokens\": the exponential service has no prompts";
            return Err(Error::config("kv.prefix_cache", message));
        }
        let policy = ControlConfig { gate: self.gate, router: self.router, planned: self.planned };
        let allocation = self.allocation.as_ref().map(|tables| tables.by_class(classes)).transpose();
        let allocation = allocation.map_err(|error| error.within("allocation"))?;
        policy.check(slots, allocation.as_ref())?;
        let price = |name: &str, price: f64| {
            let units = if (0.0..=MAX_PRICE).contains(&price) { decimal(price, 18) } else { None };
            units.ok_or_else(|| {
                Error::config(format!("prices.{name}"), format!("must be from 0 to {MAX_PRICE}, got {price}"))
            })
        };
        Ok(Setup {
            cluster: ControlledCluster { replicas, slots, pace },
            policy,
            allocation,
            chunk,
            prices: (price("prefill", self.prices.prefill)?, price("decode", self.prices.decode)?),
            patience: self.patience(classes)?,
        })
    }

    fn patience(&self, classes: &[String]) -> Result<Vec<Option<f64>>> {
        let mean = |path: String, rate: f64| match rate {
            0.0 => Ok(None),
            1e-9..=1e12 => Ok(Some(1e18 / rate)),
            _ => Err(Error::config(path, format!("must be 0, or from 1e-9 to 1e12 per second, got {rate}"))),
        };
        match &self.abandonment {
            None => Ok(vec![None; classes.len()]),
            Some(Abandonment::Rate(rate)) => Ok(vec![mean("abandonment".to_string(), *rate)?; classes.len()]),
            Some(Abandonment::ByClass(rates)) => {
                let path = |class: &String| format!("abandonment.{class}");
                if let Some(unknown) = rates.keys().find(|&class| !classes.contains(class)) {
                    let message = format!("unknown class (the workload has {})", classes.join(", "));
                    return Err(Error::config(path(unknown), message));
                }
                let of_class = |class: &String| match rates.get(class) {
                    Some(&rate) => mean(path(class), rate),
                    None => Err(Error::config(path(class), "missing: every class requires a rate")),
                };
                classes.iter().map(of_class).collect()
            }
        }
    }
}

impl Speeds {
    fn pace(&self, chunk: u32) -> Result<IterationLengths> {
        let Speeds::MixedSolo(MixedSolo { alpha, beta, solo }) = *self;
        let of_chunk = product(attoseconds(beta, "beta")?, u128::from(chunk))?;
        let mixed = attoseconds(alpha, "alpha")?.checked_add(of_chunk);
        let mixed = mixed.ok_or_else(|| Error::overflow("α + β·C"))?;
        let solo = attoseconds(solo, "solo")?;
        for (name, pace) in [("alpha", mixed), ("solo", solo)] {
            if !(1..1 << 63).contains(&pace) {
                return Err(Error::config(name, "an iteration must take more than 0 s and less than 9 s"));
            }
        }
        Ok(IterationLengths { mixed, solo })
    }
}
