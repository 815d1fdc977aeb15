//! Shared beginnings of prompts, as chains of contents.

use std::collections::HashMap;
use std::ops::Deref;

use super::Workload;
use crate::error::{Error, Result};
use crate::kv::{OWN, Segment};

/// Beginning of each prompt: prefixes of shared contents, one after another. The rest of the prompt is the request's
/// own content, as is its output. Empty slices: no prompt has shared content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Content<'a> {
    /// The earlier row whose segments come first; `NO_ROW`: none. Empty: none for all.
    pub after: &'a [u32],
    /// The segments of row r after these are those from `start[r]` to `start[r + 1]`.
    pub start: &'a [u64],
    /// Content id: below 2^63 a shared one; otherwise 2^63 plus the id of the earlier request that owns it.
    pub id: &'a [u64],
    /// Tokens of each segment.
    pub tokens: &'a [u32],
    /// Number of later rows that begin with the segments of each row. Empty: unknown.
    pub continued: &'a [u32],
    /// The rows of the requests of this workload. Empty: all rows in order.
    pub rows: &'a [u32],
    /// Number of rows before those of this workload's requests.
    pub skipped: usize,
}

/// Value of `Content::after` for rows that continue no other row.
pub const NO_ROW: u32 = u32::MAX;

impl Content<'_> {
    /// Segments of a request.
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

    /// Row of a request.
    #[inline]
    fn row(&self, request: usize) -> usize {
        self.rows.get(request).map_or(self.skipped + request, |&row| row as usize)
    }

    /// The row whose segments a row continues.
    #[inline]
    pub(super) fn after(&self, row: usize) -> Option<usize> {
        self.after.get(row).filter(|&&after| after != NO_ROW).map(|&after| after as usize)
    }

    /// Segments given for a row itself.
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
            return Err(Error::config("content", "after, start, id, tokens and continued have inconsistent lengths"));
        }
        let mut totals = Vec::new();
        for row in 0..rows {
            let mut tokens: u64 = self.parts(row).map(|part| u64::from(part.tokens)).sum();
            if let Some(after) = self.after(row) {
                if after >= row {
                    return Err(Error::trace(
                        row,
                        format!("its prompt begins with that of row {after}, which is not an earlier row"),
                    ));
                }
                tokens += totals[after];
            }
            if !self.after.is_empty() {
                totals.push(tokens);
            }
            let (prompt, id) = (workload.prompt_tokens[row], workload.id(row));
            if tokens > prompt as u64 || self.parts(row).any(|part| part.tokens == 0) {
                return Err(Error::trace(
                    row,
                    format!("{tokens} tokens of shared content exceed the prompt of {prompt} tokens"),
                ));
            }
            if self.parts(row).any(|part| part.content >= OWN | u64::from(id)) {
                return Err(Error::trace(row, "its prompt begins with the own content of a later request"));
            }
            if !self.continues_all(row, workload) {
                let what = "its prompt continues the own content of another request without the beginning of that request's prompt";
                return Err(Error::trace(row, what));
            }
        }
        Ok(())
    }

    /// Whether the last own content of another request follows the complete beginning of that request. Checked for
    /// rows of this workload.
    fn continues_all(&self, row: usize, workload: &Workload) -> bool {
        let last = self.parts(row).enumerate().rev().find(|(_, part)| part.content >= OWN);
        let Some((at, part)) = last else { return true };
        let Some(other) = workload.row_of((part.content ^ OWN) as u32) else { return true };
        if at == 0 && self.after(row) == Some(other) {
            return true;
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        self.read(row, &mut own);
        self.read(other, &mut others);
        let count = self.parts(row).len();
        own.truncate(own.len() - count + at);
        own == others
    }
}

