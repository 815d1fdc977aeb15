//! Shared parts of the fuzz targets: workloads and engines small enough for a thousand runs per second.

use arbitrary::Arbitrary;
use inferq_core::engine::EngineParts;
use inferq_core::error::Result;
use inferq_core::results::{RequestColumns, Results};
use inferq_core::simulation::{Options, simulate};
use inferq_core::workload::Workload;

/// A request of a valid workload.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Row {
    /// Tens of microseconds since the previous request.
    pub gap: u8,
    /// Prompt tokens minus one.
    pub prompt: u8,
    /// Output tokens minus one.
    pub output: u8,
    /// Its class, its priority and its session.
    pub marks: u8,
}

/// The columns of a valid workload with two classes.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    arrival_s: Vec<f64>,
    prompt_tokens: Vec<i32>,
    output_tokens: Vec<i32>,
    class: Vec<u32>,
    priority: Vec<i64>,
    session: Vec<u32>,
}

impl Columns {
    /// Builds the columns of these rows.
    pub fn of(rows: &[Row]) -> Columns {
        let mut columns = Columns::default();
        let mut tens = 0_u64;
        for row in rows.iter().take(24) {
            tens += u64::from(row.gap);
            columns.arrival_s.push(tens as f64 / 1e5);
            columns.prompt_tokens.push(i32::from(row.prompt) + 1);
            columns.output_tokens.push(i32::from(row.output) + 1);
            columns.class.push(u32::from(row.marks & 1));
            columns.priority.push(i64::from(row.marks >> 1 & 3));
            columns.session.push(u32::from(row.marks >> 3 & 3));
        }
        columns
    }

    /// The workload.
    pub fn view(&self) -> Workload<'_> {
        Workload {
            arrival_s: &self.arrival_s,
            prompt_tokens: &self.prompt_tokens,
            output_tokens: &self.output_tokens,
            class: &self.class,
            class_count: 2,
            priority: &self.priority,
            session: &self.session,
            ..Workload::default()
        }
    }
}

/// The names of the classes.
pub fn classes() -> Vec<inferq_core::workload::Class> {
    vec!["a".into(), "b".into()]
}

/// Runs one replica and builds all columns.
pub fn run(workload: &Workload, engine: EngineParts, stepping: bool) -> Result<Results<RequestColumns>> {
    let options = Options { iterations: true, batches: true, stepping, ..Options::all(workload) };
    Ok(simulate(workload, engine, &options, &mut ())?.with_columns(workload))
}
