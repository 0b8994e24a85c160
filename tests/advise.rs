//! `gradwire advise` from outside.

use crate::common::{Program, number, words};

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
