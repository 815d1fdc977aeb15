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
//! Modules stand in the order of the road. To understand the simulator, read three: [`replica`] (what one engine does),
//! [`plan`] (what a scheduler may ask) and [`simulation`] (in which order everything happens). To add a policy, read
//! [`scheduler`] or [`router`]; to add a timing model, [`timing`].
//!
//! ```
//! use inferq_core::{engine, simulation, workload::Workload};
//!
//! let engine: engine::Engine = engine::parse(
//!     r#"{"timing": {"kind": "Constant", "seconds": 0.5},
//!         "scheduler": {"kind": "Sarathi", "token_budget": 512, "max_seqs": 128, "order": "fcfs",
//!                       "watermark": 0.01, "preemption": {"kind": "Recompute"}},
//!         "kv": {"tokens": 4096, "block": 16},
//!         "first_token": "prefill"}"#,
//! )?;
//! let workload = Workload {
//!     arrival_s: &[1.0],
//!     prompt_tokens: &[100],
//!     output_tokens: &[3],
//!     class_count: 1,
//!     ..Workload::default()
//! };
//! let options = simulation::Options::all(&workload);
//! let results = simulation::simulate(&workload, engine.build(Some(&[]))?, &options, &mut ())?;
//! let results = results.with_columns(&workload);
//! // The prompt takes one iteration, which emits the first token; two decodes follow.
//! assert_eq!(results.requests.first_token_s, [1.5]);
//! assert_eq!(results.requests.finish_s, [2.5]);
//! # Ok::<(), inferq_core::error::Error>(())
//! ```

// What everything is measured in, and what can go wrong.
pub mod clock;
pub mod error;

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
pub mod cluster;
pub mod links;

// One replica: what is in the batch, what it holds, how long it takes, what it does.
pub mod request;
pub mod scheduler;
pub mod plan;
pub mod kv;
pub mod timing;
pub mod engine;
pub mod replica;

// The cluster of one paper, lin2026: requests queue before the replicas, for slots. The rest can be read without it.
pub mod gate_and_route;

// What comes out.
pub mod results;

// The order of everything.
pub mod simulation;
