//! `gradwire advise` from outside.

use crate::common::{Program, number, words};
use serde_json::Value;

const TINY: &str = "advise --dataset synthetic-ag-news --model fasttext --workers 2 --steps 3 \
                    --set train.batch=4 --json";

#[test]
fn on_a_slow_link_few_bytes_win_and_on_a_fast_one_nothing_is_won() {
    let program = Program::new();
    let arguments = [&words(TINY)[..], &["--links", "0.1mbit,100gbit", "--compute", "1"]].concat();
    let rows = program.rows(&arguments);
    assert!(rows.len() >= 20, "{} schemes", rows.len());
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let of_dense = |name: &str, link: usize| number(&row(name)["links"][link], "of_dense");
    assert!(of_dense("topk", 0) > 3.0, "{}", row("topk"));
    for scheme in &rows {
        let gain = number(&scheme["links"][1], "of_dense");
        assert!(gain < 1.02, "a second of computing hides all: {scheme}");
        assert!(number(scheme, "encode") >= 0.0 && number(scheme, "error").is_finite());
    }
    assert_eq!(row("dense")["risk"], "negligible");
    let recommended =
        |link: usize| rows.iter().filter(move |row| row["links"][link]["recommended"] == true);
    assert_eq!((recommended(0).count(), recommended(1).count()), (1, 0));
    assert!(recommended(0).all(|row| row["risk"] != "high"), "{rows:?}");
    assert!(number(row("topk"), "bits_per_parameter") < 1.0);
}

/// Bits are those of a parameter and a step: an exchange every four steps sends a quarter, and averaged momenta as much as
/// weights.
#[test]
fn bits_are_counted_by_parameter_and_step_of_the_optimizer() {
    let program = Program::new();
    let of = |more: &str| {
        let against = ["--against", "topk", "--links", "1gbit", "--compute", "1"];
        let rows = program.rows(&[&words(TINY)[..], &against, &words(more)].concat());
        let row = |name| rows.iter().find(|row| row["name"] == name).unwrap();
        [row("dense"), row("topk")].map(|row| number(row, "bits_per_parameter"))
    };
    let [dense, topk] = of("--set local.steps=1");
    let [dense_of_four, topk_of_four] = of("--set local.steps=4");
    assert!((dense, dense_of_four) == (32.0, 8.0), "{dense} {dense_of_four}");
    assert!((4.0 * topk_of_four / topk - 1.0).abs() < 0.02, "{topk} {topk_of_four}");
    let averaged = of("--set local.steps=4 --set local.state=averaged --set optimizer=sgd");
    assert!((averaged[0] - 16.0).abs() < 1e-9 && (averaged[1] - topk_of_four - 8.0).abs() < 0.01);
}

/// Under `onebit-adam` momenta are compressed, and schemes that have one of their own are left out with the reason.
#[test]
fn an_optimizer_that_owns_its_exchange_brings_its_feedback() {
    let program = Program::new();
    let rows = |optimizer: &str| {
        let arguments = ["--links", "1gbit", "--compute", "1", "--set", optimizer];
        program.rows(&[&words(TINY)[..], &arguments].concat())
    };
    let error =
        |rows: &[Value]| number(rows.iter().find(|row| row["name"] == "topk").unwrap(), "error");
    let (plain, owned) = (rows("optimizer=adamw"), rows("optimizer=onebit-adam"));
    assert!(plain.iter().all(|row| row.get("left_out").is_none()), "{plain:?}");
    let left_out =
        owned.iter().filter_map(|row| Some((row["scheme"].as_str()?, row["left_out"].as_str()?)));
    let left_out: Vec<_> = left_out.collect();
    let [(demo, _), (dgc, why)] = left_out[..] else { panic!("{left_out:?}") };
    assert!(demo.starts_with("demo") && dgc.starts_with("dgc"), "{left_out:?}");
    assert!(why.contains("momentum_correction = 0"), "{why}");
    assert_eq!(owned.len(), plain.len());
    // A momentum changes less from step to step than a gradient does, so that top-k leaves less of it behind.
    assert!(error(&owned) < 0.5 * error(&plain), "{} {}", error(&owned), error(&plain));
}

#[test]
fn what_means_nothing_is_refused() {
    let program = Program::new();
    for (more, says) in [
        (["--links", "0mbit"], "0mbit"),
        (["--links", "token-ring"], "token-ring"),
        (["--against", "topp"], "topk"),
        (["--compute", "0"], "--compute"),
    ] {
        program.refuses(&[&words(TINY)[..], &more].concat(), 2, &[says]);
    }
}
