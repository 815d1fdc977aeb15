//! At which replicas have prompts been that begin alike?
//!
//! A prompt's chain of contents is noted with its first content, its first two, four, eight and so on, its own content
//! at last: so that a text which every prompt begins with does not hide where the rest is known. Where no chain has been
//! that begins with the same contents, none of what lies behind them is cached. The other way round nothing is certain:
//! it may have been evicted. What no cache has any more is forgotten now and then.

use std::collections::HashMap;

use super::Fleet;
use crate::kv::{OWN, Segment};

/// Replicas by the contents with which prompts began that were sent there.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    by_contents: HashMap<u64, Beginning>,
    /// Places in all of them, and at how many it is looked through for what can be forgotten.
    places: usize,
    most_places: usize,
}

#[derive(Debug)]
struct Beginning {
    first: u64,
    /// In their order.
    replicas: Vec<u32>,
}

/// So many replicas are asked one by one.
const FEW: usize = 16;

/// Places that are never too many.
const LEAST_PLACES: usize = 1 << 12;

/// Of a chain of contents, after 1, 2, 4, 8 … of them: a number that stands for them all, and the tokens before the last
/// one. Two chains may have the same number: then a replica too many is asked.
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
    /// A few replicas at which prompts have been that begin like this one, and how many of its tokens at most are cached
    /// at any other.
    pub(super) fn few(&self, chain: &[Segment]) -> (&[u32], u64) {
        for (number, before) in marks(chain.iter().copied()) {
            let known = self.by_contents.get(&number).map_or(&[][..], |known| &known.replicas);
            if known.len() <= FEW {
                return (known, before);
            }
        }
        // Many have all of it.
        (&[], chain.iter().map(|part| u64::from(part.tokens)).sum())
    }

    /// A request goes to a replica whose prompt begins with the fleet's content, and then with its own.
    pub(super) fn add(&mut self, replica: usize, id: u32, fleet: &Fleet) {
        if self.places > self.most_places {
            self.forget(fleet);
        }
        let own = Segment { content: OWN | u64::from(id), tokens: 0 };
        let chain = || fleet.content().iter().copied().chain([own]);
        let first = chain().next().unwrap_or(own).content;
        for (number, _) in marks(chain()) {
            let known = self.by_contents.entry(number).or_insert_with(|| Beginning { first, replicas: Vec::new() });
            if let Err(place) = known.replicas.binary_search(&(replica as u32)) {
                known.replicas.insert(place, replica as u32);
                self.places += 1;
            }
        }
    }

    /// Forgets what no cache has. What has been sent somewhere has reached it.
    fn forget(&mut self, fleet: &Fleet) {
        let mut places = 0;
        self.by_contents.retain(|_, known| {
            known.replicas.retain(|&replica| fleet.knows(replica as usize, known.first));
            places += known.replicas.len();
            !known.replicas.is_empty()
        });
        self.places = places;
        self.most_places = LEAST_PLACES.max(2 * places);
    }
}
