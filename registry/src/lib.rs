//! Lists of what a recipe may choose by name: models, data sets, optimizers.
//!
//! Everything that follows from a choice is a method of one trait, the *definition*, with a default
//! wherever there is a sensible one. An entry is a type of settings that implements it, in a file
//! of its own, and a line in the list that [`registry!`] is given. The rest of the program asks the
//! definition and never matches on the entries, so it need not change for a new one:
//!
//! ```
//! mod toss {
//!     /// Settings of a coin.
//!     #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
//!     #[serde(deny_unknown_fields, default)]
//!     pub struct Coin {
//!         /// How often to toss it, beyond once.
//!         pub again: u32,
//!     }
//!
//!     impl super::Chance for Coin {
//!         fn outcomes(&self) -> u32 {
//!             2 << self.again
//!         }
//!     }
//! }
//!
//! /// A thing to leave to chance.
//! pub trait Chance {
//!     /// How many ways it may go.
//!     fn outcomes(&self) -> u32;
//! }
//!
//! gradwire_registry::registry! {
//!     /// What is left to chance.
//!     pub enum Choice: Chance {
//!         Coin(toss::Coin),
//!     }
//! }
//!
//! # fn main() {
//! let choice: Choice = toml::from_str("kind = 'coin'\nagain = 2").unwrap();
//! assert_eq!(choice.definition().outcomes(), 8);
//! assert_eq!(Choice::all().len(), 1);
//! # }
//! ```

/// What an entry is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Name in a recipe: the `kind`.
    pub name: &'static str,
    /// What it is, in one line.
    pub line: &'static str,
    /// Who described it: authors, year; empty where nobody did.
    pub paper: &'static str,
}

impl About {
    /// All but the name, for a list.
    pub fn in_words(&self) -> String {
        match self.paper {
            "" => self.line.to_string(),
            paper => format!("{} ({paper})", self.line),
        }
    }
}

/// Makes an enum of a list of entries: `Variant(Settings)`, each a type of settings that implements
/// the trait named behind the enum.
///
/// The enum is read and written by serde as a table whose `kind` is the variant's name in kebab
/// case, beside the settings. `all()` gives every entry at its defaults, and `definition()` what
/// follows from an entry's settings. Settings are `Clone`, `Debug`, `Default`, `PartialEq`,
/// `Serialize` and `Deserialize`, the trait is one that has trait objects, and the caller depends
/// on `serde`.
///
/// With a block `delegates { fn name(&self, argument: Type) -> Output; … }` the enum implements the
/// trait itself: each method that is named there asks the entry. What follows behind `and` in the
/// block is part of that implementation as it is.
#[macro_export]
macro_rules! registry {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $definition:ident {
            $($variant:ident($settings:ty)),* $(,)?
        }
        $(delegates {
            $(fn $method:ident(&self $(, $argument:ident: $type:ty)*) -> $output:ty;)*
            $(and $($also:tt)*)?
        })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        $vis enum $name {
            $(
                #[doc = concat!("See [`", stringify!($settings), "`].")]
                $variant($settings),
            )*
        }

        impl $name {
            /// Every entry at its defaults, in the order of the list.
            $vis fn all() -> ::std::vec::Vec<Self> {
                ::std::vec![$(Self::$variant(<$settings as ::std::default::Default>::default())),*]
            }

            /// The entry's settings, and all that follows from them.
            $vis fn definition(&self) -> &(dyn $definition + 'static) {
                match self {
                    $(Self::$variant(settings) => settings,)*
                }
            }
        }

        $(impl $definition for $name {
            $(fn $method(&self $(, $argument: $type)*) -> $output {
                self.definition().$method($($argument),*)
            })*

            $($($also)*)?
        })?
    };
}

/// Makes a type of settings, each beside its default: serde reads it from a table that may leave any of them out and has
/// no others. With the caller's feature `schema` it has a JSON schema by `schemars`, on which the caller depends then;
/// an attribute in brackets behind `@` takes its place. The types are `Clone`, `Debug` and `PartialEq`; what else is to be derived
/// stands in front.
///
/// ```
/// gradwire_registry::settings! {
///     @ []
///     /// Settings of a coin.
///     pub struct Coin {
///         /// How often to toss it.
///         pub times: u32 = 1,
///     }
/// }
/// # fn main() {
/// assert_eq!(toml::from_str::<Coin>("").unwrap().times, 1);
/// assert!(toml::from_str::<Coin>("time = 2").is_err());
/// # }
/// ```
#[macro_export]
macro_rules! settings {
    (@ [$($schema:meta)?] $(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of:meta])* $field_vis:vis $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        $(#[$schema])?
        #[serde(deny_unknown_fields, default)]
        $vis struct $name {
            $($(#[$of])* $field_vis $field: $type,)*
        }

        impl ::std::default::Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
    ($($settings:tt)*) => {
        $crate::settings! {
            @ [cfg_attr(feature = "schema", derive(schemars::JsonSchema))] $($settings)*
        }
    };
}
