//! `gradwire doctor` from outside: what it tells, what it refuses, and that it passes on every set of kernels.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Program;
use gradwire_models::Config;
use gradwire_models::operations::TRIALS;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// The lines of a run on the CPU with these kernels, which passes.
fn lines(kernels: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(["doctor", "--json"])
        .env("GRADWIRE_KERNELS", kernels)
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{kernels}: {out}\n{err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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
            let (error, tolerance) =
                (check["error"].as_f64().unwrap(), check["tolerance"].as_f64().unwrap());
            assert!(check["ok"] == true && error <= tolerance, "{kernels}: {check}");
        }
        let named = |kind: &str| -> BTreeSet<String> {
            let of = checks.iter().filter(|check| check["check"] == kind);
            of.map(|check| check["name"].as_str().unwrap().to_string()).collect()
        };
        assert_eq!(named("operation"), TRIALS.iter().map(|trial| trial.name()).collect());
        assert_eq!(named("step").len(), 1);
        let all = Config::all();
        assert_eq!(named("model"), all.iter().map(|model| model.name().into()).collect());

        let facts: Vec<&Value> = rest.iter().filter(|line| line.get("fact").is_some()).collect();
        assert_eq!(facts.len() + checks.len(), rest.len());
        let chosen = facts.iter().find(|fact| fact["fact"] == "kernels").unwrap();
        let told = chosen["value"].as_str().unwrap();
        assert!(told.contains(&format!("GRADWIRE_KERNELS={kernels}")), "{told}");
    }
}

#[test]
fn a_person_reads_a_line_for_each_check() {
    let text = Program::new().succeed(&["doctor"]);
    for part in
        ["kernels", "memory", "conv2d (3x3, stride 2)", "textcnn", "two workers", "resnet110"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
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
