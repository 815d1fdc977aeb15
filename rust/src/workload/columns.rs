//! Workload rows that own their columns, for workloads that are processed in parts.

use super::{Accepted, Content, NO_ROW, Workload};
use crate::kv::Segment;

/// Workload rows that own their columns. As in [`Workload`], optional columns may be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    /// See [`Workload::arrival_s`].
    pub arrival_s: Vec<f64>,
    /// See [`Workload::prompt_tokens`].
    pub prompt_tokens: Vec<i32>,
    /// See [`Workload::output_tokens`].
    pub output_tokens: Vec<i32>,
    /// See [`Workload::class`].
    pub class: Vec<u32>,
    /// See [`Workload::priority`].
    pub priority: Vec<i64>,
    /// See [`Workload::max_output_tokens`].
    pub max_output_tokens: Vec<i32>,
    /// See [`Workload::patience_s`].
    pub patience_s: Vec<f64>,
    /// See [`Workload::cancel_s`].
    pub cancel_s: Vec<f64>,
    /// See [`Workload::itl_slo_s`].
    pub itl_slo_s: Vec<f64>,
    /// See [`Workload::queue_key`].
    pub queue_key: Vec<f64>,
    /// See [`Workload::session`].
    pub session: Vec<u32>,
    /// See [`Accepted`].
    pub accepted_start: Vec<u64>,
    /// See [`Accepted`].
    pub accepted_drafts: Vec<u16>,
    /// See [`Workload::proposal_rate`].
    pub proposal_rate: Vec<f64>,
    /// See [`Content`].
    pub content_after: Vec<u32>,
    /// See [`Content`].
    pub content_continued: Vec<u32>,
    /// See [`Content`].
    pub content_start: Vec<u64>,
    /// See [`Content`].
    pub content_id: Vec<u64>,
    /// See [`Content`].
    pub content_tokens: Vec<u32>,
}

