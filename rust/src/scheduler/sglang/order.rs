//! The queue order and the prefix cache hits of waiting requests.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{SglangPolicy, SglangScheduler};
use crate::plan::Plan;
use crate::request::Place;

/// In order of arrival, one pass in `REFRESH_EVERY` refreshes the cached prefixes of waiting requests.
const REFRESH_EVERY: u64 = 32;
/// Maximum number of requests that are refreshed, and of requests that are sorted.
const MOST_MATCHED: usize = 128;
/// A request with at most this hit waits for another one that begins with the same tokens.
const SMALL_HIT: u64 = 32;

impl SglangScheduler {
    /// Sorts the queue by the policy.
    pub(super) fn order_queue(&mut self, plan: &mut Plan) {
        if !plan.shares_blocks() || self.queue.is_empty() {
            return;
        }
        let waiting: Vec<Place> = self.queue.iter().take(MOST_MATCHED).collect();
        if self.settings.policy == SglangPolicy::Lpm && self.queue.len() <= MOST_MATCHED {
            self.sort_by_hit(waiting, plan);
            return;
        }
        if self.passes.is_multiple_of(REFRESH_EVERY) {
            for &place in waiting.iter().rev() {
                plan.refresh(place, plan.requests().known(place));
            }
        }
        self.passes += 1;
    }

    /// Longest hit first. Of requests with a small hit and the same beginning, only the first keeps its place, so
    /// that the others hit what it computes.
    fn sort_by_hit(&mut self, waiting: Vec<Place>, plan: &mut Plan) {
        let mut beginnings = BTreeSet::new();
        let mut keyed: Vec<(Option<u64>, Place)> = Vec::with_capacity(waiting.len());
        for place in waiting {
            let known = plan.requests().known(place);
            let hit = plan.refresh(place, known);
            let is_like_another =
                hit <= SMALL_HIT && known >= SMALL_HIT && !beginnings.insert(plan.content_at(place, SMALL_HIT - 1));
            keyed.push(((!is_like_another).then_some(hit.min(known - 1)), place));
        }
        // `None`, for requests with the same beginning, sorts below every length.
        keyed.sort_by_key(|&(hit, _)| Reverse(hit));
        for (_, place) in keyed {
            self.queue.remove(place);
            self.queue.push_back(place);
        }
    }
}
