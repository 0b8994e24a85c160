//! CPU training kernels and the one place that decides which of them run.
//!
//! A kernel is written once, generic over `simd::Simd`, and compiled for every instruction set the target
//! architecture may have. Which compilation runs is chosen once per process by [`active`]: the best the CPU offers,
//! unless the environment variable [`VARIABLE`] says otherwise. Tests and comparisons override the choice for one
//! thread with [`with`].

mod activation;
pub(crate) mod batch_norm;
mod channels;
pub(crate) mod conv;
pub(crate) mod conv_sizes;
pub(crate) mod counts;
pub(crate) mod cross_entropy;
pub(crate) mod custom_op;
mod direct;
pub(crate) mod embedding;
pub(crate) mod encoder;
pub mod flat;
pub(crate) mod gelu;
mod gemm;
pub mod gradients;
pub mod handover;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod lstm;
pub(crate) mod maps;
pub(crate) mod max_pool;
mod memory;
mod moments;
pub(crate) mod operand;
pub mod optimizer;
mod parallel;
pub mod peak;
pub(crate) mod pool;
pub mod profile;
mod projection;
pub mod rows;
pub mod simd;
#[cfg(test)]
mod testing;
pub(crate) mod text_conv;
pub(crate) mod token_rows;
mod transpose;
mod values;
mod winograd;

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use simd::Isa;

/// The environment variable that chooses the kernels: one of [`VALUES`].
pub const VARIABLE: &str = "GRADWIRE_KERNELS";

/// What [`VARIABLE`] may say, and what each value means.
pub const VALUES: &[(&str, &str)] = &[
    ("auto", "the widest instruction set of this CPU (default)"),
    ("avx512", "AVX-512 F"),
    ("avx2", "AVX2 with FMA"),
    ("portable", "plain Rust, vectorised by the compiler for the target's baseline"),
    (
        "precise",
        "as auto, but without Winograd convolutions, whose rounding error is several times larger",
    ),
    ("candle", "no kernels of our own: compositions of candle operations"),
];

/// Which arithmetic the operations of this crate run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Compositions of candle's own operations: the reference, and on other devices what is not fused.
    Candle,
    /// Our kernels, compiled for one instruction set.
    Native(Native),
}

/// Our kernels for one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    /// The instruction set, known to be available on this CPU.
    pub isa: Isa,
    /// Avoid algorithms that trade rounding error for speed (Winograd convolutions).
    pub precise: bool,
}

/// Why a choice of kernels cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// The name is none of [`VALUES`].
    Unknown(String),
    /// The name is known, but this CPU (or this build's architecture) lacks the instruction set.
    Unsupported(String),
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                let names: Vec<&str> = VALUES.iter().map(|(name, _)| *name).collect();
                write!(f, "{VARIABLE}={name:?} names no kernels: use one of {}", names.join(", "))
            }
            Self::Unsupported(name) => {
                let names: Vec<String> = Isa::available().map(|isa| isa.to_string()).collect();
                write!(
                    f,
                    "{VARIABLE}={name}: this CPU lacks {name}: use auto or one of {}",
                    names.join(", ")
                )
            }
        }
    }
}

impl std::error::Error for SelectError {}

impl Kernels {
    /// The kernels that a value of [`VARIABLE`] asks for.
    ///
    /// # Errors
    /// An unknown name, or an instruction set this CPU lacks.
    pub fn parse(name: &str) -> Result<Self, SelectError> {
        let precise = name == "precise";
        match name {
            "candle" => Ok(Self::Candle),
            "auto" | "precise" => Ok(Self::native(Isa::best(), precise)),
            "avx512" | "avx2" | "portable" => Isa::available()
                .find(|isa| isa.name() == name)
                .map(|isa| Self::native(isa, false))
                .ok_or_else(|| SelectError::Unsupported(name.to_owned())),
            _ => Err(SelectError::Unknown(name.to_owned())),
        }
    }

    /// Our kernels for `isa`.
    pub fn native(isa: Isa, precise: bool) -> Self {
        Self::Native(Native { isa, precise })
    }

    /// Every choice this CPU can run, the composed one included: what tests iterate over.
    pub fn available() -> impl Iterator<Item = Self> {
        let native =
            Isa::available().flat_map(|isa| [Self::native(isa, false), Self::native(isa, true)]);
        std::iter::once(Self::Candle).chain(native)
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Candle => f.write_str("candle"),
            Self::Native(Native { isa, precise: false }) => write!(f, "{isa}"),
            Self::Native(Native { isa, precise: true }) => write!(f, "{isa} precise"),
        }
    }
}

thread_local! {
    static OVERRIDE: Cell<Option<Kernels>> = const { Cell::new(None) };
}

/// The kernels that operations called on this thread run on: the innermost [`with`] around the call, else the
/// process-wide choice, made at the first call from [`VARIABLE`].
///
/// # Errors
/// [`VARIABLE`] is set to something this process cannot honour.
pub fn active() -> Result<Kernels, SelectError> {
    static CHOICE: OnceLock<Result<Kernels, SelectError>> = OnceLock::new();
    if let Some(kernels) = OVERRIDE.get() {
        return Ok(kernels);
    }
    CHOICE
        .get_or_init(|| match std::env::var_os(VARIABLE) {
            None => Kernels::parse("auto"),
            Some(name) => Kernels::parse(&name.to_string_lossy()),
        })
        .clone()
}

/// Runs `f` with `kernels` as this thread's choice; the choice of other threads, and this one's afterwards, is
/// untouched.
pub fn with<R>(kernels: Kernels, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Kernels>);
    impl Drop for Restore {
        fn drop(&mut self) {
            OVERRIDE.set(self.0);
        }
    }
    let _restore = Restore(OVERRIDE.replace(Some(kernels)));
    f()
}

/// The native kernels to run on `xs` with, or `None` where the composed path must: another device than the CPU,
/// another type than f32, or a choice of [`Kernels::Candle`].
pub(crate) fn native(xs: &Tensor) -> candle_core::Result<Option<Native>> {
    if !xs.device().is_cpu() || xs.dtype() != DType::F32 {
        return Ok(None);
    }
    match active().map_err(candle_core::Error::wrap)? {
        Kernels::Candle => Ok(None),
        Kernels::Native(native) => Ok(Some(native)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_value_parses_or_says_what_is_missing() {
        for (name, _) in VALUES {
            match Kernels::parse(name) {
                Ok(_) => {}
                Err(SelectError::Unsupported(missing)) => assert_eq!(missing, *name),
                Err(other) => panic!("{name}: {other}"),
            }
        }
    }

    #[test]
    fn a_wrong_value_lists_the_right_ones() {
        let message = Kernels::parse("sse9").unwrap_err().to_string();
        for (name, _) in VALUES {
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn an_override_nests_and_ends_with_its_scope() {
        let outside = active().unwrap();
        let portable = Kernels::parse("portable").unwrap();
        with(Kernels::Candle, || {
            assert_eq!(active().unwrap(), Kernels::Candle);
            with(portable, || assert_eq!(active().unwrap(), portable));
            assert_eq!(active().unwrap(), Kernels::Candle);
        });
        assert_eq!(active().unwrap(), outside);
    }
}
