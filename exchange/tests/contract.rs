//! The laws that every scheme keeps, over every awkward gradient.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
use common::{COMPRESSED, Echo, OWNED, PATIENT, Random, each_rank, every_case, seat, topk};
use gradwire_exchange::schemes::optquant;
use gradwire_exchange::wire::Format;
use gradwire_exchange::wire::Reader;
use gradwire_exchange::wire::frame::{self, Frame, Kind};
use gradwire_exchange::{
    BucketGradient, Bucketing, Built, Compressor, Encoded, Entry, Error, Exchange, Law, Layout,
    Next, Policy, Properties, Reducer, Result, Round, Run, Scheme, SchemeConfig, Seat, Solo,
    Soundness, State, StepMessages, contract, mesh,
};

/// Three parameters that share `length` elements unevenly.
fn layout(length: usize) -> Layout {
    let parts = [("a", length / 7), ("b", length / 3), ("c", length - length / 7 - length / 3)];
    Layout::new(parts.map(|(name, length)| (name.to_string(), length))).unwrap()
}

/// The scheme on everything, from the first step on.
fn bare(bucketing: Bucketing) -> Policy {
    Policy {
        dense_below: Some(0),
        warmup_steps: Some(0),
        momentum_correction: Some(0.0),
        ..Policy::from(bucketing)
    }
}

fn echoing(scheme: &SchemeConfig, bucketing: Bucketing, length: usize) -> (Exchange, Echo) {
    let echo = Echo::default();
    let policy = bare(bucketing);
    let exchange = Exchange::new(scheme, policy, layout(length), 42, Box::new(echo.clone()));
    (exchange.unwrap(), echo)
}

/// One rank alone.
fn solo(scheme: &SchemeConfig, policy: impl Into<Policy>, length: usize) -> Result<Exchange> {
    Exchange::new(scheme, policy, layout(length), 0, Box::new(Solo))
}

/// The message about a gradient, empty where the scheme leaves it to be sent as it is; whether there is one.
fn message(scheme: &SchemeConfig, gradient: &[f32]) -> (Vec<u8>, bool) {
    let mut wire = Vec::new();
    let mut codec = scheme.codec(&seat(gradient.len())).expect("a codec");
    let encoded = codec.encode(gradient, 1, &mut wire);
    let told = encoded == Encoded::Message || !wire.is_empty();
    (wire, told)
}

fn decoded(scheme: &SchemeConfig, seat: &Seat, wire: &[u8]) -> Result<Vec<f32>> {
    let mut sum = vec![0.0; seat.length];
    scheme.codec(seat).expect("a codec").decode_add(wire, 0, 1.0, &mut sum)?;
    Ok(sum)
}

/// Laws 1 and 7: the bytes are what a step costs, none is more than dense, and fallbacks are counted.
#[test]
fn the_messages_bytes_are_its_cost_and_no_more_than_dense() {
    let too_large = |scheme: &SchemeConfig, bucket: usize, gradient: &[f32]| {
        let (mut wire, mut seat) = (Vec::new(), seat(gradient.len()));
        seat.bucket = bucket;
        let encoded = scheme.codec(&seat).expect("a codec").encode(gradient, 1, &mut wire);
        encoded == Encoded::Dense || wire.len() > size_of_val(gradient)
    };
    every_case(|scheme, gradient, case| {
        for bucketing in [Bucketing::Whole, Bucketing::Parameter] {
            // A seat of its own is of one parameter.
            let alone = bucketing == Bucketing::Parameter;
            let (mut exchange, echo) = echoing(scheme, bucketing, gradient.len());
            let traffic = exchange.allreduce(1, &mut gradient.to_vec()).expect(case);
            let sent = &echo.sent.lock().unwrap()[0];
            assert_eq!(traffic.wire_bytes, sent.len() as u64, "{case}");
            assert_eq!(traffic.parameters, gradient.len() as u64, "{case}");
            assert!(traffic.compression_ratio() <= 1.0, "{case}");
            let mut reader = Reader::new(sent);
            let (mut dense, mut fallbacks) = (0, 0);
            for (bucket, place) in exchange.buckets().iter().enumerate() {
                let frame = Frame::read(&mut reader).expect(case);
                let elements = &gradient[place.range.clone()];
                dense += (size_of_val(elements) + frame::HEADER_BYTES) as u64;
                if alone && !elements.is_empty() && too_large(scheme, bucket, elements) {
                    assert_eq!(frame.header.kind, Kind::Dense, "{case}");
                    fallbacks += 1;
                }
            }
            reader.finish().expect(case);
            assert_eq!(traffic.dense_bytes, dense, "{case}");
            assert!(traffic.wire_bytes <= dense, "{case}");
            assert!(!alone || traffic.dense_fallbacks == fallbacks, "{case}");
        }
    });
}

