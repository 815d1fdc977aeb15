//! With what prompts begin, as the chains of a workload say it.

use std::collections::HashMap;
use std::ops::Deref;

use super::Workload;
use crate::error::{Error, Result};
use crate::kv::{OWN, Segment};

/// With what each prompt begins: shared contents, each from its beginning for some tokens, one after the other. What they
/// leave of a prompt is the request's own, as is its output. Empty slices: all prompts are wholly their own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Content<'a> {
    /// The earlier row with whose segments those of each begin; `NO_ROW`: none. Empty: none for all.
    pub after: &'a [u32],
    /// The segments of row r are, behind those, the ones from `start[r]` to `start[r + 1]`.
    pub start: &'a [u64],
    /// Which content: a number below 2^63, or 2^63 and the id of an earlier request whose own content it is.
    pub id: &'a [u64],
    /// How many tokens of it.
    pub tokens: &'a [u32],
    /// How many later rows begin with the segments of each. Empty: that is not known.
    pub continued: &'a [u32],
    /// Which of those rows the requests here are. Empty: all, in their order.
    pub rows: &'a [u32],
    /// How many of those rows come before the ones of the requests here.
    pub skipped: usize,
}

/// In `Content::after`: the segments of a row begin with those of no other.
pub const NO_ROW: u32 = u32::MAX;

impl Content<'_> {
    /// The segments of a request.
    pub fn of(&self, request: usize) -> Vec<Segment> {
        let mut segments = Vec::new();
        if !self.start.is_empty() {
            self.read(self.row(request), &mut segments);
        }
        segments
    }

    fn read(&self, row: usize, segments: &mut Vec<Segment>) {
        segments.clear();
        if self.after(row).is_none() {
            segments.extend(self.parts(row));
            return;
        }
        for row in std::iter::successors(Some(row), |&row| self.after(row)) {
            segments.extend(self.parts(row).rev());
        }
        segments.reverse();
    }

    /// The row of a request.
    #[inline]
    fn row(&self, request: usize) -> usize {
        self.rows.get(request).map_or(self.skipped + request, |&row| row as usize)
    }

    /// The row with whose segments those of a row begin.
    #[inline]
    pub(super) fn after(&self, row: usize) -> Option<usize> {
        self.after.get(row).filter(|&&after| after != NO_ROW).map(|&after| after as usize)
    }

    /// The segments that are given of a row.
    pub(super) fn parts(&self, row: usize) -> impl DoubleEndedIterator<Item = Segment> + ExactSizeIterator {
        let range = self.start[row] as usize..self.start[row + 1] as usize;
        let parts = self.id[range.clone()].iter().zip(&self.tokens[range]);
        parts.map(|(&content, &tokens)| Segment { content, tokens })
    }

    pub(super) fn check(&self, workload: &Workload) -> Result<()> {
        let (starts, rows) = (self.start, workload.len());
        if starts.is_empty() && self.id.is_empty() && self.tokens.is_empty() {
            return Ok(());
        }
        let is_whole = self.skipped == 0
            && starts.len() == rows + 1
            && starts.is_sorted()
            && starts[rows] as usize <= self.id.len()
            && self.id.len() == self.tokens.len()
            && (self.after.is_empty() || self.after.len() == rows)
            && (self.continued.is_empty() || self.continued.len() == rows);
        if !is_whole {
            return Err(Error::config("content", "after, start, id, tokens and continued do not go together"));
        }
        let mut totals = Vec::new();
        for row in 0..rows {
            let mut tokens: u64 = self.parts(row).map(|part| u64::from(part.tokens)).sum();
            if let Some(after) = self.after(row) {
                if after >= row {
                    return Err(Error::trace(
                        row,
                        format!("its prompt begins with that of row {after}, which comes later"),
                    ));
                }
                tokens += totals[after];
            }
            if !self.after.is_empty() {
                totals.push(tokens);
            }
            let (prompt, id) = (workload.prompt_tokens[row], workload.id(row));
            if tokens > prompt as u64 || self.parts(row).any(|part| part.tokens == 0) {
                return Err(Error::trace(row, format!("{tokens} tokens of shared content in a prompt of {prompt}")));
            }
            if self.parts(row).any(|part| part.content >= OWN | u64::from(id)) {
                return Err(Error::trace(row, "its prompt begins with what a later request says"));
            }
            if !self.goes_on_behind_all(row, workload) {
                let what = "its prompt goes on from what another request says, without what that one begins with";
                return Err(Error::trace(row, what));
            }
        }
        Ok(())
    }

    /// Does what the last of the others says stand behind all that it begins with? It is known of rows that are here.
    fn goes_on_behind_all(&self, row: usize, workload: &Workload) -> bool {
        let last = self.parts(row).enumerate().rev().find(|(_, part)| part.content >= OWN);
        let Some((at, part)) = last else { return true };
        let Some(other) = workload.row_of((part.content ^ OWN) as u32) else { return true };
        if at == 0 && self.after(row) == Some(other) {
            return true;
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        self.read(row, &mut own);
        self.read(other, &mut others);
        let given = self.parts(row).len();
        own.truncate(own.len() - given + at);
        own == others
    }
}

/// The beginnings of requests as they arrive, one at a time.
///
/// A row that begins with the segments of another one is read behind those of it, where they are at hand: so the turns of
/// a long session cost what they add. Kept are those of rows that go on, if they are many, until all have gone on.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    segments: Vec<Segment>,
    /// The row whose segments they are, and how many rows are still to go on from it.
    of: (u32, u32),
    kept: HashMap<u32, (Vec<Segment>, u32)>,
}

