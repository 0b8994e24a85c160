//! Break-even bandwidths, risks, a server's time, and what shards send back.

use super::*;
use gradwire::recipe::Source;
use gradwire::recipe::local::Outer;
use gradwire_exchange::{Policy, mesh};

fn measured(wire_bytes: f64, encode: f64) -> SchemeCost {
    let leg = MeasuredLeg {
        operation: Operation::Messages,
        encode,
        decode: 0.0,
        aggregate: 0.0,
        up: wire_bytes,
        down: 0.0,
        local: [0.0; 2],
    };
    SchemeCost {
        scheme: "x".into(),
        name: "x",
        encode,
        decode: 0.0,
        aggregate: 0.0,
        wire_bytes,
        downlink_bytes: 0.0,
        bits_per_parameter: 1.0,
        error: 0.5,
        risk: Risk::Moderate,
        every: 1,
        legs: vec![leg],
    }
}

fn first_look() -> Recipe {
    let source = Source { recipe: Some("first-look".into()), ..Source::default() };
    source.load().unwrap()
}

/// A link that delays nothing.
fn steady(bandwidth: f64) -> Link {
    let mut link = Link::with_bandwidth(bandwidth);
    (link.latency, link.jitter) = (0.0, 0.0);
    link
}

#[test]
fn the_break_even_bandwidth_is_where_the_saved_bytes_cost_what_encoding_does() {
    let mut recipe = first_look();
    recipe.workers = 2;
    let compute = Compute::default();
    let link = steady(1e9);
    let (dense, ours) = (measured(1e7, 0.0), measured(1e6, 0.01));
    let even = break_even(&recipe, &compute, (&ours, &dense), &link).unwrap();
    // Two ranks: one hop of a message each way at once. Encoding takes 10 ms, which may be off by a quarter.
    let saved = link.wire_bytes(10_000_000) - link.wire_bytes(1_000_000);
    let expected = saved * 8.0 / (0.01 * (1.0 + NOISE));
    let BreakEven::Below(found) = even else { panic!("{even:?}") };
    assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
    let of = |ours| break_even(&recipe, &compute, (&ours, &dense), &link).unwrap();
    assert_eq!(of(measured(2e7, 0.01)), BreakEven::Never);
    // As many bytes in less time are no gain of compression.
    assert_eq!(of(measured(1e7, -1e-3)), BreakEven::Never);
    assert_eq!(of(measured(1e6, -1e-3)), BreakEven::Always);
}

#[test]
fn a_step_of_local_steps_has_its_share_of_an_exchange() {
    let recipe = first_look();
    let compute = Compute { before: 1e-3, backward: 2e-3, after: 1e-3 };
    let link = steady(1e8);
    let of = |every| {
        let cost = SchemeCost { every, ..measured(1e6, 0.01) };
        step_seconds(&recipe, &compute, &cost, &link).unwrap() - compute.seconds()
    };
    // 60 is no multiple of the steps that are clocked; of the longest round most steps are not clocked.
    for every in [4, 60, 1_000_000] {
        let share = of(1) / every as f64;
        assert!((of(every) / share - 1.0).abs() < 1e-5, "{every}: {} {share}", of(every));
    }
}

/// With a latency every fragment costs one; what it sends is its part.
#[test]
fn a_round_in_fragments_pays_for_each_of_its_exchanges() {
    let mut recipe = first_look();
    let cost = SchemeCost { every: 12, ..measured(1e6, 0.01) };
    let mut of = |fragments, latency| {
        recipe.outer = Some(Outer { fragments, ..Default::default() });
        let mut link = steady(1e8);
        link.latency = latency;
        12.0 * step_seconds(&recipe, &Compute::default(), &cost, &link).unwrap()
    };
    let mut beyond = |fragments| of(fragments, 0.05) - of(fragments, 0.0);
    let one = beyond(1);
    for fragments in [2, 3, 5, 12] {
        let ratio = beyond(fragments) / one;
        assert!((ratio - fragments as f64).abs() < 1e-2, "{fragments}: {ratio}");
    }
    assert!((of(5, 0.0) / of(1, 0.0) - 1.0).abs() < 1e-2);
}

