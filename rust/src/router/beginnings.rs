//! An index of replicas by the beginnings of the prompts sent to them.
//!
//! A prompt's chain of contents is indexed by its first content, its first two, four, eight and so on, and by its own
//! content. So a text shared by all prompts does not hide where longer prefixes are cached. If no indexed chain has
//! the same first contents, nothing after them is cached. The converse does not hold, since content may have been
//! evicted. Entries that no cache has any more are removed from time to time.

use std::collections::HashMap;

use super::Fleet;
use crate::kv::{OWN, Segment};

/// Replicas by the beginnings of prompts sent to them.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    by_contents: HashMap<u64, Beginning>,
    /// Total number of entries, and the number at which outdated entries are removed.
    places: usize,
    most_places: usize,
}

#[derive(Debug)]
struct Beginning {
    first: u64,
    /// In ascending order.
    replicas: Vec<u32>,
}

/// Maximum number of replicas to inspect individually.
const MAX_INSPECTED: usize = 16;

/// Number of entries below which nothing is removed.
const MIN_PLACES: usize = 1 << 12;

/// For a chain, after 1, 2, 4, 8 … contents: a hash of these contents, and the tokens before the last one. A hash
/// collision only causes an additional replica to be inspected.
fn marks(chain: impl Iterator<Item = Segment>) -> impl Iterator<Item = (u64, u64)> {
    let (mut number, mut tokens) = (0_u64, 0);
    let marked = chain.zip(1_u32..).map(move |(Segment { content, tokens: of_this }, count)| {
        let before = tokens;
        number = (number.rotate_left(23) ^ content).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        tokens += u64::from(of_this);
        (count, (number, before))
    });
    marked.filter(|(count, _)| count.is_power_of_two()).map(|(_, mark)| mark)
}

impl Beginnings {
    /// Returns a few replicas that received prompts with the longest common beginning, and an upper bound of the
    /// prompt's tokens cached at any other replica.
    pub(super) fn candidates(&self, chain: &[Segment]) -> (&[u32], u64) {
        for (number, before) in marks(chain.iter().copied()) {
            let replicas = self.by_contents.get(&number).map_or(&[][..], |entry| &entry.replicas);
            if replicas.len() <= MAX_INSPECTED {
                return (replicas, before);
            }
        }
        // Too many replicas have all of it.
        (&[], chain.iter().map(|part| u64::from(part.tokens)).sum())
    }

    /// Records that a request was sent to a replica. Its prompt begins with the fleet's content, followed by its own.
    pub(super) fn add(&mut self, replica: usize, id: u32, fleet: &Fleet) {
        if self.places > self.most_places {
            self.forget(fleet);
        }
        let own = Segment { content: OWN | u64::from(id), tokens: 0 };
        let chain = || fleet.content().iter().copied().chain([own]);
        let first = chain().next().unwrap_or(own).content;
        for (number, _) in marks(chain()) {
            let entry = self.by_contents.entry(number).or_insert_with(|| Beginning { first, replicas: Vec::new() });
            if let Err(place) = entry.replicas.binary_search(&(replica as u32)) {
                entry.replicas.insert(place, replica as u32);
                self.places += 1;
            }
        }
    }

    /// Removes entries that no cache has. All sent requests have reached their replicas.
    fn forget(&mut self, fleet: &Fleet) {
        let mut places = 0;
        self.by_contents.retain(|_, entry| {
            entry.replicas.retain(|&replica| fleet.has_content(replica as usize, entry.first));
            places += entry.replicas.len();
            !entry.replicas.is_empty()
        });
        self.places = places;
        self.most_places = MIN_PLACES.max(2 * places);
    }
}
