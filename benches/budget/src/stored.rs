//! Stored requests and the code that drew them.
//!
//! A file in `requests/` holds columns of integers, one column after another, four bytes per number, little-endian.
//! Requests are stored so that a change of a distribution or of seeding does not change what is measured.

use std::error::Error;
use std::path::Path;

use inferq_core::distributions::{Arrivals, Duration, Length, Lengths, Sessions, Synthetic};
use inferq_core::kv::Segment;
use inferq_core::workload::{Columns, Flow, NO_SESSION, Workload};

/// Gaps between two arrivals of a Poisson process, in millionths of the mean gap.
const GAPS: (&[u8], usize) = (include_bytes!("../requests/gaps.u32"), 1);
/// Prompt and output tokens of W1, W3 and W4 in `benches/README.md`.
const W1: (&[u8], usize) = (include_bytes!("../requests/w1.u32"), 2);
const W3: (&[u8], usize) = (include_bytes!("../requests/w3.u32"), 2);
const W4: (&[u8], usize) = (include_bytes!("../requests/w4.u32"), 2);
/// Number and tokens of the instructions at the start of the prompt, number and tokens of the document that follows,
/// tokens unique to the request, output tokens. The same number always has the same tokens.
const PREFIXES: (&[u8], usize) = (include_bytes!("../requests/prefixes.u32"), 6);
/// Microseconds since the previous row, think time in microseconds, row of the previous turn plus 1 (0: none), prompt
/// tokens including all previous turns, output tokens.
const SESSIONS: (&[u8], usize) = (include_bytes!("../requests/sessions.u32"), 5);
/// The same columns for conversations of eight turns.
const CONVERSATIONS: (&[u8], usize) = (include_bytes!("../requests/conversations.u32"), 5);
/// Prompt and output tokens of the first 4,000 rows of `AzureLLMInferenceTrace_conv.csv` of 2023
/// (Azure Public Dataset, CC-BY 4.0).
const AZURE: (&[u8], usize) = (include_bytes!("../requests/azure.u32"), 2);

/// Stored request sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Chat.
    W1,
    /// W1 with deadlines: every twentieth request requires a token each 0.1 s, all other requests each 0.5 s.
    W1WithDeadlines,
    /// Reasoning.
    W3,
    /// Long prompts.
    W4,
    /// Prompts with few instructions, many documents and a question.
    Prefixes,
    /// Closed-loop conversations with growing prompts.
    Sessions,
    /// Closed-loop conversations of eight turns with growing prompts.
    Conversations,
    /// Lengths of a recorded chat service.
    Azure,
}

/// A workload that owns its columns, and the rows that each row waits for.
pub(crate) struct Drawn {
    columns: Columns,
    parents: Vec<u32>,
    children_start: Vec<u32>,
    children: Vec<u32>,
    delay_s: Vec<f64>,
}

impl Drawn {
    /// The first `count` requests at a rate, repeated from the first when more requests are needed than are stored.
    /// Sessions are used completely and sped up to the rate.
    pub(crate) fn new(requests: Requests, count: usize, rate_per_s: f64) -> Drawn {
        let mut drawn = Drawn {
            columns: Columns::default(),
            parents: Vec::new(),
            children_start: Vec::new(),
            children: Vec::new(),
            delay_s: Vec::new(),
        };
        match requests {
            Requests::W1 => drawn.lengths(W1, count),
            Requests::W1WithDeadlines => {
                drawn.lengths(W1, count);
                drawn.columns.itl_slo_s = (0..count).map(|row| if row % 20 == 0 { 0.1 } else { 0.5 }).collect();
            }
            Requests::W3 => drawn.lengths(W3, count),
            Requests::W4 => drawn.lengths(W4, count),
            Requests::Prefixes => drawn.prefixes(count),
            Requests::Sessions => drawn.sessions(SESSIONS),
            Requests::Conversations => drawn.sessions(CONVERSATIONS),
            Requests::Azure => drawn.lengths(AZURE, count),
        }
        let gaps = match requests {
            Requests::Sessions => column(SESSIONS, 0),
            Requests::Conversations => column(CONVERSATIONS, 0),
            _ => column(GAPS, 0),
        };
        let mut millionths = 0_u64;
        for row in 0..drawn.columns.prompt_tokens.len() {
            millionths += u64::from(gaps[row % gaps.len()]);
            drawn.columns.arrival_s.push(millionths as f64 / 1e6 / rate_per_s);
        }
        drawn
    }

