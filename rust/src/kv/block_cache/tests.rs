//! Comparison of the cache with its rules, block by block.

use std::collections::HashMap;

use super::super::content_tree::{NewRequest, OWN, Segment};
use super::super::prefix_cache::{Hit, Part, PrefixCache};
use super::BlockCache;
use crate::request::Place;
use proptest::prelude::*;

/// A token: a content and an index in it.
type Token = (u64, u32);

/// An entry of one block, identified by all tokens up to its end.
#[derive(Debug)]
struct Entry {
    tokens: Vec<Token>,
    holders: u32,
}

/// The rules, block by block, with every token compared.
#[derive(Debug, Default)]
struct Reference {
    block: usize,
    /// All entries ever made, oldest first; evicted ones are `None`.
    entries: Vec<Option<Entry>>,
    unreferenced: Vec<usize>,
    used_blocks: [Vec<usize>; 4],
    contents: [Option<Vec<Token>>; 4],
    /// Tokens of each request before its own.
    shared: [usize; 4],
    followed: Vec<usize>,
    reported: Vec<Vec<Token>>,
}

impl Reference {
    fn cached_entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter_map(|(entry, cached)| Some((entry, cached.as_ref()?)))
    }

    /// Returns the oldest entries of the first blocks of some tokens, as far as they exist.
    fn find(&self, tokens: &[Token]) -> Vec<usize> {
        let oldest =
            |end| self.cached_entries().find(|(_, cached)| cached.tokens == tokens[..end]).map(|(entry, _)| entry);
        (1..=tokens.len() / self.block).map_while(|count| oldest(count * self.block)).collect()
    }

    fn open(&mut self, place: usize, contents: Vec<Token>, shared: usize) {
        let first = &contents[..=shared];
        let others = self.contents.iter().flatten().chain(self.cached_entries().map(|(_, cached)| &cached.tokens));
        let is_followed = others.into_iter().any(|other| other.starts_with(first));
        for (other, tokens) in self.contents.iter().enumerate() {
            let follows = |tokens: &Vec<Token>| contents.starts_with(&tokens[..=self.shared[other]]);
            if tokens.as_ref().is_some_and(follows) && !self.followed.contains(&other) {
                self.followed.push(other);
            }
        }
        if is_followed {
            self.followed.push(place);
        }
        (self.contents[place], self.shared[place]) = (Some(contents), shared);
    }

    fn close(&mut self, place: usize) {
        self.contents[place] = None;
        self.followed.retain(|&followed| followed != place);
    }

    fn hold(&mut self, place: usize, entries: Vec<usize>) {
        for &entry in &entries {
            self.entries[entry].as_mut().expect("a matched entry").holders += 1;
            self.unreferenced.retain(|&other| other != entry);
        }
        self.used_blocks[place] = entries;
    }

    fn publish(&mut self, place: usize, tokens: usize) {
        for count in self.used_blocks[place].len() + 1..=tokens / self.block {
            let tokens = self.contents[place].as_ref().expect("an open request")[..count * self.block].to_vec();
            self.used_blocks[place].push(self.entries.len());
            self.entries.push(Some(Entry { tokens, holders: 1 }));
        }
    }

    fn release_detached(&mut self, entries: Vec<usize>) {
        for entry in entries.into_iter().rev() {
            let left = self.entries[entry].as_mut().expect("a used entry");
            left.holders -= 1;
            if left.holders == 0 {
                self.unreferenced.push(entry);
            }
        }
    }

    fn evict_until(&mut self, unreferenced: usize) {
        let count = self.unreferenced.len().saturating_sub(unreferenced);
        for entry in self.unreferenced.drain(..count) {
            self.entries[entry] = None;
        }
    }
}

