//! The order of the queue, and what its requests find in the cache.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{SglangPolicy, SglangScheduler};
use crate::plan::Plan;
use crate::request::Place;

/// Of the passes that go by arrival, one in so many refreshes what the waiting find in the cache.
const REFRESH_EVERY: u64 = 32;
/// Of so many waiting at most. The longest queue that is sorted, too.
const MOST_MATCHED: usize = 128;
/// A request that finds no more than this waits for others that begin with as many same tokens.
const FOUND_LITTLE: u64 = 32;

impl SglangScheduler {
    /// Brings the queue into the order of the policy, in which it stays.
    pub(super) fn order_queue(&mut self, plan: &mut Plan) {
        if !plan.shares_blocks() || self.queue.is_empty() {
            return;
        }
        let waiting: Vec<Place> = self.queue.iter().take(MOST_MATCHED).collect();
        if self.settings.policy == SglangPolicy::Lpm && self.queue.len() <= MOST_MATCHED {
            self.sort_by_found(waiting, plan);
            return;
        }
        if self.passes.is_multiple_of(REFRESH_EVERY) {
            for &place in waiting.iter().rev() {
                plan.refresh(place, plan.requests().known(place));
            }
        }
        self.passes += 1;
    }

    /// Requests that find most go first. Of requests that find little and begin alike only the first keeps its place,
    /// so that the others find what it computes.
    fn sort_by_found(&mut self, waiting: Vec<Place>, plan: &mut Plan) {
        let mut beginnings = BTreeSet::new();
        let mut keyed: Vec<(Option<u64>, Place)> = Vec::with_capacity(waiting.len());
        for place in waiting {
            let known = plan.requests().known(place);
            let hit = plan.refresh(place, known);
            let is_like_another = hit <= FOUND_LITTLE
                && known >= FOUND_LITTLE
                && !beginnings.insert(plan.content_at(place, FOUND_LITTLE - 1));
            keyed.push(((!is_like_another).then_some(hit.min(known - 1)), place));
        }
        // Nothing, for requests that begin alike, is less than any length.
        keyed.sort_by_key(|&(hit, _)| Reverse(hit));
        for (_, place) in keyed {
            self.queue.remove(place);
            self.queue.push_back(place);
        }
    }
}
