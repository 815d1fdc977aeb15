//! The requests that a replica holds, and what is known of each.

mod history;

use crate::clock::Instant;
use crate::replica::Groups;
use crate::workload::Arrival;
pub use history::History;

/// The place of a live request in its replica's table. Places are used again; ids are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u32);

impl Place {
    /// The place as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which iteration emits the first output token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstToken {
    /// The one that completes the prompt, as real engines do.
    Prefill,
    /// The first decode after it, as the papers count.
    Decode,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue: never admitted, or preempted with its context lost.
    Waiting,
    /// Admitted, and not among the standing decodes: inside its prompt, just done with it, or paused.
    Started,
    /// Among the standing decodes: one token in every iteration in which these take part.
    Decoding,
    /// Preempted, its context kept on the host.
    Swapped,
}

/// A live request: what of it is looked at in every batch that it is in, and nothing else; see [`History`] for the rest.
///
/// While it decodes, `computed` and `emitted` stand as they were when it joined the standing decodes; what the ticks
/// since then added is [`Requests::context`] and [`Requests::emitted`].
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
    /// Its place among the rows of a batch: that of its admission, unless the policy moved it.
    pub(crate) row: u64,
    /// The tick of its group at which it joined the standing decodes.
    pub(crate) joined: u64,
    /// The hour of its arrival at this replica.
    hour: u64,
    /// Its group of the standing decodes.
    pub(crate) group: u32,
    pub(crate) phase: Phase,
    /// Takes a block whenever its context fills one.
    pub(crate) grows: bool,
    /// Stands in the running batch as a chunk.
    pub(crate) placed: bool,
    /// Everything that it owed is computed: it can be among the standing decodes.
    pub(crate) ready: bool,
}

/// No place: no replica holds so many requests.
pub(crate) const NOT_ODD: u32 = u32::MAX;

// One line of the cache, so that those of a full batch stay in it.
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
            hour: arrival.at.hour_of_event(),
            group: 0,
            phase: Phase::Waiting,
            grows: false,
            placed: false,
            ready: false,
        }
    }

    /// The request as it reaches another replica: what it has computed and emitted is kept, it waits anew.
    pub(crate) fn handed_off(self, reached: Instant) -> Request {
        Request { phase: Phase::Waiting, hour: reached.hour(), blocks: 0, placed: false, ready: false, ..self }
    }

    /// The request as it comes to another replica when its own has died: the tokens that the client has are its own, and
    /// everything has to be computed again. One that was nowhere before has none.
    pub(crate) fn sent(arrival: &Arrival, emitted: u32, reached: Instant) -> Request {
        Request { emitted, hour: reached.hour(), ..Request::new(arrival) }
    }

    /// Where it stands.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The hour of its arrival at this replica, which tells most requests apart.
    #[inline]
    pub(crate) fn hour(&self) -> u64 {
        self.hour
    }

    /// Blocks that it holds.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Is everything computed that it owed, so that a decode is all it asks for?
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Does it compute a chunk in the batch?
    #[inline]
    pub(crate) fn is_placed(&self) -> bool {
        self.placed
    }

    /// Is its last token out when its group has come to a tick? It decodes.
    #[inline]
    pub(crate) fn ends_at(&self, tick: u64) -> bool {
        u64::from(self.emitted) + (tick - self.joined) == u64::from(self.output_tokens)
    }

    /// Is its last token out? It does not decode.
    #[inline]
    pub(crate) fn owes_no_output(&self) -> bool {
        self.emitted == self.output_tokens
    }

    /// Is everything computed that is known of it?
    #[inline]
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.behind() == 0
    }

    /// Tokens of prompt and output, emitted so far, that are not computed. Ticks add to both sides alike.
    #[inline]
    fn behind(&self) -> u32 {
        self.prompt_tokens + self.emitted - self.computed
    }

    /// Tokens still to compute before the next one is emitted. Under `FirstToken::Decode` a request with everything
    /// computed owes one more, the decode that makes the next token (rule 7).
    #[inline]
    pub fn owed(&self) -> u64 {
        u64::from(self.behind().max(1))
    }

    /// The longest context that it ever has.
    #[inline]
    pub(crate) fn longest_context(&self, first_token: FirstToken) -> u64 {
        let last = u64::from(self.prompt_tokens) + u64::from(self.output_tokens);
        last - u64::from(first_token == FirstToken::Prefill)
    }

    /// Tokens whose keys and values it takes along; it does not decode.
    #[inline]
    pub(crate) fn context_held(&self) -> u64 {
        u64::from(self.computed)
    }
}

/// The longest context that a request ever has.
#[inline]
pub(crate) fn longest_context(arrival: &Arrival, first_token: FirstToken) -> u64 {
    let last = u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
    last - u64::from(first_token == FirstToken::Prefill)
}

