//! Bad input, from the command line: each is refused with what, where and what to do, and leaves
//! nothing half-written.

use crate::common::{Program, events, forged, only_run, quick, says, texts, words};
use serde_json::{Value, json};
use std::fs;

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
        ("train --model unheard-of", "docs/library.md"),
        ("train --dataset ag-news", "models for it: fasttext"),
        ("train --set scheme.ratoi=0.1", "did you mean `ratio`"),
        ("train --set scheme.ratio=7", "ratio"),
        ("train --set tf32=true", "tf32 = true is for GPUs"),
        ("train --precision bf17", "did you mean `bf16`"),
        ("train --set exchange.topology=star", "allgather"),
        ("train --set exchange.downlink=exact", "exchange.topology = \"server\""),
        ("train --set exchange.topology=server --set exchange.downlink=lossy", "compressed"),
        (
            "train --scheme dense --set exchange.topology=server \
             --set exchange.downlink=compressed",
            "nothing to compress",
        ),
        ("train --scheme qsgd --set exchange.topology=sharded", "policy.bucketing"),
        ("train --scheme qsgd --set policy.feedback.decay=0.9", "switch the scheme's feedback on"),
        ("train --scheme topk --set policy.feedback.decay=1.5", "such as 0.95"),
        ("train --scheme topk --set policy.feedback.efsgdm=0.1", "optimizer.momentum = 0"),
        ("train --scheme topk --set policy.feedback.momentum=0.9", "optimizer.momentum = 0"),
        ("train --scheme topk --set policy.feedback.momentum=1", "such as 0.9"),
        (
            "train --scheme demo --set policy.feedback.decay=0.9",
            "the residual of scheme `demo` is its momentum",
        ),
        (
            "train --scheme demo --set policy.momentum_correction=0.9",
            "leave `feedback` and `momentum_correction` out",
        ),
        ("train --scheme demo --set scheme.chunk=0", "such as 64"),
        ("train --set optimizer.sign=true", "write optimizer.momentum = 0"),
        (
            "train --set optimizer={kind=\"onebit-adam\",warmup_steps=0}",
            "optimizer.warmup_steps = 0 must be a whole number of at least 1",
        ),
        (
            "train --scheme onebit --set optimizer.kind=onebit-adam --set policy.warmup_steps=7",
            "leave these keys out",
        ),
        (
            "train --scheme onebit --set optimizer.kind=onebit-adam --set local.steps=4",
            "exchanges its momentum at every step",
        ),
        (
            "train --scheme dense --set optimizer.kind=onebit-adam --set train.clip_norm=1",
            "policy.clip_norm = 2.0000",
        ),
        ("train --scheme demo --set optimizer.kind=onebit-adam", "another form of feedback"),
        (
            "train --workers 4 --set exchange.topology={kind=\"two-level\",group=3}",
            "group = 3 does not divide workers = 4; write a group",
        ),
        (
            "train --set average.kind=none --set average.decay=0.9",
            "none has no such setting, it has none. These have: ema, lookahead",
        ),
        (
            "train --set train.batch=6148914691236517206 --set train.accumulate=3",
            "train.accumulate = 3",
        ),
        (
            "train --set faults.on_worker_loss=restart --set checkpoint.keep_last=0",
            "write checkpoint.keep_last = 2",
        ),
        (
            "train --set faults.on_worker_loss=shrink --set checkpoint.keep_last=0",
            "faults.on_worker_loss = \"stop\"",
        ),
        ("reproduce casq --scale smoke --set seed=7", "--seeds N"),
        ("train --workers 0", "workers"),
        ("train --set workers=3 --workers 4", "--set workers=3; give it once"),
        // Of two the last one counts.
        ("train --epochs 4 --epochs 0", "train.epochs = 0 must be"),
        ("train --steps 5 --set train.max_steps=6", "train.max_steps is given twice: 5"),
        ("train --scheme topk --set scheme.kind=dense", "scheme is given twice: \"topk\""),
        ("train --epochs 4 --set train={epochs=6}", "train.epochs is given twice: 4"),
        ("train --name a --set record.name=b", "record.name is given twice: \"a\""),
        ("train --seed 18446744073709551615", "9223372036854775807"),
        ("train --workers many", "--workers"),
        ("train --epoch 3", "--epochs"),
    ] {
        program.refuses(&words(line), 2, &[part]);
    }
    program.refuses(
        &["train", "--set", "exchange.topology={ kind = \"server\", downlink = \"exact\" }"],
        2,
        &["`exchange.topology`", "a word", "`exchange.downlink`"],
    );
    for (line, part) in [
        ("train sidco", "gradwire reproduce sidco"),
        ("reproduce cifar10-topk", "gradwire train cifar10-topk"),
        ("train --set samples.train=0", "samples.train"),
    ] {
        let error = program.refuse(&words(line), 2);
        assert!(error.starts_with("error: ") && error.contains(part), "{line}: {error}");
    }
    let flags = "train --dry-run --batch 7 --lr 0.25 --steps 9 --set train.clip_norm=0";
    let told = program.succeed(&words(flags));
    says(&told, &["batch = 7", "learning_rate = 0.25", "max_steps = 9"]);
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program.command(&["list"]).stdout(full()).output().unwrap();
    let (_, error) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: cannot write to standard output"), "{error}");
    let output = program.command(&["list"]).stdout(full()).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "an error that nobody can be told");
    let mut bogus = program.command(&["train", "--quiet"]);
    let bogus = bogus.env("GRADWIRE_KERNELS", "bogus").output().unwrap();
    assert_eq!(bogus.status.code(), Some(2));
    // Kernels without the instruction refuse what wants it, also where the processor has it.
    let refusals: [(&str, &[&str]); 2] = [
        ("portable", &["choose these, or auto", "or \"bf16-emulated\""]),
        ("candle", &["choose other kernels"]),
    ];
    for (kernels, either) in refusals {
        let mut bf16 = program.command(&["train", "--quiet", "--precision", "bf16"]);
        let bf16 = bf16.env("GRADWIRE_KERNELS", kernels).output().unwrap();
        let (_, error) = texts(&bf16);
        assert_eq!(bf16.status.code(), Some(2), "{error}");
        assert!(either.iter().any(|part| error.contains(part)), "{kernels}: {error}");
    }
    fs::write(program.path("torn.toml"), "seed = 1\nworkers = [").unwrap();
    program.refuses(&["train", "torn.toml"], 2, &["torn.toml", "line 2"]);
    assert!(!program.path("runs").exists(), "nothing was started");
}

