//! Local steps: what rounds come to, what they send, and what is refused.

use crate::common::{Program, events, number, numbers, quick, sets, told, weights, words};
use gradwire::checkpoint::Tensors;
use gradwire::disk::Disk;
use gradwire::train::resume::Resume;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Three workers, 24 steps, plain SGD inside.
const STEPS: &str = "--scheme dense --workers 3 --set samples.train=480 --set samples.test=60 --set train.batch=16 \
                     --set train.max_steps=24 --set optimizer.momentum=0";

fn run(program: &Program, out: &str, settings: &str) -> PathBuf {
    program.train_in(out, &[&words(STEPS)[..], &sets(settings)].concat())
}

/// A round of one step, its weights averaged, is an exchange of gradients at every step, to rounding: in losses, in the last weights,
/// and of a scheme that keeps what it has not sent, which is then of weights in place of gradients.
#[test]
fn a_round_of_one_step_is_an_exchange_of_gradients() {
    let program = Program::new();
    // The last step of an epoch of 100 samples is of four, of which two ranks have one, and of 98 of two: one rank has none.
    for (scheme, samples) in [("dense", "480"), ("dense", "100"), ("dense", "98"), ("topk", "480")]
    {
        let trained = |out: &str, settings: &str| {
            let steps = STEPS.replace("480", samples).replace("dense", scheme);
            // What is kept of weights is not rescaled with the rate.
            let schedule: &[&str] =
                if scheme == "topk" { &["--set", "schedule=constant"] } else { &[] };
            let args = [&words(&steps)[..], &sets(settings), schedule].concat();
            let run = program.train_in(&format!("{out}-{scheme}-{samples}"), &args);
            (numbers(&events(&run, "step"), "loss"), floats(&run))
        };
        let [gradients, rounds] =
            [trained("gradients", ""), trained("rounds", "local.steps=1 outer={}")];
        assert!(gradients.0.len() > 5 && gradients.0.len() == rounds.0.len());
        for (step, (one, other)) in gradients.0.iter().zip(&rounds.0).enumerate() {
            let close = (one - other).abs() < 1e-5 * one.abs();
            assert!(close, "{scheme}, {samples} samples, step {}: {one} {other}", step + 1);
        }
        let apart = gradients.1.iter().zip(&rounds.1).map(|(one, other)| (one - other).abs());
        let most = apart.fold(0.0, f32::max);
        assert!(most < 1e-5, "{scheme}, {samples} samples: {most}");
    }
}

