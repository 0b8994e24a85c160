//! The `gradwire` program.

use mimalloc::MiMalloc;
use std::process::ExitCode;

/// Every operation allocates its result; glibc gives large blocks back to the system each time and
/// pays for their pages again. The measured difference is in `docs/design/training.md`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    one_thread_inside_candle();
    gradwire_cli::Cli::from_arguments().run()
}

/// candle sizes its inner thread pools by this variable, not by the pool that a worker computes
/// in; workers are the parallelism here, and threads within threads cost more than half the speed.
fn one_thread_inside_candle() {
    // SAFETY: this is the first thing that the program does; no other thread exists that could
    // read the environment meanwhile.
    #[expect(unsafe_code, reason = "candle offers no other way to set its thread count")]
    unsafe {
        std::env::set_var("RAYON_NUM_THREADS", "1");
    }
}