/// The beginnings of arriving requests, one at a time.
///
/// A row that continues another one extends the segments of that row if they are available, so each turn of a long
/// session costs only what it adds. Long segments of rows with further continuations are kept until all of these have
/// been read.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    segments: Vec<Segment>,
    /// The row of the segments, and the number of rows that have yet to continue it.
    of: (u32, u32),
    pending: HashMap<u32, (Vec<Segment>, u32)>,
}

/// Up to this number, segments are read again.
const FEW: usize = 16;

impl Beginning {
    /// Reads the beginning of a request of the workload.
    #[inline]
    pub(crate) fn read(&mut self, content: &Content, request: usize) {
        if !content.start.is_empty() {
            self.read_row(content, content.row(request));
        }
    }

    fn read_row(&mut self, content: &Content, row: usize) {
        self.keep();
        let previous = content.after(row).and_then(|after| self.take(after as u32));
        if let Some(before) = previous {
            self.segments = before;
            self.segments.extend(content.parts(row));
        } else {
            content.read(row, &mut self.segments);
        }
        self.of = (row as u32, content.continued.get(row).copied().unwrap_or(0));
    }

    /// Sets a beginning that belongs to no row of this workload.
    pub(crate) fn set(&mut self, segments: &[Segment]) {
        self.keep();
        self.of = (NO_ROW, 0);
        self.segments.clear();
        self.segments.extend_from_slice(segments);
    }

    /// Drops the kept rows, because rows are renumbered.
    pub(crate) fn forget(&mut self) {
        *self = Beginning::default();
    }

    /// Keeps the current segments if further rows continue them.
    fn keep(&mut self) {
        let (row, left) = self.of;
        if left > 0 && self.segments.len() >= FEW {
            self.pending.insert(row, (std::mem::take(&mut self.segments), left));
        }
    }

    /// Returns the segments of a kept row for one of its continuations.
    fn take(&mut self, row: u32) -> Option<Vec<Segment>> {
        let (segments, left) = self.pending.get_mut(&row)?;
        *left -= 1;
        if *left > 0 {
            return Some(segments.clone());
        }
        self.pending.remove(&row).map(|(segments, _)| segments)
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

    use super::super::tests::error_after;
    use super::*;

    #[test]
    fn a_prompt_continues_the_prompt_of_an_earlier_row() {
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
            (&[NO_ROW, 1][..], &[1, 1][..], "row 1, which is not an earlier row"),
            (&[1, NO_ROW], &[1, 1], "row 1, which is not an earlier row"),
            (&[NO_ROW, 9], &[1, 1], "row 9, which is not an earlier row"),
            (&[NO_ROW], &[1, 1], "have inconsistent lengths"),
            (&[NO_ROW, 0], &[2, 2], "4 tokens of shared content exceed the prompt of 3 tokens"),
        ] {
            let message = error_after(|workload| workload.content = Content { after, tokens, ..chain });
            assert!(message.contains(what), "{message}");
        }
    }

    /// A forest of rows that continue each other, with the number of segments that each row adds.
    fn forest() -> impl Strategy<Value = Vec<(Option<usize>, usize)>> {
        let row = |of: usize| (prop_oneof![Just(None), Just(Some(1)), (1..=of.max(1)).prop_map(Some)], 0_usize..12);
        prop::collection::vec((0_usize..40).prop_flat_map(row), 1..60)
    }

    proptest! {
        /// For any kept rows, with known or unknown numbers of continuations, in any order of arrival.
        #[test]
        fn reading_in_sequence_equals_reading_each_row(
            rows in forest(),
            arrives in prop::collection::vec(0_usize..60, 0..120),
            is_known in any::<bool>(),
        ) {
            let before = |row: usize| rows[row].0.and_then(|distance| row.checked_sub(distance));
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
    fn own_content_follows_a_single_chain() {
        let content = Content { start: &[0, 1, 3], id: &[7, 8, OWN], tokens: &[1, 1, 1], ..Content::default() };
        assert!(
            error_after(|workload| workload.content = content)
                .contains("without the beginning of that request's prompt")
        );
    }
}
