//! Bad input, from the command line: each is refused with what, where and what to do, and leaves
//! nothing half-written.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Program, events, only_run, quick, quickly, words};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Half of all crates are there to download data: a build without them says what to build instead.
#[cfg(not(feature = "fetch"))]
#[test]
fn a_build_that_cannot_download_says_which_one_can() {
    let error = Program::new().refuse(&["data", "fetch", "cifar10"], 1);
    assert!(error.contains("--features fetch") && error.contains("cifar10"), "{error}");
}

#[test]
fn what_a_recipe_may_not_say_is_exit_code_2() {
    let program = Program::new();
    for (line, part) in [
        ("train first-lok", "did you mean `first-look`"),
        ("train nothing.toml", "nothing.toml"),
        ("train --scheme topkk", "did you mean `topk`"),
        ("train --model resnet21", "did you mean `resnet20`"),
        ("train --dataset ag-news", "models for it: fasttext"),
        ("train --set scheme.ratoi=0.1", "did you mean `ratio`"),
        ("train --set scheme.ratio=7", "ratio"),
        ("train --set exchange.topology=star", "allgather"),
        ("train --set exchange.downlink=exact", "exchange.topology = \"server\""),
        ("train --set exchange.topology=server --set exchange.downlink=lossy", "compressed"),
        (
            "train --scheme dense --set exchange.topology=server \
             --set exchange.downlink=compressed",
            "nothing to compress",
        ),
        ("train --scheme qsgd --set exchange.topology=sharded", "policy.bucketing"),
        ("train --workers 0", "workers"),
        ("train --workers many", "--workers"),
        ("train --epoch 3", "--epochs"),
    ] {
        let error = program.refuse(&words(line), 2);
        assert!(error.contains(part), "{line}: {error}");
    }
    for (line, part) in [
        ("train sidco", "gradwire reproduce sidco"),
        ("reproduce cifar10-topk", "gradwire train cifar10-topk"),
        ("train --set dataset.train=0", "dataset.train"),
        ("train --set network.link=1gbit", "network.mode"),
    ] {
        let error = program.refuse(&words(line), 2);
        assert!(error.starts_with("error: ") && error.contains(part), "{line}: {error}");
    }
    let flags = "train --dry-run --batch 7 --lr 0.25 --steps 9 --set train.clip_norm=0";
    let told = program.succeed(&words(flags));
    for line in ["batch = 7", "learning_rate = 0.25", "max_steps = 9"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let full = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .arg("list")
        .stdout(fs::File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!(full.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: cannot write to standard output"), "{error}");
    let bogus = Command::new(env!("CARGO_BIN_EXE_gradwire"))
        .args(["train", "--quiet"])
        .env("GRADWIRE_KERNELS", "bogus")
        .output()
        .unwrap();
    assert_eq!(bogus.status.code(), Some(2));
    fs::write(program.path("torn.toml"), "seed = 1\nworkers = [").unwrap();
    let error = program.refuse(&["train", "torn.toml"], 2);
    assert!(error.contains("torn.toml") && error.contains("line 2"), "{error}");
    assert!(!program.path("runs").exists(), "nothing was started");
}

#[test]
fn missing_and_damaged_data_is_told_with_file_and_place() {
    let program = Program::new();
    let train = words("train --dataset cifar10 --dir data --set dataset.partial=true");
    let error = program.refuse(&train, 1);
    assert!(
        error.contains("cifar-10-batches-bin") && error.contains("data fetch cifar10"),
        "{error}"
    );

    program.succeed(&["data", "synth", "cifar10", "--dir", "data"]);
    let file = program.path("data/cifar-10-batches-bin/data_batch_3.bin");
    let good = fs::read(&file).unwrap();

    fs::write(&file, &good[..good.len() - 5]).unwrap();
    let error = program.refuse(&train, 1);
    assert!(error.contains("data_batch_3.bin") && error.contains("byte"), "{error}");

    let mut mislabelled = good.clone();
    mislabelled[3073 * 2] = 10;
    fs::write(&file, &mislabelled).unwrap();
    let error = program.refuse(&train, 1);
    assert!(error.contains("record 3") || error.contains("record 2"), "{error}");
    assert!(error.contains("6146") && error.contains("10"), "{error}");

    fs::write(&file, []).unwrap();
    let error = program.refuse(&train, 1);
    assert!(error.contains("data_batch_3.bin") && error.contains("empty"), "{error}");

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = program.refuse(&train, 1);
    assert!(error.contains("data_batch_3.bin"), "{error}");
    assert!(!program.path("runs/out/first-look").exists(), "no record of a run that never began");
}

#[test]
fn damaged_text_is_told_with_record_and_byte() {
    let program = Program::new();
    let train = quickly("--set dataset=ag-news --set dataset.dir=data --set dataset.partial=true");
    program.succeed(&["data", "synth", "ag-news", "--dir", "data"]);
    let file = program.path("data/ag_news_csv/train.csv");
    let good = fs::read_to_string(&file).unwrap();
    let second = good.find('\n').unwrap() + 1;
    for (bad, part) in [
        (format!("{}\"9\",\"a\",\"b\"\n{}", &good[..second], &good[second..]), "9"),
        (format!("{}\"1\",\"only a title\"\n", &good[..second]), "2"),
        (String::new(), "empty"),
    ] {
        fs::write(&file, bad).unwrap();
        let error = program.refuse(&train, 1);
        assert!(error.contains("train.csv") && error.contains(part), "{error}");
    }
    fs::write(&file, [good.as_bytes(), b"\"1\",\"\xff\xfe\",\"b\"\n"].concat()).unwrap();
    let error = program.refuse(&train, 1);
    assert!(error.contains("train.csv") && error.contains("UTF-8"), "{error}");
}

#[test]
fn a_loss_that_is_no_number_stops_every_rank_before_the_update() {
    let program = Program::new();
    let line = "--workers 3 --set optimizer.learning_rate=1e38 --set train.max_steps=40 \
                --set schedule=constant";
    let error = program.refuse(&quickly(line), 1);
    assert!(error.contains("worker") && error.contains("step"), "{error}");
    assert!(
        error.contains("loss is") || error.contains("non-finite") || error.contains("overflow"),
        "{error}"
    );
    let run = only_run(&program.path("runs/out/quick"));
    assert_eq!(events(&run, "failed").len(), 1);
}

#[test]
fn records_that_cannot_be_written_are_told_before_training() {
    let program = Program::new();
    fs::write(program.path("taken"), "a file").unwrap();
    let error = program.refuse(&quick(&["--out", "taken"]), 1);
    assert!(error.contains("taken"), "{error}");
}

#[test]
fn more_workers_than_samples_are_refused() {
    let program = Program::new();
    let error = program.refuse(&quick(&["--workers", "20", "--set", "dataset.train=12"]), 1);
    assert!(error.contains("20") && error.contains("12"), "{error}");
}

#[test]
fn what_no_machine_can_hold_is_refused_before_it_is_made() {
    let program = Program::new();
    let large = "train --quiet --model fasttext --set model.dim=100000000000 \
                 --set dataset={kind=\"synthetic-ag-news\"}";
    let error = program.refuse(&words(large), 1);
    assert!(error.contains("4 workers with") && error.contains("fewer workers"), "{error}");
    let told = program.succeed(&["train", "--dry-run"]);
    assert!(
        told.ends_with("269,722 parameters each need at least 16.46 MiB of memory\n"),
        "{told}"
    );
}

#[test]
fn models_that_are_none_are_refused() {
    let program = Program::new();
    let error = program.refuse(&["eval", "nowhere/at/all"], 1);
    assert!(error.contains("nowhere") && error.contains("model.safetensors"), "{error}");
    let error = program.refuse(&["eval", "nowhere"], 2);
    assert!(error.contains("there is no run nowhere"), "{error}");
    for bytes in [&b""[..], b"not a model at all", &[0xff; 64]] {
        fs::write(program.path("model.safetensors"), bytes).unwrap();
        let error = program.refuse(&["eval", "model.safetensors"], 1);
        assert!(error.contains("not a whole safetensors file"), "{error}");
    }
}

/// A model file with another text about itself and other data.
fn forged(bytes: &[u8], about: impl Fn(&mut Value), data: impl Fn(&mut [u8])) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, tensors) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let said = &mut header["__metadata__"]["gradwire"];
    let mut said_about: Value = serde_json::from_str(said.as_str().unwrap()).unwrap();
    about(&mut said_about);
    *said = said_about.to_string().into();
    let header = header.to_string();
    let mut tensors = tensors.to_vec();
    data(&mut tensors);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &tensors].concat()
}