/// The steps beside an exchange hide their own time of it, each time but the last, which nothing waits for.
#[test]
fn a_delayed_exchange_costs_what_the_steps_beside_it_do_not_hide() {
    let mut recipe = first_look();
    let compute = Compute { before: 1e-3, backward: 2e-3, after: 1e-3 };
    let cost = SchemeCost { every: 4, ..measured(1e6, 0.01) };
    let mut of = |bandwidth, delay| {
        recipe.outer = Some(Outer { delay, ..Default::default() });
        let link = steady(bandwidth);
        step_seconds(&recipe, &compute, &cost, &link).unwrap() - compute.seconds()
    };
    let (slow, exchanges) = (1e9, CLOCKED.next_multiple_of(4) as f64 / 4.0);
    let whole = 4.0 * of(slow, 0);
    assert!(whole > 3.0 * compute.seconds(), "{whole}");
    for delay in 1..4 {
        let left = whole - delay as f64 * compute.seconds();
        let expected = left * (exchanges - 1.0) / exchanges / 4.0;
        let found = of(slow, delay);
        assert!((found / expected - 1.0).abs() < 1e-6, "{delay}: {found} {expected}");
    }
    let hidden = SchemeCost { every: 4, ..measured(1e3, 0.0) };
    assert!(hidden.wire_bytes < cost.wire_bytes && of(1e12, 3).abs() < 1e-9);
}

/// Of four ranks in pairs the first of each sends: all that the ranks count together, half as bytes of one.
#[test]
fn pairs_average_on_their_own_link_and_send_one_message() {
    let mut leg = Leg::default();
    (leg.wire_bytes, leg.local_bytes) = (50_000, 200_000);
    let mut traffic = Traffic::default();
    traffic.legs.push(leg);
    let mut recipe = first_look();
    recipe.exchange.topology = Topology::TwoLevel { group: 2 };
    let legs = measured_legs(&[traffic], pattern_of(&recipe).unwrap(), 1.0);
    let cost = SchemeCost { legs, ..measured(0.0, 0.0) };
    let of = |bandwidth, local| {
        let mut link = steady(bandwidth);
        (link.header, link.local) = (0, local);
        step_seconds(&recipe, &Compute::default(), &cost, &link).unwrap()
    };
    // 100,000 bytes to the other pair, 200,000 within.
    for (bandwidth, local, seconds) in [(1e6, 1e15, 0.8), (1e15, 1e6, 1.6), (1e6, 1e6, 2.4)] {
        let found = of(bandwidth, local);
        assert!((found / seconds - 1.0).abs() < 1e-3, "{bandwidth} {local}: {found} {seconds}");
    }
}

#[test]
fn what_is_recommended_is_sound_and_does_not_change_with_the_noise() {
    let cost = |wire_bytes, encode, risk| SchemeCost { risk, ..measured(wire_bytes, encode) };
    let all = [
        cost(100.0, 0.0, Risk::Negligible),
        cost(1.0, 0.001, Risk::High),
        cost(10.0, 0.004, Risk::Moderate),
        cost(12.0, 0.004, Risk::Moderate),
        cost(50.0, 0.004, Risk::Low),
        cost(100.0, 0.0, Risk::Negligible),
    ];
    let of = |seconds: [f64; 6], most| recommended(&all, &seconds, 0, most);
    // The second is riskier than a recommendation may be; the last sends as much as dense.
    assert_eq!(of([0.1, 0.01, 0.0301, 0.03, 0.05, 0.02], Risk::Moderate), [2, 3]);
    assert_eq!(of([0.1, 0.01, 0.0299, 0.03, 0.05, 0.02], Risk::Moderate), [2, 3]);
    assert_eq!(of([0.1, 0.01, 0.03, 0.03, 0.05, 0.02], Risk::Low), [4]);
    // A gain of a millisecond by a scheme that takes four is noise.
    assert_eq!(of([0.02, 0.02, 0.0191, 0.0191, 0.0191, 0.019], Risk::Moderate), [0; 0]);
}