/// So few segments are read anew.
const FEW: usize = 16;

impl Beginning {
    /// Reads that of a request of the workload.
    #[inline]
    pub(crate) fn read(&mut self, content: &Content, request: usize) {
        if !content.start.is_empty() {
            self.read_row(content, content.row(request));
        }
    }

    #[inline(never)]
    fn read_row(&mut self, content: &Content, row: usize) {
        self.keep();
        let kept = content.after(row).and_then(|after| self.take(after as u32));
        if let Some(before) = kept {
            self.segments = before;
            self.segments.extend(content.parts(row));
        } else {
            content.read(row, &mut self.segments);
        }
        self.of = (row as u32, content.continued.get(row).copied().unwrap_or(0));
    }

    /// Another begins like this, and is of no row here.
    pub(crate) fn set(&mut self, segments: &[Segment]) {
        self.keep();
        self.of = (NO_ROW, 0);
        self.segments.clear();
        self.segments.extend_from_slice(segments);
    }

    /// The rows are numbered anew.
    pub(crate) fn forget(&mut self) {
        *self = Beginning::default();
    }

    /// Keeps what rows are still to go on from.
    fn keep(&mut self) {
        let (row, left) = self.of;
        if left > 0 && self.segments.len() >= FEW {
            self.kept.insert(row, (std::mem::take(&mut self.segments), left));
        }
    }

    /// The segments of a row that is kept, as one row more goes on from it.
    fn take(&mut self, row: u32) -> Option<Vec<Segment>> {
        let (segments, left) = self.kept.get_mut(&row)?;
        *left -= 1;
        if *left > 0 {
            return Some(segments.clone());
        }
        self.kept.remove(&row).map(|(segments, _)| segments)
    }
}

impl Deref for Beginning {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.segments
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::wrong;
    use super::*;

    #[test]
    fn a_prompt_begins_with_that_of_a_row_before_it_and_goes_on() {
        let content = Content {
            after: &[NO_ROW, 0, NO_ROW, 1],
            start: &[0, 1, 3, 3, 4],
            id: &[7, OWN, 8, OWN | 1],
            tokens: &[2, 3, 1, 4],
            ..Content::default()
        };
        let of = |content, tokens| Segment { content, tokens };
        let whole = [of(7, 2), of(OWN, 3), of(8, 1), of(OWN | 1, 4)];
        assert_eq!([0, 1, 2, 3].map(|row| content.of(row)), [&whole[..1], &whole[..3], &[], &whole]);
        assert_eq!(Content { rows: &[3, 0], ..content }.of(0), whole);
        let chain =
            Content { after: &[NO_ROW, 0], start: &[0, 1, 2], id: &[7, OWN], tokens: &[1, 1], ..Content::default() };
        for (after, tokens, what) in [
            (&[NO_ROW, 1][..], &[1, 1][..], "row 1, which comes later"),
            (&[1, NO_ROW], &[1, 1], "row 1, which comes later"),
            (&[NO_ROW, 9], &[1, 1], "row 9, which comes later"),
            (&[NO_ROW], &[1, 1], "do not go together"),
            (&[NO_ROW, 0], &[2, 2], "4 tokens of shared content in a prompt of 3"),
        ] {
            let message = wrong(|workload| workload.content = Content { after, tokens, ..chain });
            assert!(message.contains(what), "{message}");
        }
    }

    /// A forest of rows that go on from one another, with what each adds.
    fn forest() -> impl Strategy<Value = Vec<(Option<usize>, usize)>> {
        let row = |of: usize| (prop_oneof![Just(None), Just(Some(1)), (1..=of.max(1)).prop_map(Some)], 0_usize..12);
        prop::collection::vec((0_usize..40).prop_flat_map(row), 1..60)
    }

    proptest! {
        /// Whatever is kept, and whether or not it is known how many rows go on from each, in any order of arrival.
        #[test]
        fn what_is_read_one_by_one_is_what_each_row_has(
            rows in forest(),
            arrives in prop::collection::vec(0_usize..60, 0..120),
            is_known in any::<bool>(),
        ) {
            let before = |row: usize| rows[row].0.and_then(|back| row.checked_sub(back));
            let after: Vec<u32> = (0..rows.len()).map(|row| before(row).map_or(NO_ROW, |row| row as u32)).collect();
            let (mut start, mut id, mut continued) = (vec![0], Vec::new(), vec![0; rows.len()]);
            for (row, &(_, adds)) in rows.iter().enumerate() {
                id.extend((0..adds as u64).map(|part| 100 * row as u64 + part));
                start.push(id.len() as u64);
                before(row).into_iter().for_each(|row| continued[row] += 1);
            }
            let tokens = vec![1; id.len()];
            let continued = if is_known { &continued[..] } else { &[] };
            let content = Content { after: &after, start: &start, id: &id, tokens: &tokens, continued, ..Content::default() };
            let mut beginning = Beginning::default();
            for row in (0..rows.len()).chain(arrives).filter(|&row| row < rows.len()) {
                beginning.read(&content, row);
                prop_assert_eq!(&beginning[..], content.of(row));
                if row % 7 == 3 {
                    beginning.set(&[Segment { content: 7, tokens: 1 }]);
                    prop_assert_eq!(beginning.len(), 1);
                }
            }
        }
    }

    #[test]
    fn what_a_request_says_stands_behind_one_chain_alone() {
        let content = Content { start: &[0, 1, 3], id: &[7, 8, OWN], tokens: &[1, 1, 1], ..Content::default() };
        assert!(wrong(|workload| workload.content = content).contains("without what that one begins with"));
    }
}