#[test]
fn missing_and_damaged_data_is_told_with_file_and_place() {
    let program = Program::new();
    let train = words("train --dataset cifar10 --dir data --set dataset.partial=true");
    let refused = |parts: &[&str]| {
        let error = program.refuse(&train, 1);
        says(&error, parts);
        error
    };
    refused(&["cifar-10-batches-bin", "data fetch cifar10"]);

    program.succeed(&["data", "synth", "cifar10", "--dir", "data"]);
    let file = program.path("data/cifar-10-batches-bin/data_batch_3.bin");
    let good = fs::read(&file).unwrap();

    fs::write(&file, &good[..good.len() - 5]).unwrap();
    refused(&["data_batch_3.bin", "byte"]);

    let mut mislabelled = good;
    mislabelled[3073 * 2] = 10;
    fs::write(&file, &mislabelled).unwrap();
    let error = refused(&["6146", "10"]);
    assert!(error.contains("record 3") || error.contains("record 2"), "{error}");

    fs::write(&file, []).unwrap();
    refused(&["data_batch_3.bin", "empty"]);

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&["data_batch_3.bin"]);
    assert!(!program.path("runs/out/first-look").exists(), "no record of a run that never began");
}

#[test]
fn damaged_text_is_told_with_record_and_byte() {
    let program = Program::new();
    let train =
        quick(&words("--set dataset=ag-news --set dataset.dir=data --set dataset.partial=true"));
    program.succeed(&["data", "synth", "ag-news", "--dir", "data"]);
    let file = program.path("data/ag_news_csv/train.csv");
    let good = fs::read_to_string(&file).unwrap();
    let second = good.find('\n').unwrap() + 1;
    let (first, rest) = (&good.as_bytes()[..second], &good.as_bytes()[second..]);
    for (bad, part) in [
        ([first, b"\"9\",\"a\",\"b\"\n", rest].concat(), "9"),
        ([first, b"\"1\",\"only a title\"\n"].concat(), "2"),
        (Vec::new(), "empty"),
        ([first, rest, b"\"1\",\"\xff\xfe\",\"b\"\n"].concat(), "UTF-8"),
    ] {
        fs::write(&file, bad).unwrap();
        program.refuses(&train, 1, &["train.csv", part]);
    }
}