#[test]
fn law_3_broken_messages_are_refused_or_read_without_harm() {
    every_case(|scheme, gradient, case| {
        if gradient.len() > 1025 {
            return;
        }
        let (wire, told) = message(scheme, gradient);
        let seat = seat(gradient.len());
        let cuts = (0..wire.len()).step_by(1 + wire.len() / 40);
        for cut in cuts {
            assert!(decoded(scheme, &seat, &wire[..cut]).is_err(), "{case}, cut at {cut}");
        }
        let longer = [&wire[..], &[0]].concat();
        assert!(decoded(scheme, &seat, &longer).is_err() || !told, "{case}, a byte too many");
    });
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_leaves_the_residual() {
    let topk = topk(0.01);
    let (mut exchange, _) = echoing(&topk, Bucketing::Whole, 200);
    exchange.allreduce(1, &mut Random(1).laplaces(200)).unwrap();
    let saved = exchange.save();
    assert!(matches!(exchange.restore(&State::default()), Err(Error::State { .. })));
    let (longer, _) = echoing(&topk, Bucketing::Whole, 201);
    assert!(matches!(exchange.restore(&longer.save()), Err(Error::State { .. })));
    assert_eq!(exchange.save(), saved);
    let (mut dense, _) = echoing(&SchemeConfig::default(), Bucketing::Whole, 200);
    assert!(matches!(dense.restore(&saved), Err(Error::State { .. })));
    let (mut other_buckets, _) = echoing(&topk, Bucketing::Parameter, 200);
    other_buckets.restore(&saved).unwrap();
    assert_eq!(other_buckets.residual(), exchange.residual());
}

#[test]
fn a_residual_that_overflows_is_named_as_such() {
    let mut exchange = solo(&topk(0.01), Bucketing::Whole, 700).unwrap();
    exchange.allreduce(1, &mut [f32::MAX; 700]).unwrap();
    let residual = exchange.residual().unwrap().to_vec();
    let error = exchange.allreduce(2, &mut [f32::MAX; 700]).unwrap_err();
    let (corrected, parameter) = (true, "a".to_string());
    assert_eq!(error, Error::NonFinite { rank: 0, step: 2, corrected, parameter, index: 7 });
    assert_eq!(exchange.residual().unwrap(), residual);
}

/// DQ-SGD stretches its bits over the run: what it sends says which length it was given.
#[test]
fn a_scheme_is_told_the_length_of_the_run() {
    let bytes = |horizon: Option<u64>, run: Run| -> Vec<u64> {
        let config = gradwire_exchange::schemes::dqsgd::Config {
            horizon,
            gap: Some(5),
            window: Some(5),
            ..Default::default()
        };
        let scheme = SchemeConfig::Dqsgd(config);
        let layout = layout(700);
        let mut exchange =
            Exchange::new(&scheme, Bucketing::Whole, layout, run, Box::new(Solo)).unwrap();
        let step = |step: u64| {
            let mut gradient: Vec<f32> = (0..700).map(|i| (i as f32).sin()).collect();
            exchange.allreduce(step, &mut gradient).unwrap().wire_bytes
        };
        (1..=60).map(step).collect()
    };
    let run = Run { seed: 3, steps: Some(60) };
    assert_eq!(bytes(None, run), bytes(Some(60), Run::from(3)));
    assert_ne!(bytes(None, run), bytes(None, Run::from(3)));
    assert_eq!(bytes(Some(90), run), bytes(Some(90), Run::from(3)), "what is set counts");
}

/// Small parameters and the first steps cross as they are, everything else compressed, whatever
/// lies between what; nothing is left pending of what crossed as it is.
#[test]
fn small_parameters_and_first_steps_are_sent_as_they_are() {
    let names = ["1.conv", "2.norm", "3.conv", "4.norm"];
    let lengths = [400, 8, 300, 12];
    let layout = Layout::new(names.iter().map(ToString::to_string).zip(lengths)).unwrap();
    let policy = Policy {
        dense_below: Some(100),
        warmup_steps: Some(2),
        measure_every: Some(1),
        ..Policy::from(Bucketing::Whole)
    };
    let echo = Echo::default();
    let end = Box::new(echo.clone());
    let mut exchange = Exchange::new(&topk(0.1), policy, layout, 42, end).unwrap();
    for step in 1..=3 {
        let gradient = Random(step).laplaces(720);
        let mut mean = gradient.clone();
        let traffic = exchange.allreduce(step, &mut mean).unwrap();
        // The small parameters lie behind the others.
        let small = |i: usize| i >= 700;
        let kept = (0..720).filter(|i| mean[*i] == gradient[*i] && !small(*i)).count();
        assert!((0..720).filter(|i| small(*i)).all(|i| mean[i] == gradient[i]), "step {step}");
        let residual = exchange.residual().unwrap();
        assert!((0..720).filter(|i| small(*i)).all(|i| residual[i] == 0.0), "step {step}");
        if step < 3 {
            assert_eq!((kept, traffic.wire_bytes), (700, traffic.dense_bytes), "step {step}");
            assert!(traffic.gauge("compression_error").is_none());
        } else {
            assert_eq!(kept, 70);
            let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
                values.map(|value| f64::from(value).powi(2)).sum()
            };
            let whole = norm(&mut (0..720).filter(|i| !small(*i)).map(|i| gradient[i]));
            let error = norm(&mut residual.iter().copied()) / whole;
            assert!((traffic.gauge("compression_error").unwrap() - error).abs() < 1e-6);
        }
    }
    let sent = &echo.sent.lock().unwrap()[2];
    let mut reader = Reader::new(sent);
    let kinds = [0, 1].map(|_| Frame::read(&mut reader).unwrap().header.kind);
    assert_eq!(kinds, [Kind::Compressed, Kind::Dense]);
}

