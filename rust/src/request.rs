//! The live requests of a replica.

mod history;

use crate::clock::Instant;
use crate::replica::Groups;
use crate::workload::Arrival;
pub use history::History;

/// The place of a live request in its replica's table. Places are reused; ids are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u32);

impl Place {
    /// The place as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The iteration that emits the first output token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstToken {
    /// The iteration that completes the prompt, as in real engines.
    Prefill,
    /// The first decode after the prompt, as in the papers.
    Decode,
}

/// The phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue: never admitted, or preempted without its context.
    Waiting,
    /// Admitted, but not a steady decode: in prefill, just after it, or paused.
    Started,
    /// A steady decode: one token in every iteration of its group.
    Decoding,
    /// Preempted, with its context on the host.
    Swapped,
}

/// The state of a live request that every batch reads; [`History`] has the rest.
///
/// While the request decodes, `computed` and `emitted` keep their values from when it joined the steady decodes.
/// [`Requests::context`] and [`Requests::emitted`] add the ticks since then.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Request {
    /// Row of the workload.
    pub id: u32,
    /// Class index.
    pub class: u32,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Output length in tokens.
    pub output_tokens: u32,
    pub(crate) computed: u32,
    pub(crate) emitted: u32,
    pub(crate) blocks: u64,
    /// Order among the rows of a batch: that of admission, unless the policy changes it.
    pub(crate) row: u64,
    /// Tick of its group when it joined the steady decodes.
    pub(crate) joined: u64,
    /// Sort key of its arrival at this replica.
    sort_key: u64,
    /// Its group of steady decodes.
    pub(crate) group: u32,
    pub(crate) phase: Phase,
    /// Whether it takes a new block whenever its context fills one.
    pub(crate) grows: bool,
    /// Whether the batch contains a chunk of it.
    pub(crate) placed: bool,
    /// Whether all owed tokens are computed, so that it can decode.
    pub(crate) ready: bool,
}

/// No index: no replica has so many requests.
pub(crate) const NOT_ODD: u32 = u32::MAX;

// One cache line, so that the requests of a full batch stay cached.
const _: () = assert!(size_of::<Request>() == 64);

impl Request {
    fn new(arrival: &Arrival) -> Request {
        Request {
            id: arrival.id,
            class: arrival.class,
            prompt_tokens: arrival.prompt_tokens,
            output_tokens: arrival.output_tokens,
            computed: 0,
            emitted: 0,
            blocks: 0,
            row: 0,
            joined: 0,
            sort_key: arrival.at.sort_key_of_event(),
            group: 0,
            phase: Phase::Waiting,
            grows: false,
            placed: false,
            ready: false,
        }
    }

    /// The request after a hand-off: it keeps its computed and emitted tokens and waits again.
    pub(crate) fn handed_off(self, reached: Instant) -> Request {
        Request { phase: Phase::Waiting, sort_key: reached.sort_key(), blocks: 0, placed: false, ready: false, ..self }
    }

    /// The request at another replica after its own failed, or on its first routing. Its emitted tokens stay with the
    /// client. Its whole context must be computed again.
    pub(crate) fn sent(arrival: &Arrival, emitted: u32, reached: Instant) -> Request {
        Request { emitted, sort_key: reached.sort_key(), ..Request::new(arrival) }
    }

    /// Its phase.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Sort key of its arrival at this replica, which orders most requests.
    #[inline]
    pub(crate) fn sort_key(&self) -> u64 {
        self.sort_key
    }

    /// Blocks that it holds.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether all owed tokens are computed, so that only decodes remain.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the batch contains a chunk of it.
    #[inline]
    pub(crate) fn is_placed(&self) -> bool {
        self.placed
    }

    /// Whether a decoding request has its last token at this tick of its group.
    #[inline]
    pub(crate) fn ends_at(&self, tick: u64) -> bool {
        u64::from(self.emitted) + (tick - self.joined) == u64::from(self.output_tokens)
    }

    /// Whether a request that does not decode has its last token.
    #[inline]
    pub(crate) fn owes_no_output(&self) -> bool {
        self.emitted == self.output_tokens
    }

