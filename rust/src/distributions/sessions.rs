//! Closed-loop sessions: the lengths and earliest arrivals of their turns.
//!
//! A turn after the first is sent after the previous answer plus the think time, so its arrival is known only in the
//! run. Here it has a *nominal* arrival, the earliest possible one: the session's start plus the think times so far,
//! as if every answer were immediate. Turn t of session s uses the draws of request t in stream s + 1 of each source,
//! so it does not depend on the number of sessions or on the turns of other sessions.

use super::{Arrivals, Duration, LONGEST, Length, MAX_REQUESTS, column};
use crate::error::{Error, Kind, Result};
use crate::random::{Source, Stream};
use serde::Deserialize;

/// Conversations with think time between turns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sessions {
    /// Number of sessions.
    pub sessions: u64,
    /// Arrivals of the first turns.
    pub arrivals: Arrivals,
    /// Number of turns per session.
    pub turns: Length,
    /// Tokens that the user adds in each turn.
    pub prompt: Length,
    /// Tokens of each answer.
    pub output: Length,
    /// Think time between an answer and the next turn.
    pub think: Duration,
    /// Whether a prompt includes all previous prompts and answers.
    pub grows: bool,
    /// Maximum tokens of a prompt and its answer; beyond it the oldest tokens of a conversation are dropped.
    pub max_context: Option<i64>,
}

/// All turns of all sessions, sorted by nominal arrival, session and turn.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SessionColumns {
    /// Nominal arrival, in nanoseconds after 0.
    pub arrival_ns: Vec<i64>,
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<i32>,
    /// Tokens of the output.
    pub output_tokens: Vec<i32>,
    /// Session, from 0.
    pub session: Vec<u32>,
    /// Turn of the session, from 0.
    pub turn: Vec<i32>,
    /// Think time between the previous answer and this turn, in nanoseconds; 0 for first turns.
    pub think_ns: Vec<i64>,
}

impl Sessions {
    /// Returns an error that names the invalid parameter, if any.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_REQUESTS).contains(&self.sessions) {
            return Err(Error::config("sessions", format!("must be from 1 to {MAX_REQUESTS}, got {}", self.sessions)));
        }
        self.arrivals.check().map_err(|error| error.within("arrivals"))?;
        for (name, length) in [("turns", &self.turns), ("prompt", &self.prompt), ("output", &self.output)] {
            length.check().map_err(|error| error.within(name))?;
        }
        self.think.check().map_err(|error| error.within("think"))?;
        match self.max_context {
            Some(_) if !self.grows => {
                Err(Error::config("max_context", "has no effect unless prompts grow: set grows, or omit it"))
            }
            Some(tokens) if !(2..=LONGEST).contains(&tokens) => {
                Err(Error::config("max_context", format!("must be from 2 to {LONGEST} tokens, got {tokens}")))
            }
            _ => Ok(()),
        }
    }

    /// Draws all turns.
    pub fn draw(&self, seed: u64) -> Result<SessionColumns> {
        self.check()?;
        let starts = self.arrivals.draw(self.sessions, seed).map_err(|error| error.within("arrivals"))?;
        let turns = self.turns.draw_from(Stream::new(seed, Source::Turns), self.sessions);
        let turns = turns.map_err(|error| error.within("turns"))?;
        let rows: u64 = turns.iter().map(|&turns| u64::from(turns.unsigned_abs())).sum();
        if rows > MAX_REQUESTS {
            return Err(Kind::TooMuch(format!("the sessions have {rows} turns, the maximum is {MAX_REQUESTS}")).into());
        }
        let mut drawn = SessionColumns {
            arrival_ns: column(rows)?,
            prompt_tokens: column(rows)?,
            output_tokens: column(rows)?,
            session: column(rows)?,
            turn: column(rows)?,
            think_ns: column(rows)?,
        };
        for (session, (&start_ns, &turns)) in (0_u32..).zip(starts.iter().zip(&turns)) {
            self.append(seed, session, start_ns, turns, &mut drawn)?;
        }
        drawn.sorted()
    }

    fn append(&self, seed: u64, session: u32, start_ns: i64, turns: i32, drawn: &mut SessionColumns) -> Result<()> {
        let first = drawn.arrival_ns.len();
        let requests = u64::from(turns.unsigned_abs());
        let stream = |source| Stream::numbered(seed, source, u64::from(session) + 1);
        self.prompt
            .append(stream(Source::Prompt), requests, &mut drawn.prompt_tokens)
            .map_err(|error| error.within("prompt"))?;
        self.output
            .append(stream(Source::Output), requests, &mut drawn.output_tokens)
            .map_err(|error| error.within("output"))?;
        self.think
            .append(stream(Source::Think), requests, &mut drawn.think_ns)
            .map_err(|error| error.within("think"))?;
        drawn.think_ns[first] = 0;
        let (mut now, mut history) = (start_ns, 0);
        for turn in 0..turns {
            let row = first + turn as usize;
            now = now.saturating_add(drawn.think_ns[row]);
            drawn.arrival_ns.push(now);
            drawn.session.push(session);
            drawn.turn.push(turn);
            if self.grows {
                let (added, output) = (i64::from(drawn.prompt_tokens[row]), i64::from(drawn.output_tokens[row]));
                let prompt = self.grown(history, added, output).ok_or_else(|| self.too_long(session, turn))?;
                drawn.prompt_tokens[row] = prompt as i32;
                history = prompt + output;
            }
        }
        Ok(())
    }

    /// Returns the prompt of a turn that adds `added` tokens to `history` and is answered by `output`. Returns `None`
    /// if it is too long even without history, or if the conversation is too long and no limit is set.
    fn grown(&self, history: i64, added: i64, output: i64) -> Option<i64> {
        let whole = history + added;
        match self.max_context {
            None => (whole + output <= LONGEST).then_some(whole),
            Some(limit) => (added + output <= limit).then_some(whole.min(limit - output)),
        }
    }

    fn too_long(&self, session: u32, turn: i32) -> Error {
        let message = match self.max_context {
            Some(limit) => format!(
                "is {limit} tokens, less than the prompt and answer of turn {turn} of session {session}: cap \
                 the distributions of prompt and output"
            ),
            None => {
                format!("must be set: at turn {turn} session {session} exceeds the maximum length of {LONGEST} tokens")
            }
        };
        Error::config("max_context", message)
    }
}