/// Lin et al.'s momentum correction at a ratio of 1 is momentum SGD without masking, and plain
/// SGD with it.
#[test]
fn momentum_correction_of_a_full_message_is_momentum() {
    // Short enough to be sent compressed although everything is.
    let all = SchemeConfig::Topk(gradwire_exchange::schemes::topk::Config {
        ratio: 1.0.into(),
        values: Format::F16.into(),
        ..Default::default()
    });
    let policy = |masking| Policy {
        momentum_correction: Some(0.5),
        momentum_masking: Some(masking),
        ..bare(Bucketing::Parameter)
    };
    for masking in [false, true] {
        let layout = layout(70);
        let mut exchange =
            Exchange::new(&all, policy(masking), layout, 0, Box::new(Echo::default())).unwrap();
        let eighths = |value: f32| (8.0 * value).round() / 8.0;
        let gradient: Vec<f32> = Random(1).laplaces(70).into_iter().map(eighths).collect();
        for factor in [1.0, 1.5, 1.75] {
            let mut mean = gradient.clone();
            exchange.allreduce(1, &mut mean).unwrap();
            let factor = if masking { 1.0 } else { factor };
            let expected: Vec<f32> = gradient.iter().map(|value| value * factor).collect();
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
            assert!(mean.iter().zip(&expected).all(near), "masking {masking}, factor {factor}");
        }
        let state = exchange.save();
        let mut other = solo(&all, policy(masking), 70).unwrap();
        other.restore(&state).unwrap();
        assert_eq!(other.save(), state);
        let (mut without, _) = echoing(&all, Bucketing::Parameter, 70);
        assert!(matches!(without.restore(&state), Err(Error::State { .. })));
    }
}

