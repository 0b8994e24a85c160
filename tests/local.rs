//! Local steps: what rounds come to, what they send, and what is refused.

use crate::common::{Program, events, number, numbers, only_run, quick, sets, words};
use std::path::PathBuf;

/// Three workers, 24 steps, plain SGD inside.
const STEPS: &str = "--scheme dense --workers 3 --set samples.train=480 --set samples.test=60 --set train.batch=16 \
                     --set train.max_steps=24 --set optimizer.momentum=0";

fn run(program: &Program, out: &str, settings: &[&str]) -> PathBuf {
    let more = [&words(STEPS)[..], &["--out", out], &sets(settings)].concat();
    program.succeed(&quick(&more));
    only_run(&program.path(out).join("quick"))
}

/// A round of one step, its weights averaged, is an exchange of gradients at every step, to rounding.
#[test]
fn a_round_of_one_step_is_an_exchange_of_gradients() {
    let program = Program::new();
    let [gradients, weights] = [("gradients", &[][..]), ("weights", &["outer={}"][..])]
        .map(|(out, sets)| run(&program, out, sets));
    let [gradients, weights] =
        [&gradients, &weights].map(|run| numbers(&events(run, "step"), "loss"));
    assert_eq!(gradients.len(), 24);
    for (step, (one, other)) in gradients.iter().zip(&weights).enumerate() {
        assert!((one - other).abs() < 1e-5 * one.abs(), "step {}: {one} {other}", step + 1);
    }
}

/// What is sent is counted, at the ends of rounds and at the run's; the mean over steps is what compares.
#[test]
fn bytes_are_those_of_the_exchanges() {
    let program = Program::new();
    let dense = run(&program, "dense", &[]);
    let each = number(&events(&dense, "step")[0], "wire_bytes");
    for (settings, meets, factor) in [
        (&["local.steps=7"][..], &[7, 14, 21, 24][..], 1.0),
        (&["local={steps=10,after=3}"], &[1, 2, 3, 13, 23, 24], 1.0),
        // One vector of the optimizer's is averaged with the weights.
        (&["local={steps=12,state='averaged'}", "optimizer.momentum=0.5"], &[12, 24], 2.0),
    ] {
        let out = settings[0].replace(['=', '{', '}', ',', '\''], "");
        let run = run(&program, &out, settings);
        let steps = events(&run, "step");
        let sent = numbers(&steps, "wire_bytes");
        let sending = (1..=24).filter(|step| sent[step - 1] > 0.0).collect::<Vec<_>>();
        assert_eq!(sending, meets, "{settings:?}");
        let full = sent.iter().filter(|sent| **sent > 0.0);
        full.for_each(|sent| assert!((sent / each - factor).abs() < 0.01, "{settings:?}: {sent}"));
        let summary = &events(&run, "finished")[0]["summary"];
        let bits = 32.0 * factor * meets.len() as f64 / 24.0;
        let found = number(summary, "bits_per_parameter");
        assert!((found / bits - 1.0).abs() < 0.01, "{settings:?}: {found} {bits}");
    }
}

#[test]
fn what_local_steps_do_not_go_with_is_refused() {
    let program = Program::new();
    for (settings, said) in [
        (&["local.steps=0"][..], "write 1 for an exchange at every step"),
        (&["outer.momentum=1"], "outer.momentum = 1 must be at least 0 and below 1"),
        (&["outer.learning_rate=0"], "outer.learning_rate = 0 must be above 0"),
        (&["outer.nesterov=true"], "outer.nesterov = true needs outer.momentum"),
        (
            &["local.steps=2", "exchange.overlap=true", "policy.bucketing=parameter"],
            "write exchange.overlap = false",
        ),
        (
            &["scheme=dgc", "outer.momentum=0.9"],
            "policy.momentum_correction = 0.9 takes the place of outer.momentum",
        ),
    ] {
        program.refuses(&quick(&sets(settings)), 2, &[said]);
    }
}