impl Columns {
    /// Returns the rows from `start` on as a workload of `class_count` classes, in the first pool and without
    /// dependencies.
    pub fn view(&self, start: usize, class_count: usize) -> Workload<'_> {
        fn rest<T>(column: &[T], start: usize) -> &[T] {
            column.get(start..).unwrap_or_default()
        }
        Workload {
            arrival_s: rest(&self.arrival_s, start),
            prompt_tokens: rest(&self.prompt_tokens, start),
            output_tokens: rest(&self.output_tokens, start),
            class: rest(&self.class, start),
            class_count,
            priority: rest(&self.priority, start),
            max_output_tokens: rest(&self.max_output_tokens, start),
            patience_s: rest(&self.patience_s, start),
            cancel_s: rest(&self.cancel_s, start),
            itl_slo_s: rest(&self.itl_slo_s, start),
            queue_key: rest(&self.queue_key, start),
            session: rest(&self.session, start),
            accepted: Accepted { start: rest(&self.accepted_start, start), drafts: &self.accepted_drafts },
            proposal_rate: rest(&self.proposal_rate, start),
            content: Content { skipped: start, ..self.content() },
            ..Workload::default()
        }
    }

    /// Shared beginnings of the prompts of all rows.
    fn content(&self) -> Content<'_> {
        Content {
            after: &self.content_after,
            continued: &self.content_continued,
            start: &self.content_start,
            id: &self.content_id,
            tokens: &self.content_tokens,
            ..Content::default()
        }
    }

    /// Appends rows of a workload, without pools and dependencies.
    pub(crate) fn append(&mut self, workload: &Workload, rows: &[u32]) {
        fn put<T: Copy>(to: &mut Vec<T>, column: &[T], rows: &[u32]) {
            if !column.is_empty() {
                to.extend(rows.iter().map(|&row| column[row as usize]));
            }
        }
        put(&mut self.arrival_s, workload.arrival_s, rows);
        put(&mut self.prompt_tokens, workload.prompt_tokens, rows);
        put(&mut self.output_tokens, workload.output_tokens, rows);
        put(&mut self.class, workload.class, rows);
        put(&mut self.priority, workload.priority, rows);
        put(&mut self.max_output_tokens, workload.max_output_tokens, rows);
        put(&mut self.patience_s, workload.patience_s, rows);
        put(&mut self.cancel_s, workload.cancel_s, rows);
        put(&mut self.itl_slo_s, workload.itl_slo_s, rows);
        put(&mut self.queue_key, workload.queue_key, rows);
        put(&mut self.session, workload.session, rows);
        put(&mut self.proposal_rate, workload.proposal_rate, rows);
        if !workload.accepted.is_empty() {
            if self.accepted_start.is_empty() {
                self.accepted_start.push(0);
            }
            for &row in rows {
                self.accepted_drafts.extend(workload.accepted.of(row as usize));
                self.accepted_start.push(self.accepted_drafts.len() as u64);
            }
        }
        if !workload.content.start.is_empty() {
            self.append_content(&workload.content, rows);
        }
    }

    /// Appends the beginnings of the prompts of these rows, in order. A row that continues another one continues the
    /// latest such row among these rows.
    fn append_content(&mut self, content: &Content, rows: &[u32]) {
        if self.content_start.is_empty() {
            self.content_start.push(0);
        }
        let before = self.content_start.len() - 1;
        let is_linked = !content.after.is_empty();
        if is_linked {
            self.content_after.resize(before, NO_ROW);
            self.content_continued.resize(before, 0);
        }
        let mut segments = Vec::new();
        for (place, &row) in rows.iter().enumerate() {
            let mut after = None;
            let mut next = Some(row as usize);
            while let Some(row) = next.filter(|_| after.is_none()) {
                segments.extend(content.parts(row).rev());
                next = content.after(row);
                after = next.and_then(|earlier| rows[..place].binary_search(&(earlier as u32)).ok());
            }
            for Segment { content, tokens } in segments.drain(..).rev() {
                self.content_id.push(content);
                self.content_tokens.push(tokens);
            }
            self.content_start.push(self.content_id.len() as u64);
            if let Some(earlier) = after {
                self.content_continued[before + earlier] += 1;
            }
            if is_linked {
                self.content_after.push(after.map_or(NO_ROW, |earlier| (before + earlier) as u32));
                self.content_continued.push(0);
            }
        }
    }

    /// Removes the first rows.
    pub(crate) fn forget(&mut self, rows: usize) {
        fn cut<T>(column: &mut Vec<T>, rows: usize) {
            column.drain(..rows.min(column.len()));
        }
        cut(&mut self.arrival_s, rows);
        cut(&mut self.prompt_tokens, rows);
        cut(&mut self.output_tokens, rows);
        cut(&mut self.class, rows);
        cut(&mut self.priority, rows);
        cut(&mut self.max_output_tokens, rows);
        cut(&mut self.patience_s, rows);
        cut(&mut self.cancel_s, rows);
        cut(&mut self.itl_slo_s, rows);
        cut(&mut self.queue_key, rows);
        cut(&mut self.session, rows);
        cut(&mut self.proposal_rate, rows);
        if let Some(&first) = self.accepted_start.get(rows) {
            cut(&mut self.accepted_start, rows);
            cut(&mut self.accepted_drafts, first as usize);
            self.accepted_start.iter_mut().for_each(|start| *start -= first);
        }
        if !self.content_after.is_empty() {
            let rows: Vec<u32> = (rows as u32..self.content_start.len() as u32 - 1).collect();
            let mut stay = Columns::default();
            stay.append_content(&self.content(), &rows);
            self.content_after = stay.content_after;
            self.content_continued = stay.content_continued;
            self.content_start = stay.content_start;
            self.content_id = stay.content_id;
            self.content_tokens = stay.content_tokens;
        } else if let Some(&first) = self.content_start.get(rows) {
            cut(&mut self.content_start, rows);
            cut(&mut self.content_id, first as usize);
            cut(&mut self.content_tokens, first as usize);
            self.content_start.iter_mut().for_each(|start| *start -= first);
        }
    }
}
