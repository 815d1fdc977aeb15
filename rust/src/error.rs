//! Errors: what is wrong, and where.

/// The result of a call that bad input can stop.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, boxed so that results stay small on the success path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Kind>);

/// The kinds of errors. Each has the cause and the location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kind {
    /// An invalid description.
    #[error("{path}{}{message}", if path.is_empty() { "" } else { ": " })]
    Config {
        /// Path of the field, from the outside in: `scheduler.token_budget`.
        path: String,
        /// What is wrong with the field.
        message: String,
    },
    /// An invalid request; `row` counts from 0.
    #[error("row {row}: {message}")]
    Trace {
        /// The row of the workload.
        row: usize,
        /// What is wrong with the row.
        message: String,
    },
    /// A scheduler violated a rule.
    #[error("the scheduler violated a rule at {at_s} s: {rule} ({what})")]
    Rule {
        /// The instant of the plan in seconds.
        at_s: String,
        /// The rule, in words.
        rule: &'static str,
        /// The request or the amount.
        what: String,
    },
    /// A router returned an invalid replica.
    #[error("the router violated a rule at {at_s} s: it must return an integer from 0 to {} for request {request}, got {answer}", replicas - 1)]
    Route {
        /// The instant of the arrival in seconds.
        at_s: String,
        /// The request.
        request: u32,
        /// The returned value.
        answer: String,
        /// Number of replicas.
        replicas: usize,
    },
    /// A number does not fit 128 bits.
    #[error("{0} does not fit 128 bits")]
    Overflow(&'static str),
    /// A batch without duration, which would stop the clock forever.
    #[error("an iteration must not have length 0: the timing model returned 0 for the batch at {0} s")]
    EmptyIteration(String),
    /// More rows than fit into memory.
    #[error("{0}")]
    TooMuch(String),
    /// The caller stopped the run.
    #[error("the run was stopped")]
    Stopped,
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error(Box::new(kind))
    }
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> &Kind {
        &self.0
    }

    /// An invalid description, with the path of the field.
    pub fn config(path: impl Into<String>, message: impl Into<String>) -> Error {
        Kind::Config { path: path.into(), message: message.into() }.into()
    }

    /// An invalid request.
    pub(crate) fn trace(row: usize, message: impl Into<String>) -> Error {
        Kind::Trace { row, message: message.into() }.into()
    }

    /// A number that does not fit 128 bits.
    pub(crate) fn overflow(what: &'static str) -> Error {
        Kind::Overflow(what).into()
    }

    /// The same error with `outer` added in front of the field's path.
    #[must_use]
    pub fn within(self, outer: &str) -> Error {
        match *self.0 {
            Kind::Config { path, message } if path.is_empty() => Error::config(outer, message),
            Kind::Config { path, message } => Error::config(format!("{outer}.{path}"), message),
            other => other.into(),
        }
    }

    /// The same error with its row number increased by `rows`.
    #[must_use]
    pub(crate) fn further(self, rows: usize) -> Error {
        match *self.0 {
            Kind::Trace { row, message } => Error::trace(row + rows, message),
            other => other.into(),
        }
    }
}