    /// All requests at time 0, without dependencies.
    pub(crate) fn at_once(mut self) -> Drawn {
        self.columns.arrival_s.fill(0.0);
        self
    }

    pub(crate) fn view(&self) -> Workload<'_> {
        let flow = Flow {
            parents: &self.parents,
            children_start: &self.children_start,
            children: &self.children,
            delay_s: &self.delay_s,
        };
        Workload { flow, ..self.columns.view(0, 1) }
    }

    fn lengths(&mut self, file: (&[u8], usize), count: usize) {
        let of = |place| column(file, place).into_iter().map(|tokens| tokens as i32).cycle().take(count).collect();
        (self.columns.prompt_tokens, self.columns.output_tokens) = (of(0), of(1));
    }

    fn prefixes(&mut self, count: usize) {
        let file: Vec<Vec<u32>> = (0..PREFIXES.1).map(|place| column(PREFIXES, place)).collect();
        let columns = &mut self.columns;
        columns.content_start.push(0);
        for row in 0..count {
            let cell = |place: usize| file[place][row % file[place].len()];
            let contents = [(cell(0), cell(1)), (1000 + cell(2), cell(3))];
            columns.content_id.extend(contents.map(|(content, _)| u64::from(content)));
            columns.content_tokens.extend(contents.map(|(_, tokens)| tokens));
            columns.content_start.push(columns.content_id.len() as u64);
            columns.prompt_tokens.push((cell(1) + cell(3) + cell(4)) as i32);
            columns.output_tokens.push(cell(5) as i32);
        }
    }

    fn sessions(&mut self, file: (&[u8], usize)) {
        let file: Vec<Vec<u32>> = (0..file.1).map(|place| column(file, place)).collect();
        let rows = file[0].len();
        let before = |row: usize| file[2][row].checked_sub(1).map(|row| row as usize);
        let tokens = |place: usize| file[place].iter().map(|&tokens| tokens as i32).collect();
        (self.columns.prompt_tokens, self.columns.output_tokens) = (tokens(3), tokens(4));
        self.delay_s = file[1].iter().map(|&microseconds| f64::from(microseconds) / 1e6).collect();
        self.parents = (0..rows).map(|row| u32::from(before(row).is_some())).collect();
        let mut children = vec![Vec::new(); rows];
        (0..rows)
            .filter_map(|row| Some((before(row)?, row as u32)))
            .for_each(|(parent, row)| children[parent].push(row));
        self.children_start.push(0);
        for mut of_row in children {
            self.children.append(&mut of_row);
            self.children_start.push(self.children.len() as u32);
        }
        // A prompt begins with the prompt and the answer of the previous turn.
        let mut segments: Vec<Vec<Segment>> = Vec::new();
        for row in 0..rows {
            let mut of_row = Vec::new();
            if let Some(parent) = before(row) {
                of_row.clone_from(&segments[parent]);
                let shared: u32 = of_row.iter().map(|segment| segment.tokens).sum();
                let content = (1 << 63) | parent as u64;
                of_row.push(Segment { content, tokens: file[3][parent] + file[4][parent] - shared });
            }
            segments.push(of_row);
        }
        let columns = &mut self.columns;
        columns.content_start.push(0);
        for segment in &segments {
            columns.content_id.extend(segment.iter().map(|segment| segment.content));
            columns.content_tokens.extend(segment.iter().map(|segment| segment.tokens));
            columns.content_start.push(columns.content_id.len() as u64);
        }
        let mut sessions = 0;
        for row in 0..rows {
            let session = before(row).map_or(NO_SESSION, |parent| columns.session[parent]);
            columns.session.push(if session == NO_SESSION { sessions } else { session });
            sessions += u32::from(session == NO_SESSION);
        }
    }
}

/// Returns column `place` of a file with `columns` columns.
fn column((file, columns): (&[u8], usize), place: usize) -> Vec<u32> {
    let (numbers, _) = file.as_chunks::<4>();
    let rows = numbers.len() / columns;
    numbers[place * rows..(place + 1) * rows].iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
}

const SEED: u64 = 1;

