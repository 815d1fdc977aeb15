#![doc = include_str!("../README.md")]
//!
//! # The road of a request
//!
//! ```text
//!   workload ──▶ router ──▶ replica ─────────────────────────────▶ results
//!   (columns,    (which      plan ─▶ price ─▶ advance ─▶ settle     (rows, gaps,
//!    or drawn)    replica?)   │        │         │          │        samples,
//!                             ▼        ▼         ▼          ▼        findings)
//!                         scheduler  timing   k identical  KV blocks,
//!                                             iterations   tokens
//! ```
//!
//! Modules stand in the order of the road. To understand the simulator, read three: `replica` (what one engine does),
//! [`plan`] (what a scheduler may ask) and [`simulation`] (in which order everything happens). To add a policy, read
//! [`scheduler`] or [`router`]; to add a timing model, [`timing`].

// What everything is measured in, and what can go wrong.
pub mod clock;
pub mod error;
pub mod finding;

// How policies, routers and timing models are listed and drawn.
mod kinds;
#[doc(hidden)]
pub mod dice;

// The requests that come: columns, or distributions to draw them from.
pub mod workload;
pub mod random;
pub mod distributions;

// Several replicas: which one serves a request, what goes from one to another, and what runs through them.
pub mod router;
mod tournament;
pub mod autoscaler;
pub mod failures;
pub mod cluster;
pub mod links;

// One replica: what is in the batch, what it holds, how long it takes, what it does.
pub mod request;
pub mod scheduler;
pub mod plan;
pub mod kv;
pub mod timing;
pub mod speculation;
pub mod engine;
mod features;
pub(crate) mod replica;

// The cluster of one paper, lin2026: requests queue before the replicas, for slots. The rest can be read without it.
pub mod gate_and_route;

// What comes out.
pub mod results;

// The order of everything.
pub mod simulation;