/// Next operation, for one of the requests.
#[derive(Clone, Debug)]
enum Act {
    /// Opens a request: optionally all tokens of an earlier request, a given number of opens before; then texts with
    /// token counts, or own tokens of earlier requests; and the number of tokens computed immediately.
    Open {
        after: Option<usize>,
        chain: Vec<(u64, u32)>,
        own: u32,
        computed: u32,
    },
    Compute(u32),
    Leave {
        is_detached: bool,
    },
    LetGo,
    Evict(u64),
    Report,
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let chain = prop::collection::vec((0_u64..7, 1_u32..=OWN_TOKENS), 0..4);
    let after = prop_oneof![Just(None), (1_usize..4).prop_map(Some)];
    let act = prop_oneof![
        6 => (after, chain, 1_u32..OWN_TOKENS, 0_u32..50)
            .prop_map(|(after, chain, own, computed)| Act::Open { after, chain, own, computed }),
        4 => (0_u32..50).prop_map(Act::Compute),
        4 => any::<bool>().prop_map(|is_detached| Act::Leave { is_detached }),
        1 => Just(Act::LetGo),
        3 => (0_u64..25).prop_map(Act::Evict),
        1 => Just(Act::Report),
    ];
    prop::collection::vec((0_usize..4, act), 1..60)
}

/// Own tokens of each request, its output included.
const OWN_TOKENS: u32 = 13;

/// The first `limit` tokens, if there are as many.
fn first(tokens: &[Token], limit: usize) -> &[Token] {
    &tokens[..limit.min(tokens.len())]
}

fn tokens(chain: &[Segment]) -> Vec<Token> {
    chain.iter().flat_map(|part| (0..part.tokens).map(|token| (part.content, token))).collect()
}