/// Draws all files again, except for `azure.u32`, which is recorded. This changes all measured figures.
pub(crate) fn draw(folder: &Path) -> Result<(), Box<dyn Error>> {
    let lognormal = |mean, median, cap| Length::Lognormal { mean, median, cap: Some(cap) };
    let lengths = |requests, prompt, output| {
        let lengths = Lengths::Independent { prompt, output };
        Synthetic { requests, arrivals: Arrivals::Poisson { rate: 1.0 }, lengths }.draw(SEED)
    };
    let w1 = lengths(16_000, lognormal(230.0, 90.0, 4096), lognormal(250.0, 150.0, 4096))?;
    let w3 = lengths(4_000, lognormal(500.0, 350.0, 8192), lognormal(4000.0, 3000.0, 32_000))?;
    let w4 = lengths(4_000, Length::LogUniform { low: 10_000, high: 100_000 }, lognormal(100.0, 80.0, 1000))?;
    // Millionths of a second at one request a second.
    write(folder, "gaps", &[gaps(&w1.arrival_ns)])?;
    for (name, drawn) in [("w1", &w1), ("w3", &w3), ("w4", &w4)] {
        write(folder, name, &[whole(&drawn.prompt_tokens), whole(&drawn.output_tokens)])?;
    }

    // Few instructions that are used often, and many documents that are used seldom.
    let chosen = lengths(3_000, Length::LogUniform { low: 1, high: 30 }, Length::LogUniform { low: 1, high: 400 })?;
    let questions = lengths(3_000, lognormal(120.0, 60.0, 2000), lognormal(150.0, 100.0, 1000))?;
    let sizes = lengths(400, Length::LogUniform { low: 50, high: 1500 }, Length::LogUniform { low: 200, high: 6000 })?;
    let of_number = |numbers: &[i32], sizes: &[i32]| -> Vec<i32> {
        numbers.iter().map(|&number| sizes[number as usize - 1]).collect()
    };
    let prefixes = [
        &chosen.prompt_tokens,
        &of_number(&chosen.prompt_tokens, &sizes.prompt_tokens),
        &chosen.output_tokens,
        &of_number(&chosen.output_tokens, &sizes.output_tokens),
        &questions.prompt_tokens,
        &questions.output_tokens,
    ];
    write(folder, "prefixes", &prefixes.map(|column| whole(column)))?;

    let sessions = Sessions {
        sessions: 800,
        arrivals: Arrivals::Poisson { rate: 2.6 },
        turns: Length::Geometric { mean: 4.0, cap: Some(12) },
        prompt: lognormal(100.0, 60.0, 1000),
        output: lognormal(250.0, 150.0, 2000),
        think: Duration::Exponential { mean_s: 10.0 },
        grows: true,
        max_context: None,
    };
    let eight_turns = Length::Fixed { tokens: 8 };
    let conversations = Sessions { sessions: 500, turns: eight_turns, ..sessions.clone() };
    write(folder, "sessions", &turns(&sessions)?)?;
    write(folder, "conversations", &turns(&conversations)?)
}

/// Returns the columns of [`SESSIONS`].
fn turns(sessions: &Sessions) -> Result<[Vec<u32>; 5], Box<dyn Error>> {
    let drawn = sessions.draw(SEED)?;
    let mut last = vec![0; sessions.sessions as usize];
    let before =
        drawn.session.iter().zip(1..).map(|(&session, row)| std::mem::replace(&mut last[session as usize], row));
    Ok([
        gaps(&drawn.arrival_ns),
        drawn.think_ns.iter().map(|&think_ns| (think_ns / 1000) as u32).collect(),
        before.collect(),
        whole(&drawn.prompt_tokens),
        whole(&drawn.output_tokens),
    ])
}

/// Returns the microseconds from each arrival to the next.
fn gaps(arrival_ns: &[i64]) -> Vec<u32> {
    let microseconds = |arrival_ns: &i64| arrival_ns / 1000;
    let before = std::iter::once(0).chain(arrival_ns.iter().map(microseconds));
    arrival_ns.iter().map(microseconds).zip(before).map(|(this, before)| (this - before) as u32).collect()
}

fn whole(numbers: &[i32]) -> Vec<u32> {
    numbers.iter().map(|&number| number as u32).collect()
}

fn write(folder: &Path, name: &str, columns: &[Vec<u32>]) -> Result<(), Box<dyn Error>> {
    let bytes: Vec<u8> = columns.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    Ok(std::fs::write(folder.join(format!("{name}.u32")), bytes)?)
}