/// All weights of a run's last model.
fn floats(run: &Path) -> Vec<f32> {
    let tensors = weights(run).into_iter().flat_map(|(_, bytes)| bytes);
    let bytes: Vec<u8> = tensors.collect();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// What is sent is counted, at the ends of rounds and at the run's; the mean over steps is what compares.
#[test]
fn bytes_are_those_of_the_exchanges() {
    let program = Program::new();
    let dense = run(&program, "dense", "");
    let each = number(&events(&dense, "step")[0], "wire_bytes");
    for (settings, meets, factor) in [
        ("local.steps=7", &[7, 14, 21, 24][..], 1.0),
        ("local={steps=10,after=3}", &[1, 2, 3, 13, 23, 24], 1.0),
        // One vector of the optimizer's is averaged with the weights.
        ("local={steps=12,state='averaged'} optimizer.momentum=0.5", &[12, 24], 2.0),
    ] {
        let out = settings.replace(['=', '{', '}', ',', '\'', ' '], "");
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
    // So is what rules send, in the record of a step and of the run.
    let ruled =
        run(&program, "ruled", "local.steps=8 policy.rules=[{match='fc.*',scheme='dense'}]");
    let steps = events(&ruled, "step");
    let bits = |of: &Value| number(&of["rules"][0], "bits_per_parameter");
    assert_eq!([bits(&steps[6]), bits(&steps[7])], [0.0, 4.0]);
    assert_eq!(bits(&events(&ruled, "finished")[0]["summary"]), 4.0);
}

/// Fragments divide what is sent among the steps of a round, and with a delay nothing changes in that; the run's last
/// step sends all.
#[test]
fn fragments_divide_the_peak_of_bytes() {
    let program = Program::new();
    let base = "dataset=synthetic-cifar10 model=resnet20 train.batch=2 optimizer.learning_rate=0.01 \
                local.steps=6 policy.bucketing=parameter";
    let sent = |name: &str, settings: &str| {
        let run = run(&program, name, &format!("{base} {settings}"));
        let summary = &events(&run, "finished")[0]["summary"];
        (numbers(&events(&run, "step"), "wire_bytes"), number(summary, "bits_per_parameter"))
    };
    let (whole, bits) = sent("whole", "");
    for (name, settings, every, peaks) in [
        ("two", "outer={fragments=2}", 3, 0.5..0.64),
        ("three", "outer={fragments=3}", 2, 1.0 / 3.0..0.47),
        ("late", "outer={fragments=2,delay=2}", 3, 0.5..0.64),
    ] {
        let (bytes, streamed) = sent(name, settings);
        let sending: Vec<usize> = (1..=24).filter(|step| bytes[step - 1] > 0.0).collect();
        let due: Vec<usize> = (1..=24).filter(|step| step % every == 0).collect();
        assert_eq!(sending, due, "{name}");
        for round in 0..3 {
            let sum: f64 = bytes[6 * round..6 * round + 6].iter().sum();
            assert!((sum / whole[5] - 1.0).abs() < 0.01, "{name}: {sum} {}", whole[5]);
        }
        // The largest parameter, 14 % of all, is in one fragment.
        let peak = bytes[..23].iter().copied().fold(0.0, f64::max) / whole[5];
        assert!(peaks.contains(&peak), "{name}: {peak} of {}", whole[5]);
        assert!((bytes[23] / whole[5] - 1.0).abs() < 0.01, "{name}: the last step sends all");
        // The last step alone sends more than its share.
        assert!(streamed >= bits * 0.99 && streamed < bits * 1.25, "{name}: {streamed} {bits}");
    }
}

/// A worker that is late in the steps beside which an exchange is under way changes no bit, and neither does who
/// looks at the run meanwhile.
#[test]
fn a_delayed_exchange_comes_to_the_same_whenever_it_ends() {
    let program = Program::new();
    let settings =
        sets("local.steps=8 outer={fragments=2,delay=3,momentum=0.5} policy.bucketing=parameter");
    let train = |out: &str, more: &[&str]| {
        let run = program.train_in(out, &[&words(STEPS)[..], &settings, more].concat());
        (weights(&run), told(&run))
    };
    let calm = train("calm", &[]);
    let stalls =
        "--inject stall:worker=1,step=4,for=300ms --inject stall:worker=2,step=6,for=300ms";
    assert!(calm == train("stalled", &words(stalls)));
    let watched = sets("exchange.compare_replicas_every=1 record.histograms_every=1");
    assert!(calm.0 == train("watched", &watched).0);
}

/// An evaluation within a round finds what one at the end of the round before found: the outer weights.
#[test]
fn what_is_evaluated_are_the_outer_weights() {
    let program = Program::new();
    // Epochs end with steps 10 and 20.
    let tested = |name: &str, settings: &str| {
        let run = run(&program, name, &format!("schedule=constant {settings}"));
        numbers(&events(&run, "epoch"), "test_loss")
    };
    let at_first = tested("at first", "local.steps=24");
    assert_eq!(at_first[0], at_first[1], "both within the first round");
    let within = tested("within", "local.steps=12");
    let ended = tested("ended", "local.steps=12 train.max_steps=12");
    assert_eq!(within[0], at_first[0], "the weights that the run began with");
    assert_eq!(within[1], *ended.last().unwrap(), "those of step 12");
    assert!(within[0] != within[1] && within[1] != within[2], "{within:?}");
}

/// At a round's end the mean of what ranks have by themselves: with `local.state = "averaged"` of momentum, with
/// `train.batch_norm = "synchronised"` of batch norm's statistics.
#[test]
fn momentum_and_statistics_are_averaged_at_the_end_of_a_round() {
    let program = Program::new();
    let base = "dataset=synthetic-cifar10 model=resnet8 train.batch=2 train.max_steps=6 \
                optimizer.momentum=0.5 local.steps=3 checkpoint.every_steps=3";
    let ranks = |name: &str, settings: &str| {
        let run = run(&program, name, &format!("{base} {settings}"));
        let folder = run.join("checkpoints/step-00000003");
        Resume::find(&Disk::default(), &folder, false).unwrap().checkpoint.ranks
    };
    let own = ranks("own", "local.state=own train.batch_norm=averaged");
    let mean = ranks("mean", "local.state=averaged train.batch_norm=synchronised");
    let mut averaged = 0;
    for (name, tensor) in mean[0].0.iter().filter(|(name, _)| !name.starts_with("exchange/")) {
        let of = |rank: &Tensors| rank.f32s(name, &tensor.shape).unwrap().to_vec();
        let [one, two, three] = [0, 1, 2].map(|rank| of(&own[rank]));
        assert!(mean.iter().all(|rank| rank.0[name] == *tensor), "{name}");
        averaged += usize::from(one != two);
        for (i, found) in of(&mean[0]).iter().enumerate() {
            let expected = (one[i] + two[i] + three[i]) / 3.0;
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1e-3), "{name} {i}");
        }
    }
    assert!(averaged > 2, "momentum, means and variances: {averaged}");
}

