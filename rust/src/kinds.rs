//! Lists of kinds: one line per policy, router and timing model. Everything else is derived from it.

/// Declares the kinds of one family, one per line: `file::Kind`.
///
/// A line declares the module, the enum variant for `{"kind": "Kind", …}`, and the entry of `KINDS`. The file defines
/// the parameters under that name, their implementation (`$Parameters`), and random parameters for tests (`Sample`).
macro_rules! kinds {
    ($(#[$meta:meta])* $Config:ident: $Parameters:ident { $($file:ident::$Kind:ident,)* }) => {
        $(
            #[allow(missing_docs, reason = "fields carry the names of the Python classes, which document them")]
            mod $file;
            pub use $file::$Kind;

            impl From<$Kind> for $Config {
                fn from(parameters: $Kind) -> $Config {
                    $Config::$Kind(parameters)
                }
            }
        )*

        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, ::serde::Deserialize, ::serde::Serialize)]
        #[serde(tag = "kind")]
        #[expect(missing_docs, reason = "each kind is documented in its own file")]
        pub enum $Config {
            $($Kind($Kind),)*
        }

        impl $Config {
            /// The names of all kinds.
            pub const KINDS: &[&str] = &[$(stringify!($Kind)),*];

            /// The name of this kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $($Config::$Kind(_) => stringify!($Kind),)*
                }
            }

            fn parameters(&self) -> &dyn $Parameters {
                match self {
                    $($Config::$Kind(parameters) => parameters,)*
                }
            }

            /// Parameters for a random scenario; `None` if the kind does not exist.
            #[doc(hidden)]
            pub fn sample(kind: &str, dice: &mut $crate::dice::Dice) -> Option<$Config> {
                use $crate::dice::Sample;
                $(
                    if kind == stringify!($Kind) {
                        return Some($Config::$Kind($Kind::sample(dice)));
                    }
                )*
                None
            }
        }
    };
}

pub(crate) use kinds;

/// Imports of every kind's file.
pub(crate) mod prelude {
    pub(crate) use crate::dice::{Dice, Sample};
    pub(crate) use crate::error::{Error, Result};
    pub(crate) use serde::{Deserialize, Serialize};
}