/// Feedback around a scheme whose variance it would feed back is refused, unless forced.
#[test]
fn unsound_feedback_needs_to_be_forced() {
    let unsound = SchemeConfig::Qsgd(gradwire_exchange::schemes::qsgd::Config {
        feedback: true,
        ..Default::default()
    });
    let build = |force| solo(&unsound, Policy { force, ..bare(Bucketing::Whole) }, 70);
    let refused = build(false).err().unwrap();
    assert!(matches!(refused, Error::Unsound { scheme: "qsgd", .. }), "{refused}");
    assert!(refused.to_string().contains("policy's `force`"), "{refused}");
    let mut forced = build(true).unwrap();
    forced.allreduce(1, &mut Random(1).laplaces(70)).unwrap();
    assert!(forced.residual().unwrap().iter().any(|value| *value != 0.0));
}

/// Local clipping bounds each rank's gradient by the limit over √N.
#[test]
fn local_clipping_bounds_what_is_sent() {
    for scheme in [SchemeConfig::default(), topk(1.0)] {
        let policy = Policy { clip_norm: Some(2.0), ..bare(Bucketing::Whole) };
        let end = Box::<Echo>::default();
        let mut exchange = Exchange::new(&scheme, policy.clone(), layout(70), 0, end).unwrap();
        let mut mean = Random(1).laplaces(70);
        let direction = mean.clone();
        exchange.allreduce(1, &mut mean).unwrap();
        let norm = mean.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!((norm - 2f64.sqrt()).abs() < 1e-5, "{norm}");
        assert!((mean[3] / mean[5] - direction[3] / direction[5]).abs() < 1e-5);

        let mut alone = solo(&scheme, policy, 70).unwrap();
        let mut mean = direction.clone();
        alone.allreduce(1, &mut mean).unwrap();
        let norm = mean.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!((norm - 2.0).abs() < 1e-5, "one rank alone: {norm}");
    }
}

#[test]
fn settings_without_meaning_are_refused_before_anything_is_built() {
    let nothing = solo(&topk(0.0), Bucketing::Whole, 9).err();
    assert!(matches!(nothing, Some(Error::Config { key: "ratio", .. })));
    let dense = SchemeConfig::default();
    for (bucketing, length) in [(Bucketing::Bytes(1), 9), (Bucketing::Whole, 1 << 30)] {
        let error = solo(&dense, bucketing, length).err().unwrap();
        assert!(error.to_string().starts_with("bucketing: "), "{error}");
    }
    assert!(solo(&dense, Bucketing::Parameter, 1 << 29).is_ok());
}

/// The same laws as a user's scheme is held to, for every scheme of ours, those of several rounds too.
#[test]
fn every_scheme_keeps_the_public_contract() {
    for scheme in SchemeConfig::specimens() {
        if let Err(violation) = contract::check(&scheme) {
            panic!("{scheme:?}: {violation}");
        }
    }
}

/// A scheme with one flaw; all but the first are such that no step of a single rank shows them.
#[derive(Clone, Copy, Debug)]
enum Flawed {
    /// It keeps the half of what has been sent.
    Lossy,
    /// Every rank takes what rank 0 says for the mean.
    Deaf,
    /// It says nothing, and calls that right on average.
    Silent,
    /// Encoding changes what it saves, though the step may be refused.
    Hasty,
    /// It cannot read what it learns from the messages of step 2.
    Unteachable,
}

impl Scheme for Flawed {
    fn properties(&self) -> Properties {
        Properties {
            name: "flawed",
            line: "has a flaw",
            paper: "",
            law: if matches!(self, Flawed::Silent) { Law::Unbiased } else { Law::Exact },
            soundness: Soundness::Sound,
            feedback: matches!(self, Flawed::Lossy),
        }
    }

    fn build(&self, _seat: &Seat) -> Built {
        match self {
            Flawed::Lossy => Built::Reducer(Box::new(Lossy)),
            Flawed::Deaf => Built::Reducer(Box::new(Deaf)),
            Flawed::Silent | Flawed::Hasty | Flawed::Unteachable => {
                Built::Codec(Box::new(Codec { flaw: *self, steps: 0 }))
            }
        }
    }
}

struct Lossy;

impl Reducer for Lossy {
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next> {
        if round.number() == 0 {
            round.allreduce(bucket.due());
            return Ok(Next::Again);
        }
        let (mean, unsent) = bucket.parts_mut();
        mean.copy_from_slice(round.mean());
        unsent.unwrap().iter_mut().for_each(|left| *left /= 2.0);
        Ok(Next::Done)
    }
}

struct Deaf;

