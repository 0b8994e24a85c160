//! CPU training kernels and the one place that decides which of them run.
//!
//! A kernel is written once, generic over `simd::Simd`, and compiled for every instruction set the target
//! architecture may have. Which compilation runs is chosen once per process by [`active`]: the best the CPU offers,
//! unless the environment variable [`VARIABLE`] says otherwise. Tests and comparisons override the choice for one
//! thread with [`with`].

mod activation;
pub(crate) mod batch_norm;
mod bf16;
mod channels;
pub(crate) mod conv;
pub(crate) mod conv_sizes;
pub(crate) mod counts;
pub(crate) mod cross_entropy;
pub(crate) mod custom_op;
mod direct;
pub(crate) mod element;
pub(crate) mod embedding;
pub(crate) mod encoder;
pub mod flat;
pub(crate) mod gelu;
mod gemm;
pub mod gradients;
pub mod handover;
pub(crate) mod layer_norm;
pub(crate) mod linear;
mod lines;
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
use serde::{Deserialize, Serialize};
use simd::{Bf16, Isa};

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

/// What products are computed in: those of convolutions, linear layers, projections and LSTMs. In bf16 the feature maps of
/// images and their gradients lie in memory as bf16 too; sums, and all else, are in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// In f32.
    #[default]
    F32,
    /// In bf16, by the processor's own instruction; a processor without it refuses.
    Bf16,
    /// The same arithmetic in plain Rust, slower than f32, on any processor.
    Bf16Emulated,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16Emulated => "bf16-emulated",
        })
    }
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The name is none of [`VALUES`].
    #[error("{VARIABLE}={0:?} names no kernels: use one of {all}", all = listed(VALUES.iter().map(|(name, _)| name)))]
    Unknown(String),
    /// The name is known, but this CPU (or this build's architecture) lacks the instruction set.
    #[error("{VARIABLE}={0}: this CPU lacks {0}: use auto or one of {here}", here = listed(Isa::available()))]
    Unsupported(String),
    /// The kernels have no products in this precision: of which kernels, and what else to write.
    #[error("precision = \"{0}\" on the kernels {1}: {2}")]
    Precision(Precision, String, &'static str),
}

fn listed(names: impl Iterator<Item = impl ToString>) -> String {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}

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

    /// These kernels with products in `precision`.
    ///
    /// # Errors
    /// When the CPU lacks the instruction, or [`VARIABLE`] has chosen kernels without it.
    pub fn in_precision(self, precision: Precision) -> Result<Self, SelectError> {
        let refused = |remedy| Err(SelectError::Precision(precision, self.to_string(), remedy));
        match (precision, self, Bf16::of_cpu()) {
            (Precision::F32, ..) => Ok(self),
            (_, Self::Candle, _) => refused(
                "candle's operations have none: choose other kernels, or precision = \"f32\"",
            ),
            (Precision::Bf16Emulated, Self::Native(Native { precise, .. }), _) => {
                Ok(Self::native(Isa::multiplying(Bf16::Emulated), precise))
            }
            (_, _, None) => refused(
                "this processor has no AVX512-BF16: write precision = \"f32\", or \"bf16-emulated\" for the \
                 same arithmetic, slower than f32",
            ),
            (_, Self::Native(Native { isa, precise }), Some(bf16)) => {
                let with = Isa::multiplying(bf16);
                if isa.lanes() != with.lanes() {
                    return refused(
                        "products in bf16 go with the kernels avx512: choose these, or auto",
                    );
                }
                Ok(Self::native(with, precise))
            }
        }
    }

    /// These kernels with products in bf16, by the processor's own instruction and emulated, as far as they have them.
    pub fn in_bf16(self) -> impl Iterator<Item = Self> {
        let both = [Precision::Bf16, Precision::Bf16Emulated].into_iter();
        both.filter_map(move |precision| self.in_precision(precision).ok())
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
    fn bf16_is_the_processors_or_asked_for_as_emulated_or_refused() {
        let active = Kernels::parse("auto").unwrap();
        assert_eq!(active.in_precision(Precision::F32), Ok(active));
        let emulated = active.in_precision(Precision::Bf16Emulated).unwrap();
        assert_eq!(emulated.to_string(), "portable bf16-emulated");
        match (active.in_precision(Precision::Bf16), Bf16::of_cpu()) {
            (Ok(kernels), Some(_)) => assert_eq!(kernels.to_string(), "avx512 bf16"),
            (Err(error), None) => assert!(error.to_string().contains("bf16-emulated"), "{error}"),
            (found, of_cpu) => panic!("{found:?} where the CPU has {of_cpu:?}"),
        }
        for name in ["portable", "candle"] {
            let kernels = Kernels::parse(name).unwrap();
            let refusal = kernels.in_precision(Precision::Bf16).unwrap_err().to_string();
            assert!(
                refusal.contains(&format!("precision = \"bf16\" on the kernels {name}")),
                "{refusal}"
            );
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