/// Of four ranks the first reports what the server took; eight send it twice as much.
#[test]
fn a_servers_time_is_charged_and_grows_with_the_ranks() {
    let topology = Topology::Server;
    let layout = Layout::new([("w".to_string(), 50_000)]).unwrap();
    let ends = mesh(4, Duration::from_secs(60));
    let counted: Vec<Traffic> = thread::scope(|scope| {
        let on_rank = |end| {
            let (scheme, layout) = (SchemeConfig::default(), layout.clone());
            scope.spawn(move || {
                let mut exchange =
                    Exchange::with(&scheme, topology, Policy::default(), layout, 1, end)?;
                exchange.allreduce(1, &mut vec![1.0; 50_000][..])
            })
        };
        let threads: Vec<_> = ends.into_iter().map(on_rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    let reported = counted[0].legs[0].aggregate_cpu.as_secs_f64();
    assert!(reported > 0.0);
    let legs = |more| measured_legs(&counted, Pattern::Server, more);
    assert_eq!(legs(1.0)[0].aggregate, reported);
    assert_eq!(legs(2.0)[0].aggregate, 2.0 * reported);
    assert_eq!(legs(2.0)[0].decode, legs(1.0)[0].decode);
}

/// Of eight ranks each passes on an eighth of the mean, of 64 a 64th.
#[test]
fn what_shards_send_back_shrinks_with_the_ranks() {
    // Of eight ranks: 80,000 values as f16, and an eighth of their mean as f32.
    let mut leg = Leg::default();
    leg.operation = Operation::ReduceScatter;
    (leg.wire_bytes, leg.downlink_bytes) = (160_000, 40_000);
    let mut traffic = Traffic::default();
    traffic.legs.push(leg);
    let legs = |more| measured_legs(std::slice::from_ref(&traffic), Pattern::RingAllgather, more);
    assert_eq!((legs(1.0)[0].down, legs(8.0)[0].down), (40_000.0, 5_000.0));

    let mut recipe = first_look();
    let mut link = steady(1e6);
    link.header = 0;
    for (workers, more, seconds) in [
        // 7 shares of 20,000 bytes, then 7 of 40,000.
        (8, 1.0, 7.0 * (0.16 + 0.32)),
        // 63 shares of 2,500 bytes, then 63 of 5,000.
        (64, 8.0, 63.0 * (0.02 + 0.04)),
    ] {
        recipe.workers = workers;
        let ours = SchemeCost { legs: legs(more), ..measured(0.0, 0.0) };
        let found = step_seconds(&recipe, &Compute::default(), &ours, &link).unwrap();
        assert!((found - seconds).abs() < 1e-6, "{workers} workers: {found} {seconds}");
    }

    // Of a group the first alone sends, and all have what comes back: of four groups a fourth of the mean, of eight an eighth.
    let mut silent = traffic.clone();
    silent.legs[0].wire_bytes = 0;
    let pattern = Pattern::TwoLevel { group: 2, between: Operation::Messages };
    for (more, back) in [(1.0, 40_000.0), (2.0, 20_000.0)] {
        let legs = measured_legs(&[traffic.clone(), silent.clone()], pattern, more);
        assert_eq!((legs[0].up, legs[0].down, legs[0].decode), (160_000.0, back, 0.0));
    }
}

#[test]
fn what_chooses_without_looking_at_the_gradient_is_known() {
    let of = |text: &str| is_blind(&gradwire::recipe::scheme_of(text).unwrap());
    let falling = "{ start = 0.9, end = 0.1, steps = 100 }";
    for (ratio, blind) in
        [("0.01", true), ("0.1", true), ("0.4", true), ("0.5", false), (falling, true)]
    {
        assert_eq!(of(&format!("{{ kind = 'randomk', ratio = {ratio} }}")), blind, "{ratio}");
    }
    let others = SchemeConfig::specimens();
    let mut others = others.iter().filter(|scheme| scheme.about().name != "randomk");
    assert_eq!(others.find(|scheme| is_blind(scheme)), None);
}

#[test]
fn risks_grow_with_the_error_and_shrink_with_feedback() {
    let feedback = |error| Risk::new(error, true, Law::Contraction, 4);
    assert_eq!(feedback(0.0), Risk::Negligible);
    assert_eq!(feedback(0.5), Risk::Low);
    assert_eq!(feedback(0.95), Risk::Moderate);
    assert_eq!(feedback(0.995), Risk::High);
    assert_eq!(Risk::new(0.5, false, Law::Unbiased, 4), Risk::Low);
    assert_eq!(Risk::new(30.0, false, Law::Unbiased, 4), Risk::High);
    assert!(Risk::new(0.6, false, Law::Biased, 4) > Risk::new(0.05, false, Law::Biased, 4));
}