impl Reducer for Deaf {
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next> {
        if round.number() == 0 {
            let bytes: Vec<u8> = bucket.due().iter().flat_map(|due| due.to_le_bytes()).collect();
            round.allgather(&bytes);
            return Ok(Next::Again);
        }
        let first = round.messages().next().unwrap().as_chunks().0;
        let values = bucket.parts_mut().0.iter_mut().zip(first);
        values.for_each(|(mean, bytes)| *mean = f32::from_le_bytes(*bytes));
        Ok(Next::Done)
    }
}

struct Codec {
    flaw: Flawed,
    steps: u64,
}

impl Compressor for Codec {
    fn encode(&mut self, gradient: &[f32], _step: u64, out: &mut Vec<u8>) -> Encoded {
        self.steps += u64::from(matches!(self.flaw, Flawed::Hasty));
        if !matches!(self.flaw, Flawed::Silent) {
            out.extend(gradient.iter().flat_map(|value| value.to_le_bytes()));
        }
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let mut reader = Reader::new(wire);
        if !matches!(self.flaw, Flawed::Silent) {
            for sum in sum {
                *sum += weight * f32::from_bits(reader.u32()?);
            }
        }
        Ok(reader.finish()?)
    }

    fn learn_from_messages(&mut self, step: &StepMessages<'_>) -> Result<()> {
        if matches!(self.flaw, Flawed::Unteachable) && step.step == 2 {
            Reader::new(&[]).u32()?;
        }
        Ok(())
    }

    fn save(&self, state: &mut State) {
        state.insert("steps", Entry::U64(vec![self.steps]));
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.steps = state.u64s("steps", 1)?[0];
        Ok(())
    }
}

#[test]
fn the_public_contract_sees_what_is_wrong_with_a_scheme() {
    for (flaw, seen) in [
        (Flawed::Lossy, "what was given"),
        (Flawed::Deaf, "of 3 alone has"),
        (Flawed::Silent, "along the gradient it misses"),
        (Flawed::Hasty, "of which the second refuses a step"),
    ] {
        let violation = contract::check(&flaw).unwrap_err().to_string();
        assert!(violation.contains(seen), "{flaw:?}: {violation}");
    }
}

/// What is learnt from a message is read only after the mean has been taken; a step that fails there
/// leaves residual and compressors as they were, too.
#[test]
fn a_step_whose_learning_fails_leaves_no_trace() {
    let config = optquant::Config { lambda: Some(2.0), feedback: true, ..Default::default() };
    let (scheme, policy) = (SchemeConfig::Optquant(config), bare(Bucketing::Parameter));
    // The other rank's last number, which is learnt from, is none.
    let spoil = |payload: &mut Vec<u8>| {
        let at = payload.len() - 4;
        payload[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    let end = Echo { spoil: Some(spoil), ..Echo::default() };
    let mut exchange = Exchange::new(&scheme, policy, layout(50_000), 42, Box::new(end)).unwrap();
    let before = exchange.save();
    let error = exchange.allreduce(1, &mut Random(1).laplaces(50_000)).unwrap_err();
    assert!(matches!(error, Error::Wire(_) | Error::Message { .. }), "{error}");
    assert_eq!(exchange.save(), before);
    assert!(exchange.residual().unwrap().iter().all(|left| *left == 0.0));
}

/// Where a server or the owners of shards learn from what they send back, no rank is left with a step that they could
/// not learn from.
#[test]
fn a_step_from_which_an_owner_cannot_learn_fails_on_every_rank() {
    for wiring in [COMPRESSED, OWNED] {
        each_rank(mesh(3, PATIENT), |rank, end| {
            let (policy, flaw) = (bare(Bucketing::Parameter), &Flawed::Unteachable);
            let mut exchange = Exchange::with(flaw, wiring, policy, layout(900), 42, end).unwrap();
            let gradient = |step: u64| Random(10 * step + rank as u64).laplaces(900);
            exchange.allreduce(1, &mut gradient(1)).unwrap();
            let before = exchange.save();
            let error = exchange.allreduce(2, &mut gradient(2)).unwrap_err();
            assert!(matches!(error, Error::Wire(_) | Error::Aborted { .. }), "{wiring:?}: {error}");
            assert_eq!(exchange.save(), before, "{wiring:?}, rank {rank}");
        });
    }
}
