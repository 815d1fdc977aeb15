//! A checksum of all results of a run.

use inferq_core::clock::Span;
use inferq_core::results::{
    BatchRow, BlockOperations, Column, FleetEvent, Histogram, IterationRow, NamedColumn, Results, Sample, Totals,
};
use inferq_core::workload::Workload;

/// Columns that exist only in runs with hand-offs.
const HAND_OFF: [&str; 3] = ["prefill_replica", "prefilled_s", "handoff_s"];

/// Columns that exist only in runs where requests wait for other requests.
const ELAPSED: [&str; 1] = ["elapsed_s"];

/// FNV-1a, 64 bits: identical on every platform.
struct Checksum(u64);

impl Checksum {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn whole(&mut self, number: impl Into<u128>) {
        self.bytes(&number.into().to_le_bytes());
    }

    /// Adds the bits of a number. All NaNs are equal.
    fn float(&mut self, number: f64) {
        let bits = if number.is_nan() { f64::NAN.to_bits() } else { number.to_bits() };
        self.bytes(&bits.to_le_bytes());
    }

    fn column(&mut self, column: &Column) {
        match column {
            Column::U8(cells) => self.all(cells, |sum, &cell| sum.whole(cell)),
            Column::U32(cells) => self.all(cells, |sum, &cell| sum.whole(cell)),
            Column::I32(cells) => self.all(cells, |sum, &cell| sum.bytes(&cell.to_le_bytes())),
            Column::I64(cells) => self.all(cells, |sum, &cell| sum.bytes(&cell.to_le_bytes())),
            Column::F64(cells) => self.all(cells, |sum, &cell| sum.float(cell)),
        }
    }

    /// Adds the number of items, then each item.
    fn all<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Checksum, &T)) {
        self.whole(items.len() as u64);
        items.iter().for_each(|item| each(self, item));
    }

    /// Optional columns are added first.
    fn requests(&mut self, columns: &[NamedColumn]) {
        for names in [&HAND_OFF[..], &ELAPSED] {
            let some: Vec<&NamedColumn> = columns.iter().filter(|column| names.contains(&column.name)).collect();
            self.whole(!some.is_empty());
            some.into_iter().for_each(|named| self.column(&named.column));
        }
        let of_every_run = |named: &&NamedColumn| !HAND_OFF.contains(&named.name) && !ELAPSED.contains(&named.name);
        columns.iter().filter(of_every_run).for_each(|named| self.column(&named.column));
    }

    fn histogram(&mut self, histogram: &Histogram) {
        self.whole(histogram.count());
        self.whole(histogram.sum());
        self.span(histogram.longest());
        for (lower, upper, count) in histogram.bins() {
            self.span(lower);
            self.span(upper);
            self.whole(count);
        }
    }

    fn span(&mut self, span: Span) {
        self.whole(span.0);
    }

    fn sample(&mut self, sample: &Sample) {
        let Sample {
            at,
            replica,
            waiting,
            running,
            kv_used_tokens,
            prefilled_tokens,
            emitted_tokens,
            cached_tokens,
            tokens_in_system: _,
        } = *sample;
        self.whole(at.0);
        self.whole(replica);
        let tokens = [waiting, running, kv_used_tokens, prefilled_tokens, emitted_tokens, cached_tokens];
        tokens.into_iter().for_each(|number| self.whole(number));
    }

    /// The remaining validity of a pace belongs to the timing model, not to the results, and is left out.
    fn iteration(&mut self, row: &IterationRow) {
        let IterationRow { start, replica, count, pace, prefill_tokens, decodes, context_tokens, kv_used_tokens } =
            *row;
        self.whole(start.0);
        self.whole(replica);
        self.span(pace.first);
        self.bytes(&pace.growth.to_le_bytes());
        self.whole(context_tokens);
        [count, prefill_tokens, decodes, kv_used_tokens].into_iter().for_each(|number| self.whole(number));
    }

    fn batch_row(&mut self, row: &BatchRow) {
        let BatchRow { iteration, request, tokens, emits, emitted: _ } = *row;
        self.whole(iteration);
        self.whole(request);
        self.whole(tokens);
        self.whole(emits);
    }

    fn block_operations(&mut self, operations: &BlockOperations) {
        let BlockOperations { replica, hit, inserted, evicted } = *operations;
        self.whole(replica);
        [hit, inserted, evicted].into_iter().for_each(|blocks| self.whole(blocks));
    }

    /// The number of stretches is a cost and is reported separately, so it is left out.
    fn totals(&mut self, totals: &Totals) {
        let Totals {
            end,
            iterations,
            stretches: _,
            stretched_iterations: _,
            in_system,
            sojourn,
            by_status,
            replica_time: _,
        } = *totals;
        self.whole(end.0);
        self.whole(iterations);
        self.whole(in_system);
        self.whole(sojourn);
        let [finished, rejected, abandoned, unfinished, _lost] = by_status;
        [finished, rejected, abandoned, unfinished].into_iter().for_each(|requests| self.whole(requests));
    }

    /// Added only in runs with autoscaling or failures, so that the checksums of other runs stay the same.
    fn fleet_event(&mut self, event: &FleetEvent, totals: &Totals) {
        let FleetEvent { at, replica, change, open, starting, draining } = *event;
        self.whole(at.0);
        [replica, change as u32, open, starting, draining].into_iter().for_each(|number| self.whole(number));
        self.whole(totals.by_status[4]);
        self.whole(totals.replica_time);
    }
}

/// Checksum of all results. The destructuring fails to compile when `Results` gets a new field.
pub(crate) fn of(results: Results, workload: &Workload) -> u64 {
    let Results {
        requests,
        itl,
        timeline,
        iterations,
        batches,
        work,
        block_operations,
        fleet_events,
        drained,
        findings,
        totals,
    } = results;
    let mut sum = Checksum(0xcbf2_9ce4_8422_2325);
    sum.requests(&requests.named_columns(&[], workload, None));
    sum.all(&itl, Checksum::histogram);
    sum.all(&timeline, Checksum::sample);
    sum.all(&iterations, Checksum::iteration);
    sum.all(&batches, Checksum::batch_row);
    for (tokens, load) in work.loads() {
        let numbers = [tokens, load.iterations, load.broken, load.cap, load.memory];
        numbers.into_iter().for_each(|number| sum.whole(number));
    }
    sum.all(&block_operations, Checksum::block_operations);
    sum.all(&drained, |sum, &id| sum.whole(id));
    sum.all(&findings, |sum, finding| sum.bytes(format!("{:?}", (finding.kind, &finding.data)).as_bytes()));
    sum.totals(&totals);
    fleet_events.iter().for_each(|event| sum.fleet_event(event, &totals));
    sum.0
}