/// What stands at a place.
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
    /// Ticks of each group of the standing decodes so far; the one number that moves all of its members.
    pub(crate) ticks: Groups<u64>,
    pub(crate) first_token: FirstToken,
}

/// Places are added by so many at first, and by as many as there are from so many on.
const FEW: usize = 64;
const MANY: usize = 4096;

impl Requests {
    pub(crate) fn new(first_token: FirstToken) -> Requests {
        Requests { table: Vec::new(), vacant: Vec::new(), ticks: Groups::new(0), first_token }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, arrival: &Arrival) -> Place {
        let Some(place) = self.vacant.pop() else { return self.insert_beyond(arrival) };
        let Entry { request, history } = &mut self.table[place.index()];
        *request = Request::new(arrival);
        history.begin_anew(arrival);
        place
    }

    /// The same at a place where no request was before.
    #[cold]
    #[inline(never)]
    fn insert_beyond(&mut self, arrival: &Arrival) -> Place {
        self.put(Request::new(arrival), History::new(*arrival))
    }

    pub(crate) fn put(&mut self, request: Request, history: History) -> Place {
        if let Some(place) = self.vacant.pop() {
            self.table[place.index()] = Entry { request, history };
            return place;
        }
        if self.table.len() == self.table.capacity() {
            // All entries are copied: few places are taken in small steps.
            self.table.reserve(if self.table.len() < MANY { 3 * self.table.len() + FEW } else { self.table.len() });
        }
        self.table.push(Entry { request, history });
        Place(self.table.len() as u32 - 1)
    }

    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        self.vacant.push(place);
    }

    /// Takes a request out as it stands.
    pub(crate) fn take(&mut self, place: Place) -> (Request, History) {
        self.remove(place);
        (self.at(place).clone(), self.history(place).clone())
    }

    /// Number of live requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }

    /// Is no request here?
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

    /// What became of the request at a place so far.
    #[inline]
    pub fn history(&self, place: Place) -> &History {
        &self.table[place.index()].history
    }

    #[inline]
    pub(crate) fn history_mut(&mut self, place: Place) -> &mut History {
        &mut self.table[place.index()].history
    }

    /// Both.
    #[inline(always)]
    pub(crate) fn both_mut(&mut self, place: Place) -> (&mut Request, &mut History) {
        let Entry { request, history } = &mut self.table[place.index()];
        (request, history)
    }

    /// What arrived at a place.
    #[inline]
    pub fn arrival(&self, place: Place) -> &Arrival {
        &self.history(place).arrival
    }

    /// Order of arrival at this replica, which is the order of service unless a policy says otherwise.
    #[inline]
    pub fn order(&self, place: Place) -> (Instant, u32) {
        self.history(place).order()
    }

    /// Did one request arrive here before another?
    #[inline(always)]
    pub(crate) fn arrived_before(&self, one: Place, other: Place) -> bool {
        let (hour, other_hour) = (self.at(one).hour, self.at(other).hour);
        if hour == other_hour { self.order(one) < self.order(other) } else { hour < other_hour }
    }

    /// Iterations in which a group of the standing decodes took part so far.
    #[inline]
    pub fn ticks(&self, group: usize) -> u64 {
        self.ticks[group]
    }

    /// All places that may hold live requests.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.table.len() as u32).map(Place)
    }

    /// Places that hold no request now.
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

    /// Prompt and emitted tokens: what must be computed before the next token.
    #[inline]
    pub fn known(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.prompt_tokens + request.emitted + self.ticks_of(request))
    }

    /// The context with which a waiting request emits its next token. Under `FirstToken::Decode` the input alone brings
    /// no token: a policy that lets decodes wait while it admits must see room for one more, or two requests could take
    /// each other's blocks for ever.
    #[inline]
    pub fn until_next_token(&self, place: Place) -> u64 {
        self.known(place) + u64::from(self.first_token == FirstToken::Decode)
    }

    /// See [`Request::owed`].
    #[inline]
    pub fn owed(&self, place: Place) -> u64 {
        self.at(place).owed()
    }

    /// The context once everything that it owes is computed: what an admission must hold. A request that comes from
    /// another replica brings a part of it along.
    #[inline]
    pub(crate) fn next_context(&self, place: Place) -> u64 {
        let request = self.at(place);
        u64::from(request.computed + self.ticks_of(request)) + request.owed()
    }

    /// Is computing one token priced as a decode (rule 6)? It is for the tail of a recomputation too.
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
            let mut requests = Requests::new(FirstToken::Prefill);
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
            for &one in &places {
                for &other in &places {
                    prop_assert_eq!(requests.arrived_before(one, other), requests.order(one) < requests.order(other));
                }
            }
        }
    }
}