#[test]
fn a_loss_that_is_no_number_stops_every_rank_before_the_update() {
    let program = Program::new();
    let line = "--workers 3 --set optimizer.learning_rate=1e38 --set train.max_steps=40 \
                --set schedule=constant";
    let error = program.refuse(&quick(&words(line)), 1);
    assert!(error.contains("worker") && error.contains("step"), "{error}");
    assert!(
        error.contains("loss is") || error.contains("non-finite") || error.contains("overflow"),
        "{error}"
    );
    assert_eq!(events(&program.quick_run(), "failed").len(), 1);
}

#[test]
fn what_cannot_be_trained_is_refused_before_it_begins() {
    let program = Program::new();
    fs::write(program.path("taken"), "a file").unwrap();
    program.refuses(&quick(&["--out", "taken"]), 1, &["taken"]);
    program.refuses(&quick(&["--workers", "20", "--set", "samples.train=12"]), 1, &["20", "12"]);
    let large = "train --quiet --model fasttext --set model.dim=100000000000 \
                 --set dataset={kind=\"synthetic-ag-news\"}";
    program.refuses(&words(large), 1, &["4 workers with", "fewer workers"]);
    let told = program.succeed(&["train", "--dry-run"]);
    assert!(told.ends_with("269,722 parameters each need at least 17.3 MB of memory\n"), "{told}");
}

#[test]
fn models_that_are_none_are_refused() {
    let program = Program::new();
    program.refuses(&["eval", "nowhere/at/all"], 1, &["nowhere", "model.safetensors"]);
    program.refuses(&["eval", "nowhere"], 2, &["there is no run nowhere"]);
    for bytes in [&b""[..], b"not a model at all", &[0xff; 64]] {
        fs::write(program.path("model.safetensors"), bytes).unwrap();
        program.refuses(&["eval", "model.safetensors"], 1, &["not a whole safetensors file"]);
    }
}

#[test]
fn damaged_models_are_refused_and_equal_runs_leave_equal_ones() {
    let program = Program::new();
    let model =
        |out: &str| fs::read(program.train_in(out, &[]).join("last/model.safetensors")).unwrap();
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
    program.refuses(&eval(&overwritten), 1, &["is damaged", "checksum"]);
    // What an earlier version saved has no checksum; that it has no numbers is told all the same.
    let unsigned = |about: &mut Value| drop(about.as_object_mut().unwrap().remove("sha256"));
    let nothing = forged(&good, unsigned, |data| data.fill(0xff));
    program.refuses(&eval(&nothing), 1, &["loss", "NaN"]);
    program.succeed(&eval(&forged(&good, unsigned, |_| ())));
    let normalised = |mean: Value, deviation: Value| {
        let by = json!({ "mean": mean, "deviation": deviation });
        forged(&good, |about| about["normalisation"] = by.clone(), |_| ())
    };
    let fine = json!([0.5, 0.5, 0.5]);
    program.succeed(&eval(&normalised(fine.clone(), json!([0.2, 0, 0.2]))));
    for wrong in [json!([0.2, 0.2, -0.2]), json!([0.2, 0.2, 1e300])] {
        program.refuses(&eval(&normalised(fine.clone(), wrong)), 1, &["damaged", "no pixels"]);
    }
    for wrong in [json!([0.5, 0.5]), json!([0.5, 0.5, 0.5, 0.5]), json!([0.5, 0.5, null])] {
        program.refuses(&eval(&normalised(wrong, fine.clone())), 1, &["the metadata of"]);
    }
}

#[test]
fn commands_answer_with_lists_help_and_completions() {
    let program = Program::new();
    let list = program.succeed(&["list"]);
    says(&list, &["topk", "dense", "resnet110", "bilstm", "synthetic-ag-news", "first-look"]);
    for shell in ["bash", "zsh", "fish"] {
        assert!(program.succeed(&["completions", shell]).contains("gradwire"));
    }
    assert!(program.succeed(&["train", "--dry-run", "--seed", "77"]).contains("seed = 77"));
}

#[test]
#[cfg(unix)]
fn who_stops_reading_ends_the_program_without_a_word() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    let program = Program::new();
    for arguments in [&["list"][..], &["reproduce", "--list"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program.command(arguments);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.signal(), Some(13), "{arguments:?}: {:?}", done.status);
        assert_eq!(texts(&done).1, "", "{arguments:?}");
    }
}