    /// Whether all its known tokens are computed.
    #[inline]
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.behind() == 0
    }

    /// Prompt and emitted tokens that are not computed. Ticks increase both by the same amount.
    #[inline]
    fn behind(&self) -> u32 {
        self.prompt_tokens + self.emitted - self.computed
    }

    /// Tokens to compute before the next token is emitted. Under `FirstToken::Decode`, a fully computed request owes
    /// one more: the decode that emits the next token (R7).
    #[inline]
    pub fn owed(&self) -> u64 {
        u64::from(self.behind().max(1))
    }

    /// Its longest context.
    #[inline]
    pub(crate) fn longest_context(&self, first_token: FirstToken) -> u64 {
        let last = u64::from(self.prompt_tokens) + u64::from(self.output_tokens);
        last - u64::from(first_token == FirstToken::Prefill)
    }

    /// Tokens whose keys and values it holds; it does not decode.
    #[inline]
    pub(crate) fn context_held(&self) -> u64 {
        u64::from(self.computed)
    }
}

/// The longest context of a request.
#[inline]
pub(crate) fn longest_context(arrival: &Arrival, first_token: FirstToken) -> u64 {
    let last = u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
    last - u64::from(first_token == FirstToken::Prefill)
}

/// An entry of the table.
#[derive(Debug)]
struct Entry {
    request: Request,
    history: History,
}

/// The live requests of one replica.
#[derive(Debug)]
pub struct Requests {
    table: Vec<Entry>,
    vacant: Vec<Place>,
    /// Ticks of each group of steady decodes so far. One counter advances all members of a group.
    pub(crate) ticks: Groups<u64>,
    pub(crate) first_token: FirstToken,
    /// Maximum length of a request, prompt and output.
    pub(crate) max_model_len: u32,
}

/// The table grows by `FEW` places at first, and doubles from `MANY` places on.
const FEW: usize = 64;
const MANY: usize = 4096;

impl Requests {
    pub(crate) fn new(first_token: FirstToken, max_model_len: u32) -> Requests {
        Requests { table: Vec::new(), vacant: Vec::new(), ticks: Groups::new(0), first_token, max_model_len }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, arrival: &Arrival) -> Place {
        let Some(place) = self.vacant.pop() else { return self.insert_beyond(arrival) };
        let Entry { request, history } = &mut self.table[place.index()];
        *request = Request::new(arrival);
        history.begin_anew(arrival);
        place
    }

    /// Inserts at a new place.
    #[cold]
    fn insert_beyond(&mut self, arrival: &Arrival) -> Place {
        self.put(Request::new(arrival), History::new(*arrival))
    }