impl SessionColumns {
    /// Sorts turns by nominal arrival, session and turn. An arrival beyond the limit of runs is an error.
    fn sorted(self) -> Result<SessionColumns> {
        let rows = self.arrival_ns.len();
        let mut order: Vec<u32> = column(rows as u64)?;
        order.extend(0..rows as u32);
        // Rows are in order of session and turn, so a stable sort by arrival yields the required order.
        order.sort_by_key(|&row| self.arrival_ns[row as usize]);
        let last = order.last().map_or(0, |&row| self.arrival_ns[row as usize]);
        if last >= super::arrivals::END_NS {
            return Err(Error::config(
                "think",
                "is too long: a turn would arrive after 9e9 s (285 years) at the earliest",
            ));
        }
        Ok(SessionColumns {
            arrival_ns: gathered(&self.arrival_ns, &order)?,
            prompt_tokens: gathered(&self.prompt_tokens, &order)?,
            output_tokens: gathered(&self.output_tokens, &order)?,
            session: gathered(&self.session, &order)?,
            turn: gathered(&self.turn, &order)?,
            think_ns: gathered(&self.think_ns, &order)?,
        })
    }
}

fn gathered<T: Copy>(values: &[T], order: &[u32]) -> Result<Vec<T>> {
    let mut sorted = column(order.len() as u64)?;
    sorted.extend(order.iter().map(|&row| values[row as usize]));
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(sessions: u64) -> Sessions {
        Sessions {
            sessions,
            arrivals: Arrivals::Poisson { rate: 2.0 },
            turns: Length::Geometric { mean: 3.0, cap: None },
            prompt: Length::Uniform { low: 1, high: 50 },
            output: Length::Geometric { mean: 20.0, cap: None },
            think: Duration::Exponential { mean_s: 4.0 },
            grows: true,
            max_context: None,
        }
    }

    /// Returns the rows of each session in order of turns.
    fn by_session(drawn: &SessionColumns) -> Vec<Vec<usize>> {
        let sessions = drawn.session.iter().max().map_or(0, |&last| last as usize + 1);
        let mut rows = vec![Vec::new(); sessions];
        (0..drawn.session.len()).for_each(|row| rows[drawn.session[row] as usize].push(row));
        rows
    }

    #[test]
    fn a_growing_prompt_includes_the_conversation_so_far() {
        let grown = chat(300).draw(8).expect("sessions");
        let plain = Sessions { grows: false, ..chat(300) }.draw(8).expect("sessions");
        assert_eq!((&grown.arrival_ns, &grown.output_tokens), (&plain.arrival_ns, &plain.output_tokens));
        for rows in by_session(&grown) {
            let mut history = 0;
            for row in rows {
                assert_eq!(grown.prompt_tokens[row], history + plain.prompt_tokens[row]);
                history = grown.prompt_tokens[row] + grown.output_tokens[row];
            }
        }
    }

    #[test]
    fn too_many_or_too_long_sessions_are_named() {
        let cases = [
            (Sessions { turns: Length::Fixed { tokens: 1 << 30 }, ..chat(9) }, "the sessions have 9663676416 turns"),
            (
                Sessions { turns: Length::Fixed { tokens: 30 }, think: Duration::Fixed { seconds: 1e9 }, ..chat(1) },
                "think: is too long",
            ),
        ];
        for (sessions, expected) in cases {
            let error = sessions.draw(1).expect_err("bad sessions").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
