//! Errors: what went wrong, and where.

/// The result of anything that bad input can stop.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. One pointer, so that it costs the road that it is never on nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Kind>);

/// Every way in which a run can fail. Each says what was wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kind {
    /// A description that makes no sense; `path` is the field's.
    #[error("{path}{}{message}", if path.is_empty() { "" } else { ": " })]
    Config {
        /// The field, from the outside in: `scheduler.token_budget`.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// A request that makes no sense; `row` counts from 0.
    #[error("row {row}: {message}")]
    Trace {
        /// The row of the workload.
        row: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A scheduler asked for what the rules do not allow.
    #[error("the scheduler broke a rule at {at_s} s: {rule} ({what})")]
    Rule {
        /// The instant of the plan in seconds.
        at_s: String,
        /// The rule, in words.
        rule: &'static str,
        /// The request or the amount.
        what: String,
    },
    /// A router named a replica that there is not.
    #[error("the router broke a rule at {at_s} s: its answer for request {request} is {answer}, must be a whole number from 0 to {}", replicas - 1)]
    Route {
        /// The instant of the arrival in seconds.
        at_s: String,
        /// The request.
        request: u32,
        /// What it said.
        answer: String,
        /// How many replicas there are.
        replicas: usize,
    },
    /// A number outgrew 128 bits.
    #[error("{0} does not fit into 128 bits")]
    Overflow(&'static str),
    /// A batch that takes no time would let the clock stand still for ever.
    #[error("an iteration of length 0 at {0} s: the timing model must charge something for a batch")]
    EmptyIteration(String),
    /// More rows asked for than any memory holds.
    #[error("{0}")]
    TooMuch(String),
    /// The caller asked the run to stop.
    #[error("the run was stopped")]
    Stopped,
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error(Box::new(kind))
    }
}

impl Error {
    /// What kind of thing went wrong.
    pub fn kind(&self) -> &Kind {
        &self.0
    }

    /// A description that makes no sense, with the path of the field.
    pub fn config(path: impl Into<String>, message: impl Into<String>) -> Error {
        Kind::Config { path: path.into(), message: message.into() }.into()
    }

    /// A request that makes no sense.
    pub(crate) fn trace(row: usize, message: impl Into<String>) -> Error {
        Kind::Trace { row, message: message.into() }.into()
    }

    /// A number outgrew 128 bits.
    #[cold]
    pub(crate) fn overflow(what: &'static str) -> Error {
        Kind::Overflow(what).into()
    }

    /// The same error with the field's path one level further out.
    #[must_use]
    pub fn within(self, outer: &str) -> Error {
        match *self.0 {
            Kind::Config { path, message } if path.is_empty() => Error::config(outer, message),
            Kind::Config { path, message } => Error::config(format!("{outer}.{path}"), message),
            other => other.into(),
        }
    }

    /// The same error where rows are counted from `rows` rows further up.
    #[must_use]
    pub(crate) fn further(self, rows: usize) -> Error {
        match *self.0 {
            Kind::Trace { row, message } => Error::trace(row + rows, message),
            other => other.into(),
        }
    }
}
