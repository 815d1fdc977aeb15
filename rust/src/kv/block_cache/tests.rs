//! Comparison of the cache with its rules, block by block.

use std::collections::HashMap;

use super::super::content_tree::{Newcomer, OWN, Segment};
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
struct Slow {
    block: usize,
    /// All entries ever made, oldest first; evicted ones are `None`.
    entries: Vec<Option<Entry>>,
    unreferenced: Vec<usize>,
    held: [Vec<usize>; 4],
    said: [Option<Vec<Token>>; 4],
    /// Tokens of each request before its own.
    shared: [usize; 4],
    followed: Vec<usize>,
    reported: Vec<Vec<Token>>,
}

impl Slow {
    fn known(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter_map(|(entry, known)| Some((entry, known.as_ref()?)))
    }

    /// Returns the oldest entries of the first blocks of some tokens, as far as they exist.
    fn find(&self, tokens: &[Token]) -> Vec<usize> {
        let oldest = |end| self.known().find(|(_, known)| known.tokens == tokens[..end]).map(|(entry, _)| entry);
        (1..=tokens.len() / self.block).map_while(|count| oldest(count * self.block)).collect()
    }

    fn open(&mut self, place: usize, said: Vec<Token>, shared: usize) {
        let first = &said[..=shared];
        let others = self.said.iter().flatten().chain(self.known().map(|(_, known)| &known.tokens));
        let is_followed = others.into_iter().any(|other| other.starts_with(first));
        for (other, tokens) in self.said.iter().enumerate() {
            let follows = |tokens: &Vec<Token>| said.starts_with(&tokens[..=self.shared[other]]);
            if tokens.as_ref().is_some_and(follows) && !self.followed.contains(&other) {
                self.followed.push(other);
            }
        }
        if is_followed {
            self.followed.push(place);
        }
        (self.said[place], self.shared[place]) = (Some(said), shared);
    }

    fn close(&mut self, place: usize) {
        self.said[place] = None;
        self.followed.retain(|&followed| followed != place);
    }

    fn hold(&mut self, place: usize, entries: Vec<usize>) {
        for &entry in &entries {
            self.entries[entry].as_mut().expect("a matched entry").holders += 1;
            self.unreferenced.retain(|&other| other != entry);
        }
        self.held[place] = entries;
    }

    fn publish(&mut self, place: usize, tokens: usize) {
        for count in self.held[place].len() + 1..=tokens / self.block {
            let tokens = self.said[place].as_ref().expect("an open request")[..count * self.block].to_vec();
            self.held[place].push(self.entries.len());
            self.entries.push(Some(Entry { tokens, holders: 1 }));
        }
    }