    pub(crate) fn put(&mut self, request: Request, history: History) -> Place {
        if let Some(place) = self.vacant.pop() {
            self.table[place.index()] = Entry { request, history };
            return place;
        }
        if self.table.len() == self.table.capacity() {
            // Growing copies all entries, so a small table grows in small steps.
            self.table.reserve(if self.table.len() < MANY { 3 * self.table.len() + FEW } else { self.table.len() });
        }
        self.table.push(Entry { request, history });
        Place(self.table.len() as u32 - 1)
    }

    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        self.vacant.push(place);
    }

    /// Removes and returns a request.
    pub(crate) fn take(&mut self, place: Place) -> (Request, History) {
        self.remove(place);
        (self.at(place).clone(), self.history(place).clone())
    }

    /// Number of live requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }

    /// Whether no request is live.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The request at a place.
    #[inline]
    pub fn at(&self, place: Place) -> &Request {
        &self.table[place.index()].request
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: Place) -> &mut Request {
        &mut self.table[place.index()].request
    }

    /// The history of the request at a place.
    #[inline]
    pub fn history(&self, place: Place) -> &History {
        &self.table[place.index()].history
    }

    #[inline]
    pub(crate) fn history_mut(&mut self, place: Place) -> &mut History {
        &mut self.table[place.index()].history
    }

    /// The request and its history.
    pub(crate) fn both_mut(&mut self, place: Place) -> (&mut Request, &mut History) {
        let Entry { request, history } = &mut self.table[place.index()];
        (request, history)
    }

    /// The arrival of the request at a place.
    #[inline]
    pub fn arrival(&self, place: Place) -> &Arrival {
        &self.history(place).arrival
    }

    /// Order of arrival at this replica, which is the default order of service.
    #[inline]
    pub fn order(&self, place: Place) -> (Instant, u32) {
        self.history(place).order()
    }

    /// Whether one request arrived here before another.
    pub(crate) fn arrived_before(&self, place: Place, other: Place) -> bool {
        let (sort_key, other_key) = (self.at(place).sort_key, self.at(other).sort_key);
        if sort_key == other_key { self.order(place) < self.order(other) } else { sort_key < other_key }
    }

    /// Iterations so far in which a group of steady decodes took part.
    #[inline]
    pub fn ticks(&self, group: usize) -> u64 {
        self.ticks[group]
    }

    /// All places that may hold live requests.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.table.len() as u32).map(Place)
    }

    /// Vacant places.
    pub(crate) fn vacant(&self) -> &[Place] {
        &self.vacant
    }

    #[inline]
    fn ticks_of(&self, request: &Request) -> u32 {
        if request.phase == Phase::Decoding { (self.tick(request) - request.joined) as u32 } else { 0 }
    }

    /// Ticks of a request's group so far.
    #[inline]
    pub(crate) fn tick(&self, request: &Request) -> u64 {
        self.ticks[request.group as usize]
    }

    /// Tokens whose keys and values are in the cache (on the host, if swapped).
    #[inline]
    pub fn context(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.computed + self.ticks_of(request))
    }

    /// Output tokens emitted.
    #[inline]
    pub fn emitted(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.emitted + self.ticks_of(request))
    }

    /// Prompt and emitted tokens, which must be computed before the next token.
    #[inline]
    pub fn known(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.prompt_tokens + request.emitted + self.ticks_of(request))
    }

    /// The context with which a waiting request emits its next token. Under `FirstToken::Decode` the input alone
    /// emits no token. A policy that lets decodes wait while it admits must check room for one more. Otherwise two
    /// requests could preempt each other forever.
    #[inline]
    pub fn until_next_token(&self, place: Place) -> u64 {
        self.known(place) + u64::from(self.first_token == FirstToken::Decode)
    }

    /// See [`Request::owed`].
    #[inline]
    pub fn owed(&self, place: Place) -> u64 {
        self.at(place).owed()
    }

    /// The context once all owed tokens are computed, which an admission must hold. A request from another replica
    /// has part of it already.
    #[inline]
    pub(crate) fn next_context(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.computed + self.ticks_of(request)) + request.owed()
    }

    /// Whether computing one token is priced as a decode (R6). This includes the last token of a recomputation.
    #[inline]
    pub(crate) fn is_priced_as_decode(&self, place: Place) -> bool {
        let request = self.at(place);
        let behind = request.behind();
        behind == 0 || (behind == 1 && request.emitted + self.ticks_of(request) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Span;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_arrive_in_order_of_time_and_then_of_id(
            all in prop::collection::vec((prop_oneof![0_u64..4, 0_u64..1 << 40], 0_u128..1 << 20), 2..20),
        ) {
            let mut requests = Requests::new(FirstToken::Prefill, u32::MAX);
            let arrivals = all.iter().zip(0..).map(|(&(nanoseconds, attoseconds), id)| Arrival {
                id,
                row: id,
                at: Instant(Instant::from_nanoseconds(nanoseconds).0 + attoseconds),
                prompt_tokens: 1,
                output_tokens: 1,
                class: 0,
                priority: 0,
                max_output_tokens: 0,
                itl_slo: Span::NEVER,
                queue_key: 0,
                session: None,
            });
            let places: Vec<Place> = arrivals.map(|arrival| requests.insert(&arrival)).collect();
            for &place in &places {
                for &other in &places {
                    prop_assert_eq!(requests.arrived_before(place, other), requests.order(place) < requests.order(other));
                }
            }
        }
    }
}
