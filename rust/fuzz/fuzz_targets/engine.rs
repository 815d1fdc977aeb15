//! Arbitrary text as the description of an engine: it is rejected, or it runs.

#![no_main]

use inferq_core::engine::{Engine, parse};
use inferq_fuzz::{Columns, Row, classes, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(engine) = parse::<Engine>(text).and_then(|engine| engine.build(Some(&classes()))) else { return };
    let rows: Vec<Row> =
        (0..12_u8).map(|row| Row { gap: row % 3, prompt: 17 * row, output: 5 * row, marks: row }).collect();
    let columns = Columns::of(&rows);
    if let Ok(results) = run(&columns.view(), engine, false) {
        assert_eq!(results.totals.in_system, results.totals.sojourn, "Little's law");
    }
});
