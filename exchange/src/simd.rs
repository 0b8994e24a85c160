//! Loops compiled for the widest vectors that the processor has.

/// Runs `work`, compiled for AVX2 or AVX-512 where the processor has them, found out at run time.
///
/// What `work` calls must be inlined to gain by it: closures, `#[inline(always)]` functions,
/// iterators. Results do not depend on what is found: vector units round as scalar ones do, and
/// Rust never fuses a multiplication and an addition by itself.
#[inline(always)]
pub(crate) fn wide<R>(work: impl FnOnce() -> R) -> R {
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
