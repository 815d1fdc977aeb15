//! Classes of requests.

/// A class of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name.
    pub name: String,
    /// Whether its requests can reach this engine. In a network an engine serves some classes only.
    pub reaches_engine: bool,
}

impl From<&str> for Class {
    fn from(name: &str) -> Class {
        Class { name: name.to_owned(), reaches_engine: true }
    }
}
