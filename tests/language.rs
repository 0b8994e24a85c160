//! A text that is continued: trained, interrupted, evaluated, sampled.

use crate::common::{Outcome, Program, argument, entries, events, number, words};
use std::fs;

/// Twelve steps of a small gpt with dropout on a made-up text.
const TRAIN: &str = "train --quiet --workers 2 --dataset synthetic-text --set name=quick --scheme topk \
     --set model={kind=\"gpt\",dim=16,heads=2,layers=2,dropout=0.2} --set train.batch=2 \
     --set train.accumulate=2 --set train.max_steps=12 --set optimizer.momentum=0 \
     --set record.every=1 --set checkpoint.every_steps=5 --set checkpoint.keep_last=9";

#[test]
fn dropout_goes_on_bit_for_bit() {
    let program = Program::new();
    program.succeed(&words(TRAIN));
    let run = program.quick_run();
    let before = Outcome::of(&run);
    let from = &entries(&run.join("checkpoints"))[0];
    program.resume(from, &[]);
    before.is_of(&run, "gpt with dropout");
}

#[test]
fn a_run_tells_perplexity_and_bits_per_byte_and_continues_a_prompt() {
    let program = Program::new();
    let told = program
        .succeed(&words(TRAIN).into_iter().filter(|word| *word != "--quiet").collect::<Vec<_>>());
    assert!(told.contains("perplexity") && told.contains("bits per byte"), "{told}");
    let run = program.quick_run();
    let run = argument(&run);
    let epoch = events(run.as_ref(), "epoch").pop().unwrap();
    // The made-up text is ASCII, so that a token is a byte.
    let bits = number(&epoch, "test_loss") / std::f64::consts::LN_2;
    assert!((number(&epoch, "bits_per_byte") - bits).abs() < 1e-9);
    let evaluated = program.rows(&["eval", run, "--json"]).pop().unwrap();
    assert!((number(&evaluated, "bits_per_byte") - number(&epoch, "bits_per_byte")).abs() < 1e-5);

    let sample =
        |more: &[&str]| program.succeed(&[&["sample", run, "--tokens", "40"], more].concat());
    let text = sample(&["--prompt", "the "]);
    assert!(
        text.starts_with("the ") && text.trim_end_matches('\n').chars().count() >= 40,
        "{text}"
    );
    assert_eq!(text, sample(&["--prompt", "the "]));
    assert_ne!(text, sample(&["--prompt", "the ", "--seed", "2"]));
    let likeliest = ["--temperature", "0", "--prompt", "t"];
    assert_eq!(sample(&likeliest), sample(&[&likeliest[..], &["--seed", "2"]].concat()));
    program.refuses(&["sample", run, "--prompt", "ж"], 1, &["'ж'", "dataset.tokens"]);
    program.refuses(&["sample", run, "--temperature=-1"], 1, &["temperature", "0.8"]);
    // A vocabulary made anew may number words otherwise.
    fs::create_dir(program.path("alone")).unwrap();
    let model = format!("{run}/best/model.safetensors");
    fs::copy(model, program.path("alone/model.safetensors")).unwrap();
    program.refuses(&["eval", "alone"], 1, &["tokenizer.json", "alone/model.safetensors"]);
}

#[test]
fn other_models_and_texts_without_tokens_are_refused() {
    let program = Program::new();
    let run = program.train(&[]);
    program.refuses(&["sample", argument(&run)], 1, &["no text to continue", "gpt"]);
    program.refuses(&["train", "--dataset", "text"], 2, &["model", "gpt"]);
    let program = Program::new();
    let text = program.path("text.txt");
    fs::write(&text, "to be or not to be, that is the question".repeat(30)).unwrap();
    let file = format!("dataset.file={}", text.display());
    program.succeed(&[&words(TRAIN)[..], &["--dataset", "text", "--set", &file]].concat());
    fs::remove_file(program.quick_run().join("tokenizer.json")).unwrap();
    let run = program.quick_run();
    program.refuses(&["sample", argument(&run)], 1, &["no tokenizer.json"]);
}

/// A run goes on with all the files that it was begun with, in their places, and with its own numbers of tokens.
#[test]
fn a_run_goes_on_with_its_own_texts_and_tokens() {
    let program = Program::new();
    let write = |name: &str, text: &str| {
        let path = program.path(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let file = write("train.txt", &"to be or not to be, that is the question".repeat(30));
    let tested = write("test.txt", &"that is not the question, to be".repeat(30));
    let set = |key: &str, path: &str| format!("dataset.{key}={path}");
    let of = |file: &str, tested: &str| [set("file", file), set("test_file", tested)];
    let args = |more: &[String]| -> Vec<String> {
        more.iter().flat_map(|one| ["--set".to_string(), one.clone()]).collect()
    };
    let train = |more: &[String]| {
        let more = args(more);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        program.succeed(&[&words(TRAIN)[..], &["--dataset", "text"], &more].concat());
        program.quick_run()
    };
    let refused = |run: &std::path::Path, more: &[String], said: &[&str]| {
        let more = args(more);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let line = [&["train", "--quiet", "--resume", argument(run)], &more[..]].concat();
        program.refuses(&line, 1, said);
    };
    let run = train(&of(&file, &tested));
    let from = entries(&run.join("checkpoints")).remove(0);
    refused(&from, &of(&tested, &file), &["in another order", "--force"]);
    program.resume(&from, &[]);

    let json = fs::read_to_string(run.join("tokenizer.json")).unwrap();
    fs::remove_dir_all(&run).unwrap();
    let tokenizer = write("tokens.json", &json);
    let run = train(&[&of(&file, &tested)[..], &[set("tokenizer", &tokenizer)]].concat());
    let from = entries(&run.join("checkpoints")).remove(0);
    write("tokens.json", &json.replace("abe", "abce"));
    refused(&from, &[], &["tokens.json is not the one", "--force"]);
    let line = ["train", "--quiet", "--resume", argument(&from), "--force"];
    program.refuses(&line, 1, &["number words otherwise"]);
    write("tokens.json", &json);
    program.resume(&from, &[]);
}