fn agree(block: u64, acts: &[(usize, Act)]) {
    let mut cache = BlockCache::new(block, 0);
    let mut reference = Reference { block: block as usize, ..Reference::default() };
    let mut detached: Vec<(Part, Vec<usize>)> = Vec::new();
    let mut chains: [Vec<Segment>; 4] = Default::default();
    let mut opened: Vec<Vec<Segment>> = Vec::new();
    let mut begins: HashMap<u64, Vec<Segment>> = HashMap::new();
    cache.report();
    for (id, (index, act)) in acts.iter().enumerate() {
        let (index, place) = (*index, Place(*index as u32));
        let is_open = reference.contents[index].is_some();
        match act {
            Act::Open { after, chain, own, computed } if !is_open => {
                // The last contents of a chain may be own tokens of earlier requests, present or finished.
                let content = |&(text, tokens): &(u64, u32)| match text {
                    0..4 => Segment { content: text, tokens },
                    text => Segment { content: OWN | (id as u64).saturating_sub(text - 3), tokens },
                };
                let earlier = after.and_then(|after| opened.get(opened.len().checked_sub(after)?)).cloned();
                let chain: Vec<Segment> = match earlier {
                    Some(earlier) if chain.len() < 2 => earlier,
                    _ => {
                        let mut whole = Vec::new();
                        for part in chain.iter().map(content).filter(|part| part.content != OWN | id as u64) {
                            if part.content >= OWN {
                                // It follows one chain only.
                                whole = begins.get(&part.content).cloned().unwrap_or_default();
                            }
                            whole.push(part);
                        }
                        whole
                    }
                };
                begins.insert(OWN | id as u64, chain.clone());
                let shared: u32 = chain.iter().map(|part| part.tokens).sum();
                let mut whole = chain.clone();
                whole.push(Segment { content: OWN | id as u64, tokens: OWN_TOKENS });
                let request = NewRequest {
                    content: &chain,
                    own: OWN | id as u64,
                    prompt: shared + own,
                    tokens: shared + OWN_TOKENS,
                };
                cache.open(place, request);
                reference.open(index, tokens(&whole), shared as usize);
                let limit = (shared + own - 1) as usize;
                let contents = reference.contents[index].as_ref().expect("an open request");
                let entries_hit = reference.find(&contents[..limit]);
                let (cached_tokens, next) = cache.cached_prefix(&chain, limit as u64);
                assert_eq!(cached_tokens, reference.find(&contents[..limit.min(shared as usize)]).len() as u64 * block);
                let next_end = cached_tokens as usize + block as usize;
                let owner_of = (0..4).find(|&other| {
                    other != index
                        && next_end <= shared as usize
                        && reference.contents[other].as_ref().is_some_and(|tokens| {
                            next_end > reference.shared[other] && tokens.starts_with(&contents[..next_end])
                        })
                        && contents[next_end - 1].0 == chains[other].last().expect("its own content").content
                });
                assert_eq!(next, owner_of.map(|owner_of| Place(owner_of as u32)));
                let is_free = |&&entry: &&usize| reference.unreferenced.contains(&entry);
                let hit = Hit {
                    tokens: entries_hit.len() as u64 * block,
                    unreferenced: entries_hit.iter().filter(is_free).count() as u64,
                };
                assert_eq!(cache.find(place, limit as u64), hit);
                assert_eq!(cache.content(place), chain);
                opened.push(whole.clone());
                chains[index] = whole;
                cache.hold(place, hit);
                reference.hold(index, entries_hit);
                cache.scheduled(place, u64::from((*computed).min(shared + own)));
                reference.publish(index, (*computed).min(shared + own) as usize);
            }
            Act::Compute(tokens) if is_open => {
                let tokens = reference.shared[index] + (*tokens).min(OWN_TOKENS) as usize;
                cache.computed(place, tokens as u64);
                reference.publish(index, tokens);
            }
            Act::Leave { is_detached } if is_open => {
                let entries = std::mem::take(&mut reference.used_blocks[index]);
                if *is_detached {
                    detached.push((cache.detach(place), entries));
                } else {
                    cache.leave(place);
                    reference.release_detached(entries);
                }
                cache.close(place);
                reference.close(index);
            }
            Act::LetGo => {
                for (part, entries) in detached.drain(..) {
                    cache.release_detached(part);
                    reference.release_detached(entries);
                }
            }
            Act::Evict(unreferenced) => {
                cache.evict_until(*unreferenced);
                reference.evict_until(*unreferenced as usize);
            }
            Act::Report => {
                cache.report();
                reference.reported = reference.cached_entries().map(|(_, cached)| cached.tokens.clone()).collect();
            }
            _ => {}
        }
        assert_eq!(cache.unreferenced(), reference.unreferenced.len() as u64);
        assert_eq!(cache.cached(), reference.cached_entries().count() as u64);
        assert_eq!(cache.inserted(), reference.entries.len() as u64);
        let followed: Vec<usize> = cache.followed().iter().map(|place| place.index()).collect();
        assert_eq!(followed, reference.followed);
        for index in (0..4).filter(|&index| reference.contents[index].is_some()) {
            let contents = reference.contents[index].as_ref().expect("an open request");
            assert_eq!(cache.shared(Place(index as u32)), reference.used_blocks[index].len() as u64);
            assert_eq!(
                cache.find(Place(index as u32), 50).tokens,
                reference.find(first(contents, 50)).len() as u64 * block
            );
            let is_reported =
                |count: &usize| reference.reported.iter().any(|tokens| *tokens == contents[..count * block as usize]);
            let reported =
                (1..=first(contents, 50).len() / block as usize).take_while(is_reported).count() as u64 * block;
            assert_eq!(cache.reported(&chains[index], 50), reported);
            for other in (0..4).filter(|&other| reference.contents[other].is_some()) {
                for tokens in [0, 20, contents.len() - 1] {
                    let end = tokens / block as usize * block as usize + block as usize;
                    let alike = reference.contents[other].as_ref().is_some_and(|other| {
                        contents.len() >= end && other.len() >= end && other[..end] == contents[..end]
                    });
                    assert_eq!(cache.share_next_block(Place(index as u32), Place(other as u32), tokens as u64), alike);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn runs_of_blocks_equal_single_blocks(block in 1_u64..9, acts in acts()) {
        agree(block, &acts);
    }
}
