//! What levels and clusters that follow the gradient are worth, on distributions whose shape is
//! known: relative squared errors ‖ĝ − g‖²/‖g‖², and bits for each element, all told.
//!
//! ```text
//! cargo run --release -p gradwire-exchange --example codebooks -- [elements]
//! ```
//!
//! The distributions are those of the project's numerical study of CASQ and OptQuant: Gaussian,
//! Laplace, a mixture of two Gaussians (90 % at a tenth of the width), Student's t with 3 degrees
//! of freedom, and 24 layers of Student's t with 4, each with a scale of its own. Numbers differ
//! from the study's by those of another random generator, most for the heavy tails. "levels" rows
//! are exact expectations; the codecs' rows are what decoding their messages gave.

#[path = "../tests/distributions/mod.rs"]
mod distributions;

use distributions::{distributions, exact, levels, measured};
use gradwire_exchange::SchemeConfig;
use gradwire_exchange::schemes::{alq, casq, optquant};

fn main() {
    let length = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1 << 20);
    let all = distributions(length / 512 * 512);

    println!("Unbiased rounding, blocks of 512, largest magnitude as scale (+ 0.06 bits)");
    println!(
        "{:12} {:>4} {:>9} {:>8} {:>9} {:>11} {:>9} {:>6}",
        "", "bits", "ternary", "uniform", "sign+mag.", "exponential", "OptQuant", "ALQ"
    );
    for (name, gradient) in &all {
        for bits in [2, 3, 4] {
            let optquant = SchemeConfig::Optquant(optquant::Config { bits, ..Default::default() });
            let alq = SchemeConfig::Alq(alq::Config { bits, ..Default::default() });
            println!(
                "{name:12} {bits:4} {:9.3} {:8.3} {:9.3} {:11.3} {:9.3} {:6.3}",
                exact(gradient, &[-1.0, 0.0, 1.0]),
                exact(gradient, &levels::uniform(bits)),
                exact(gradient, &levels::sign_and_magnitude(bits)),
                exact(gradient, &levels::exponential(bits)),
                measured(&optquant, gradient).0,
                measured(&alq, gradient).0,
            );
        }
    }

    println!("\nCASQ-2 against rounding at 3.06 bits (QSGD: signs and magnitudes, s = 3)");
    println!(
        "{:12} {:>8} {:>8} {:>16} {:>16} {:>16}",
        "", "QSGD", "8 levels", "hash, p95", "lean", "paper"
    );
    for (name, gradient) in &all {
        let paper = casq::Preset::Paper;
        let of = |preset, polish| {
            let config = casq::Config { preset, polish, ..Default::default() };
            let (error, bits) = measured(&SchemeConfig::Casq(config), gradient);
            format!("{error:.3} ({bits:.3} b)")
        };
        println!(
            "{name:12} {:8.3} {:8.3} {:>16} {:>16} {:>16}",
            exact(gradient, &levels::sign_and_magnitude(3)),
            exact(gradient, &levels::uniform(3)),
            of(casq::Preset::Lean, 0),
            of(casq::Preset::Lean, 20),
            of(paper, 0),
        );
    }
}
