#![doc = include_str!("../README.md")]
//!
//! # The road of a request
//!
//! ```text
//!   workload ──▶ router ──▶ replica ─────────────────────────────▶ results
//!   (columns,    (one of     plan ─▶ price ─▶ advance ─▶ settle     (rows, gaps,
//!    or drawn)    n replicas) │        │         │          │        samples,
//!                             ▼        ▼         ▼          ▼        findings)
//!                         scheduler  timing   k identical  KV blocks,
//!                                             iterations   tokens
//! ```
//!
//! The modules are declared in the order of the road. Three of them explain the simulator: `replica` (one engine),
//! [`plan`] (the interface of schedulers) and [`simulation`] (the order of events). To add a policy, read
//! [`scheduler`] or [`router`]. To add a timing model, read [`timing`].

// Time, errors and findings.
pub mod clock;
pub mod error;
pub mod finding;

// Lists of policies, routers and timing models, and random parameters for them.
mod kinds;
#[doc(hidden)]
pub mod dice;

// Requests: columns, or distributions to draw them from.
pub mod workload;
pub mod random;
pub mod distributions;

// Several replicas: routing, links, autoscaling and failures.
pub mod router;
mod tournament;
pub mod autoscaler;
pub mod failures;
pub mod cluster;
pub mod links;

// One replica: its requests, batches, KV cache and iteration times.
pub mod request;
pub mod scheduler;
pub mod plan;
pub mod kv;
pub mod timing;
pub mod speculation;
pub mod engine;
mod features;
pub(crate) mod replica;

// The cluster of one paper, lin2026: requests queue for slots before the replicas. All other modules are independent
// of it.
pub mod gate_and_route;

// Result columns, histograms and findings.
pub mod results;

// The order of events.
pub mod simulation;
