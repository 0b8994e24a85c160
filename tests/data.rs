//! Data of one's own: named by its path, looked at, trained on, gone on with elsewhere, checked.

use crate::common::{Outcome, Program, argument, only_run, says, words};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A table of sixty reviews in six classes, twenty words.
fn reviews(file: &Path) {
    let row = |i: usize| {
        format!(
            "\"word {}, and no. {}\",{}\n",
            i % 6,
            i % 19,
            ["a", "b", "c", "d", "e", "f"][i % 6]
        )
    };
    let rows: String = (0..60).map(row).collect();
    fs::write(file, format!("review,stars\n{rows}")).unwrap();
}

/// IDX files of grey images of 28 × 28 pixels, brighter from class to class, and of the last to test on this label.
fn grey(folder: &Path, last: u8) {
    fs::create_dir(folder).unwrap();
    for (name, count, base) in [("train", 24u8, 0), ("t10k", 6, 50)] {
        let mut labels: Vec<u8> = (0..count).map(|i| i % 3).collect();
        if name == "t10k" {
            labels[5] = last;
        }
        let salt = |i: u8| (0..784u32).map(move |at| base + i % 3 * 60 + i + (at % 7) as u8);
        let images: Vec<u8> = (0..count).flat_map(salt).collect();
        let file = |what: &str, shape: &[u8], values: Vec<u8>| {
            let sides = shape.iter().flat_map(|side| u32::from(*side).to_be_bytes());
            let head = [0, 0, 8, shape.len() as u8].into_iter().chain(sides);
            let contents: Vec<u8> = head.chain(values).collect();
            fs::write(folder.join(format!("{name}-{what}-ubyte")), contents).unwrap();
        };
        file("images-idx3", &[count, 28, 28], images);
        file("labels-idx1", &[count], labels);
    }
}

#[test]
fn a_table_is_trained_on_by_its_path_and_gone_on_with_elsewhere_to_the_same_bits() {
    let program = Program::new();
    reviews(&program.path("reviews.csv"));
    let line = "train --data reviews.csv --quiet --batch 4 --set schedule.kind=constant --set record.every=1 \
                --set dataset.minimum_count=1 --set checkpoint.every_steps=4";
    let train = |steps: &'static str, out: &'static str| {
        let (_, said) =
            program.outputs(&[&words(line)[..], &["--steps", steps, "--out", out]].concat());
        says(
            &said,
            &[
                "reviews.csv: a table: 60 texts in 6 classes; 6 for testing (text: review; label: stars)",
            ],
        );
        says(
            &said,
            &["model fasttext in the place of resnet20, which cannot read it: reads images"],
        );
        only_run(&program.path(out).join("fasttext-table-topk"))
    };
    let whole = Outcome::of(&train("6", "whole"));
    let run = train("4", "parted");
    fs::create_dir(program.path("else")).unwrap();
    fs::rename(program.path("reviews.csv"), program.path("else/reviews.csv")).unwrap();
    let again = ["train", "--quiet", "--resume", argument(&run), "--steps", "6"];
    program.refuses(&again, 1, &["cannot read reviews.csv"]);
    program.succeed(&[&again[..], &["--set", "dataset.file=else/reviews.csv"]].concat());
    whole.is_of(&run, "gone on with elsewhere");
    fs::create_dir(program.path("third")).unwrap();
    fs::rename(program.path("else/reviews.csv"), program.path("third/reviews.csv")).unwrap();
    says(&program.succeed(&["eval", argument(&run), "--dir", "third"]), &["right"]);
    says(&fs::read_to_string(run.join("provenance.json")).unwrap(), &["reviews.csv", "sha256"]);
}

#[test]
fn grey_images_are_trained_on_evaluated_swept_and_checked_by_their_path() {
    let program = Program::new();
    grey(&program.path("grey"), 2);
    let line = "train --data grey --quiet --steps 2 --batch 4 --workers 2 --name first";
    let (_, said) = program.outputs(&words(line));
    says(&said, &["grey: IDX files: 30 images of 28×28 grey in 3 classes; 6 for testing"]);
    let said = program.succeed(&["eval", "first"]);
    says(&said, &["of 6 right"]);
    fs::rename(program.path("grey"), program.path("moved")).unwrap();
    says(&program.succeed(&["eval", "first", "--dir", "moved"]), &["of 6 right"]);
    fs::rename(program.path("moved"), program.path("grey")).unwrap();
    let sweep =
        "sweep first-look --data grey --over scheme=dense,topk --seeds 1 --dry-run --epochs 1";
    says(&program.succeed(&words(sweep)), &["topk"]);
    let told = program.succeed(&["data", "verify", "grey"]);
    says(
        &told,
        &[
            "grey: images of 28×28 grey",
            "train-images-idx3-ubyte",
            "0 test samples are also training",
        ],
    );
    grey(&program.path("other"), 9);
    program.refuses(&words("data verify other"), 1, &["test sample 6", "\"9\" is not among"]);
}

#[test]
fn what_a_recipe_says_of_data_of_a_kind_stays_for_other_data_of_it() {
    let program = Program::new();
    reviews(&program.path("reviews.csv"));
    fs::write(program.path("play.txt"), "To be, or not to be. ".repeat(90)).unwrap();
    let recipe = "model = \"gpt\"\nscheme = \"dense\"\n[dataset]\nkind = \"text\"\nlength = 8\n[samples]\ntest_share = 0.25\n";
    fs::write(program.path("own.toml"), recipe).unwrap();
    let printed = |data: &str| program.succeed(&["train", "own.toml", "--data", data, "--dry-run"]);
    says(&printed("play.txt"), &["length = 8", "test_share = 0.25", "file = \"play.txt\""]);
    let other = printed("reviews.csv");
    says(&other, &["kind = \"table\"", "length = 64", "kind = \"fasttext\"", "test_share = 0.25"]);
}

#[test]
fn a_path_without_data_is_refused_before_anything_is_trained() {
    let program = Program::new();
    fs::create_dir(program.path("empty")).unwrap();
    fs::write(program.path("cifar-10-python.tar.gz"), "x").unwrap();
    for (line, part) in [
        ("train --data nowhere", "cannot read nowhere"),
        ("train --data empty", "holds no data that is known"),
        ("train --data cifar-10-python.tar.gz", "version for Python"),
        ("train --data empty --dataset cifar10", "cannot be used with"),
        ("train --data empty --resume last", "cannot be used with"),
    ] {
        program.refuses(&words(line), 2, &[part]);
    }
    let list = program.succeed(&["list", "datasets"]);
    says(&list, &["pictures", "arrays", "table"]);
    let keys: Value =
        serde_json::from_str(&program.succeed(&words("list keys dataset.table --json"))).unwrap();
    says(&keys.to_string(), &["dataset.test_file", "dataset.header"]);
    assert!(!program.path("runs").exists(), "nothing was started");
}
