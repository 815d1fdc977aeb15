//! What went wrong, and where?

/// The result of anything that bad input can stop.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a run can fail. Each says what was wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A description that makes no sense; `path` is the field's.
    #[error("{path}: {message}")]
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
    /// Code outside the core failed; who called it holds the details.
    #[error("{0}")]
    Foreign(String),
}

impl Error {
    /// A description that makes no sense, with the path of the field.
    pub fn config(path: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Config { path: path.into(), message: message.into() }
    }

    /// The same error with the field's path one level further out.
    pub fn within(self, outer: &str) -> Error {
        match self {
            Error::Config { path, message } if path.is_empty() => Error::config(outer, message),
            Error::Config { path, message } => Error::config(format!("{outer}.{path}"), message),
            other => other,
        }
    }
}
