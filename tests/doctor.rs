//! `gradwire doctor` from outside: what it tells, what it refuses, and that it passes on every set of kernels.

use crate::common::{Program, json_lines, number, says, texts};
use gradwire_models::Config;
use gradwire_models::kernels::{Kernels, Precision};
use gradwire_models::operations::TRIALS;
use serde_json::Value;
use std::collections::BTreeSet;

/// The lines of a run on the CPU with these kernels, which passes.
fn lines(kernels: &str) -> Vec<Value> {
    let program = Program::new();
    let mut command = program.command(&["doctor", "--json"]);
    let output = command.env("GRADWIRE_KERNELS", kernels).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{kernels}: {out}\n{err}");
    json_lines(&out)
}

#[test]
fn every_operation_every_model_and_a_step_pass_on_every_choice_of_kernels() {
    for kernels in ["auto", "portable", "candle"] {
        let lines = lines(kernels);
        let (summary, rest) = lines.split_last().unwrap();
        assert_eq!(
            (&summary["ok"], &summary["summary"]["failed"]),
            (&true.into(), &Value::Array(vec![]))
        );
        let checks: Vec<&Value> = rest.iter().filter(|line| line.get("check").is_some()).collect();
        assert_eq!(summary["summary"]["checks"], checks.len());
        for check in &checks {
            let (error, tolerance) = (number(check, "error"), number(check, "tolerance"));
            assert!(check["ok"] == true && error <= tolerance, "{kernels}: {check}");
        }
        let named = |kind: &str| -> BTreeSet<String> {
            let of = checks.iter().filter(|check| check["check"] == kind);
            of.map(|check| check["name"].as_str().unwrap().to_string()).collect()
        };
        let bf16: Vec<Kernels> = Kernels::parse(kernels).unwrap().in_bf16().collect();
        assert_eq!(bf16.is_empty(), kernels == "candle");
        let tried = TRIALS.iter().flat_map(|trial| {
            let in_bf16 = bf16.iter().map(move |kernels| format!("{} on {kernels}", trial.name()));
            in_bf16.chain([trial.name()])
        });
        assert_eq!(named("operation"), tried.collect());
        assert_eq!((named("step").len(), named("update").len()), (1, 1));
        let all = Config::all();
        assert_eq!(named("model"), all.iter().map(|model| model.name().into()).collect());

        let facts: Vec<&Value> = rest.iter().filter(|line| line.get("fact").is_some()).collect();
        assert_eq!(facts.len() + checks.len(), rest.len());
        let chosen = facts.iter().find(|fact| fact["fact"] == "kernels").unwrap();
        let told = chosen["value"].as_str().unwrap();
        assert!(told.contains(&format!("GRADWIRE_KERNELS={kernels}")), "{told}");
        let bf16 = facts.iter().find(|fact| fact["fact"] == "bf16").unwrap()["value"].as_str();
        match Kernels::parse(kernels).unwrap().in_precision(Precision::Bf16) {
            Ok(with) => assert!(bf16.unwrap().starts_with(&with.to_string()), "{bf16:?}"),
            Err(error) => assert_eq!(bf16, Some(&*format!("refused: {error}"))),
        }
    }
}

#[test]
fn a_person_reads_a_line_for_each_check() {
    let text = Program::new().succeed(&["doctor"]);
    let parts =
        ["kernels", "memory", "conv2d (3x3, stride 2)", "textcnn", "two workers", "resnet110"];
    says(&text, &parts);
    assert!(text.contains("checks passed in") && !text.contains("FAILED"), "{text}");
}

#[test]
fn a_device_that_cannot_be_had_is_refused_with_the_remedy() {
    let program = Program::new();
    assert!(program.refuse(&["doctor", "--device", "gpu"], 2).contains("cuda:local"));
    let refused = program.refuse(&["doctor", "--device", "cuda:99"], 2);
    // A build with CUDA says how many there are.
    let remedy = if cfg!(feature = "cuda") { "GPUs" } else { "--features cuda" };
    assert!(refused.contains(remedy), "{refused}");
}
