//! Tests of the invariants of `DESIGN.md`, over random scenarios and over misbehaving policies.

mod tier;
mod scenario;
mod laws;
mod gate_and_route;
mod fleet;
mod capacity;
mod network;
mod policies;
mod policies_batching;
mod policies_deadlines;
mod policies_tiles;
mod policies_waiting;
mod exponential;
mod exponential_audit;
mod exponential_theory;
mod streamed;
mod live;
mod theory;
mod timings;
