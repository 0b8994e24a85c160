//! Loops compiled for the widest vectors that the processor has.

/// Evaluates an expression, compiled for AVX2 or AVX-512 where the processor has them, found out at run
/// time. It is a function of its own: `return` and `?` leave it, and nothing around it.
///
/// What it calls must be inlined to gain by it: closures, `#[inline(always)]` functions, iterators.
/// Results do not depend on what is found: vector units round as scalar ones do, and Rust never fuses a
/// multiplication and an addition by itself.
macro_rules! wide {
    ($work:expr) => {
        $crate::simd::run_wide(
            #[inline(always)]
            || $work,
        )
    };
}

pub(crate) use wide;

/// What [`wide!`] comes to. The function is there for speed: the same call where the loop stands is
/// compiled for the narrowest vectors.
#[inline(always)]
pub(crate) fn run_wide<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// What this processor can do, the narrowest first: for tests that results do not depend on it.
#[cfg(test)]
pub(crate) fn machines() -> Vec<pulp::Arch> {
    let mut machines = vec![pulp::Arch::Scalar, pulp::Arch::new()];
    #[cfg(target_arch = "x86_64")]
    machines.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
    machines
}