#[test]
fn damaged_models_are_refused_and_equal_runs_leave_equal_ones() {
    let program = Program::new();
    let model = |out: &str| {
        program.succeed(&quick(&["--out", out]));
        let file = only_run(&program.path(out).join("quick")).join("last/model.safetensors");
        fs::read(file).unwrap()
    };
    let good = model("here");
    assert!(good == model("there"), "where a run is written is no part of its model");
    let eval = |bytes: &[u8]| {
        fs::write(program.path("model.safetensors"), bytes).unwrap();
        ["eval", "model.safetensors"]
    };
    fs::copy(
        only_run(&program.path("here/quick")).join("tokenizer.json"),
        program.path("tokenizer.json"),
    )
    .unwrap();
    program.succeed(&eval(&good));
    let overwritten = forged(&good, |_| (), |data| data[400..404].fill(0x7e));
    let error = program.refuse(&eval(&overwritten), 1);
    assert!(error.contains("is damaged") && error.contains("checksum"), "{error}");
    // What an earlier version saved has no checksum; that it has no numbers is told all the same.
    let unsigned = |about: &mut Value| drop(about.as_object_mut().unwrap().remove("sha256"));
    let nothing = forged(&good, unsigned, |data| data.fill(0xff));
    let error = program.refuse(&eval(&nothing), 1);
    assert!(error.contains("loss") && error.contains("NaN"), "{error}");
    program.succeed(&eval(&forged(&good, unsigned, |_| ())));
}

#[test]
fn commands_answer_with_lists_help_and_completions() {
    let program = Program::new();
    let list = program.succeed(&["list"]);
    for name in ["topk", "dense", "resnet110", "bilstm", "synthetic-ag-news", "first-look"] {
        assert!(list.contains(name), "{name} in {list}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(program.succeed(&["completions", shell]).contains("gradwire"));
    }
    assert!(program.succeed(&["train", "--dry-run", "--seed", "77"]).contains("seed = 77"));
}

#[test]
#[cfg(unix)]
fn who_stops_reading_ends_the_program_without_a_word() {
    use std::os::unix::process::ExitStatusExt;
    for arguments in [&["list"][..], &["reproduce", "--list"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = command.args(arguments).stdout(writer).stderr(std::process::Stdio::piped());
        let done = child.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(done.status.signal(), Some(13), "{arguments:?}: {:?}", done.status);
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{arguments:?}");
    }
}