#[test]
fn what_local_steps_do_not_go_with_is_refused() {
    let program = Program::new();
    for (settings, said) in [
        ("local.steps=0", "local.steps = 0 must be a whole number of at least 1"),
        ("outer.momentum=1", "outer.momentum = 1 must be a number from 0, below 1"),
        ("outer.learning_rate=0", "outer.learning_rate = 0 must be a number above 0"),
        ("outer.nesterov=true", "outer.nesterov = true needs outer.momentum"),
        (
            "local.steps=2 exchange.overlap=true policy.bucketing=parameter",
            "write exchange.overlap = false",
        ),
        ("outer.fragments=0", "outer.fragments = 0 must be a whole number of at least 1"),
        (
            "outer.fragments=3 local.steps=2",
            "write outer.fragments = 2 or fewer, or local.steps = 3 or more",
        ),
        ("outer.delay=1", "write outer.delay = 0, or more local.steps"),
        ("local.steps=8 outer={fragments=2,delay=4}", "write outer.delay = 3 or less"),
        ("outer.mix=1", "outer.mix = 1 must be a number from 0, below 1"),
        (
            "local.steps=4 outer={fragments=2} policy.clip_norm=1",
            "policy.clip_norm needs the norm of all",
        ),
        (
            "local.steps=4 outer={delay=2} local.state=averaged",
            "local.state = \"own\", or outer.delay = 0",
        ),
        (
            "local.steps=4 local.state=averaged exchange.topology=server",
            "past a server and past groups; write local.state = \"own\"",
        ),
        ("local.steps=4 outer={delay=2} average.kind=lookahead", "write average.kind = \"ema\""),
        (
            "local.steps=4 outer={fragments=2} exchange.topology=server scheme=qsgd \
             exchange.downlink=compressed",
            "leave exchange.downlink out",
        ),
        (
            "scheme={kind='signsgd',magnitude='unit',vote='majority'} outer.momentum=0.9",
            "what scheme signsgd sends has no magnitude",
        ),
        (
            "scheme={kind='signsgd',magnitude='unit'} local.steps=16",
            "sends has no magnitude: with outer.learning_rate = 1 and",
        ),
        (
            "scheme={kind='signsgd',magnitude='unit'} outer.learning_rate=0.7",
            "such as 0.001 (at most 0.1), or a scheme that sends magnitudes",
        ),
        (
            "policy.rules=[{match='*.bias',scheme={kind='signsgd',magnitude='unit'}}] \
             outer.momentum=0.9",
            "what scheme signsgd sends has no magnitude",
        ),
        (
            "scheme=dgc outer.momentum=0.9",
            "policy.momentum_correction = 0.9 takes the place of outer.momentum",
        ),
        // Steps that exchange gradients are checked as those of runs without local steps.
        (
            "scheme=dgc optimizer.momentum=0 local.steps=8 local.after=20",
            "write policy.momentum_correction = 0, or local.after = 0",
        ),
        (
            "policy.clip_norm=1 local.steps=8 local.after=20",
            "then how far ranks have come; write local.after = 0",
        ),
        (
            "scheme=dense policy.clip_norm=1 local.steps=8 local.after=20",
            "write local.after = 0, or train.clip_norm = 1, which clips gradients throughout",
        ),
        (
            "scheme=topk policy.momentum_correction=0 policy.feedback={efsgdm=0.1} local.steps=8 local.after=20",
            "write optimizer.momentum = 0",
        ),
        (
            "scheme=topk policy.momentum_correction=0 train.clip_norm=1 local.steps=8 local.after=20",
            "what is cut off is lost for ever",
        ),
    ] {
        program.refuses(&quick(&sets(settings)), 2, &[said]);
    }
    // Beside error feedback that would be refused as well.
    let twice = quick(&sets("policy.clip_norm=1 local.steps=8 local.after=20"));
    assert!(!program.refuse(&twice, 2).contains("train.clip_norm"));
    // How many buckets there are is known with the model. Of buckets that hold a parameter each no more can be had.
    for (more, parts) in [
        ("", ["write outer.fragments = 1 or fewer", "policy.bucketing = \"parameter\""]),
        (
            " policy.bucketing=parameter",
            ["buckets, of which there are 3", "write outer.fragments = 3 or fewer"],
        ),
    ] {
        let settings = format!("local.steps=99 outer={{fragments=99}}{more}");
        let settings = sets(&settings);
        program.refuses(&quick(&settings), 1, &parts);
    }
}