    fn let_go(&mut self, entries: Vec<usize>) {
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
    Come {
        after: Option<usize>,
        chain: Vec<(u64, u32)>,
        own: u32,
        computed: u32,
    },
    Compute(u32),
    Go {
        is_kept: bool,
    },
    LetGo,
    Evict(u64),
    Report,
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let chain = prop::collection::vec((0_u64..7, 1_u32..=SAID), 0..4);
    let after = prop_oneof![Just(None), (1_usize..4).prop_map(Some)];
    let act = prop_oneof![
        6 => (after, chain, 1_u32..SAID, 0_u32..50)
            .prop_map(|(after, chain, own, computed)| Act::Come { after, chain, own, computed }),
        4 => (0_u32..50).prop_map(Act::Compute),
        4 => any::<bool>().prop_map(|is_kept| Act::Go { is_kept }),
        1 => Just(Act::LetGo),
        3 => (0_u64..25).prop_map(Act::Evict),
        1 => Just(Act::Report),
    ];
    prop::collection::vec((0_usize..4, act), 1..60)
}

/// Own tokens of each request, its output included.
const SAID: u32 = 13;

/// The first `limit` tokens, if there are as many.
fn first(tokens: &[Token], most: usize) -> &[Token] {
    &tokens[..most.min(tokens.len())]
}

fn tokens(chain: &[Segment]) -> Vec<Token> {
    chain.iter().flat_map(|part| (0..part.tokens).map(|token| (part.content, token))).collect()
}

fn agree(block: u64, acts: &[(usize, Act)]) {
    let mut cache = BlockCache::new(block, 0);
    let mut slow = Slow { block: block as usize, ..Slow::default() };
    let mut kept: Vec<(Part, Vec<usize>)> = Vec::new();
    let mut chains: [Vec<Segment>; 4] = Default::default();
    let mut came: Vec<Vec<Segment>> = Vec::new();
    let mut begins: HashMap<u64, Vec<Segment>> = HashMap::new();
    cache.report();
    for (id, (index, act)) in acts.iter().enumerate() {
        let (index, place) = (*index, Place(*index as u32));
        let is_here = slow.said[index].is_some();
        match act {
            Act::Come { after, chain, own, computed } if !is_here => {
                // The last contents of a chain may be own tokens of earlier requests, present or finished.
                let content = |&(text, tokens): &(u64, u32)| match text {
                    0..4 => Segment { content: text, tokens },
                    text => Segment { content: OWN | (id as u64).saturating_sub(text - 3), tokens },
                };
                let earlier = after.and_then(|after| came.get(came.len().checked_sub(after)?)).cloned();
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
                whole.push(Segment { content: OWN | id as u64, tokens: SAID });
                let newcomer =
                    Newcomer { content: &chain, own: OWN | id as u64, prompt: shared + own, tokens: shared + SAID };
                cache.open(place, newcomer);
                slow.open(index, tokens(&whole), shared as usize);
                let most = (shared + own - 1) as usize;
                let said = slow.said[index].as_ref().expect("an open request");
                let found = slow.find(&said[..most]);
                let (known, next) = cache.cached_prefix(&chain, most as u64);
                assert_eq!(known, slow.find(&said[..most.min(shared as usize)]).len() as u64 * block);
                let next_end = known as usize + block as usize;
                let speaker = (0..4).find(|&other| {
                    other != index
                        && next_end <= shared as usize
                        && slow.said[other].as_ref().is_some_and(|tokens| {
                            next_end > slow.shared[other] && tokens.starts_with(&said[..next_end])
                        })
                        && said[next_end - 1].0 == chains[other].last().expect("its own content").content
                });
                assert_eq!(next, speaker.map(|speaker| Place(speaker as u32)));
                let is_free = |&&entry: &&usize| slow.unreferenced.contains(&entry);
                let hit = Hit {
                    tokens: found.len() as u64 * block,
                    unreferenced: found.iter().filter(is_free).count() as u64,
                };
                assert_eq!(cache.find(place, most as u64), hit);
                assert_eq!(cache.content(place), chain);
                came.push(whole.clone());
                chains[index] = whole;
                cache.hold(place, hit);
                slow.hold(index, found);
                cache.scheduled(place, u64::from((*computed).min(shared + own)));
                slow.publish(index, (*computed).min(shared + own) as usize);
            }
            Act::Compute(tokens) if is_here => {
                let tokens = slow.shared[index] + (*tokens).min(SAID) as usize;
                cache.computed(place, tokens as u64);
                slow.publish(index, tokens);
            }
            Act::Go { is_kept } if is_here => {
                let entries = std::mem::take(&mut slow.held[index]);
                if *is_kept {
                    kept.push((cache.keep(place), entries));
                } else {
                    cache.leave(place);
                    slow.let_go(entries);
                }
                cache.close(place);
                slow.close(index);
            }
            Act::LetGo => {
                for (part, entries) in kept.drain(..) {
                    cache.let_go(part);
                    slow.let_go(entries);
                }
            }
            Act::Evict(unreferenced) => {
                cache.evict_until(*unreferenced);
                slow.evict_until(*unreferenced as usize);
            }
            Act::Report => {
                cache.report();
                slow.reported = slow.known().map(|(_, known)| known.tokens.clone()).collect();
            }
            _ => {}
        }
        assert_eq!(cache.unreferenced(), slow.unreferenced.len() as u64);
        assert_eq!(cache.cached(), slow.known().count() as u64);
        assert_eq!(cache.inserted(), slow.entries.len() as u64);
        let followed: Vec<usize> = cache.followed().iter().map(|place| place.index()).collect();
        assert_eq!(followed, slow.followed);
        for one in (0..4).filter(|&one| slow.said[one].is_some()) {
            let said = slow.said[one].as_ref().expect("an open request");
            assert_eq!(cache.shared(Place(one as u32)), slow.held[one].len() as u64);
            assert_eq!(cache.find(Place(one as u32), 50).tokens, slow.find(first(said, 50)).len() as u64 * block);
            let is_reported =
                |count: &usize| slow.reported.iter().any(|known| *known == said[..count * block as usize]);
            let reported = (1..=first(said, 50).len() / block as usize).take_while(is_reported).count() as u64 * block;
            assert_eq!(cache.reported(&chains[one], 50), reported);
            for other in (0..4).filter(|&other| slow.said[other].is_some()) {
                for tokens in [0, 20, said.len() - 1] {
                    let end = tokens / block as usize * block as usize + block as usize;
                    let alike = slow.said[other]
                        .as_ref()
                        .is_some_and(|other| said.len() >= end && other.len() >= end && other[..end] == said[..end]);
                    assert_eq!(cache.go_on_alike(Place(one as u32), Place(other as u32), tokens as u64), alike);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn runs_of_blocks_do_what_single_blocks_would(block in 1_u64..9, acts in acts()) {
        agree(block, &acts);
    }
}
