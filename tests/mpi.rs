//! Several processes, started by `mpirun`: the run of one process, bit for bit; failures that end
//! all of them, with a cause. Built with `--features mpi` only.

use crate::common::{Program, argument, begun, events, quick, sets, signal, texts, weights, words};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Eight steps.
const STEPS: &str = "--set train.max_steps=8 --set checkpoint.every_steps=3 \
                     --set samples.train=400 --set schedule=constant";

/// The same in one process of four workers.
fn alone(settings: &[&str]) -> (Program, PathBuf) {
    let program = Program::new();
    let run = program.train(&[&words(STEPS)[..], &["--workers", "4"], settings].concat());
    (program, run)
}

/// A patience that a test can wait for; more than a busy machine ever lets a step wait.
const PATIENCE: [&str; 2] = ["--set", "exchange.timeout=8"];

fn launcher(program: &Program, processes: &str, arguments: &[&str]) -> Command {
    let mut command = mpirun(program, processes);
    command.args(quick(&[&words(STEPS)[..], arguments].concat()));
    command
}

/// Starts as many processes of the program, whose arguments come next.
fn mpirun(program: &Program, processes: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "-n", processes])
        .arg(env!("CARGO_BIN_EXE_gradwire"))
        .current_dir(program.folder.path())
        .env_remove("GRADWIRE_KERNELS")
        .stdin(Stdio::null());
    command
}

/// Runs as many processes; the exit code and all that was said.
fn launch(program: &Program, processes: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let began = Instant::now();
    let output = launcher(program, processes, arguments).output().unwrap();
    let (out, err) = texts(&output);
    let (said, took) = (out + &err, began.elapsed());
    assert!(took < Duration::from_secs(120), "{took:?} × {processes}, {arguments:?}\n{said}");
    (output.status.code(), said)
}

/// What a run's record tells of steps and epochs, but for times, the two directions and what moves within groups:
/// means of shards come back within one process, and between processes nothing does; plain values are handed on within
/// a group as what joins its ranks can. What was sent between groups is in `wire_bytes`.
fn told(run: &Path) -> Vec<Value> {
    let mut told = crate::common::told(run);
    for event in &mut told {
        event.as_object_mut().unwrap().retain(|key, _| {
            !["uplink_bytes", "downlink_bytes", "local_bytes"].contains(&key.as_str())
        });
    }
    told
}

/// One process of four workers, and four processes: the same run.
#[test]
fn processes_train_the_run_of_threads() {
    for settings in [
        "scheme=dense",
        "scheme=sidco",
        "scheme=casq",
        "scheme=optquant",
        "scheme=powersgd",
        "scheme=dqsgd exchange.topology=server",
        "scheme=sidco exchange.topology={kind='two-level',group=2}",
        "scheme=dense exchange.topology={kind='two-level',group=2}",
        "scheme=powersgd exchange.topology={kind='two-level',group=2}",
        "scheme=qsgd exchange.topology=sharded exchange.downlink=compressed \
         policy.bucketing=parameter",
        "scheme=topk scheme.chunk=256 scheme.values=2bit policy.feedback={decay=0.9}",
        "scheme=topk policy.feedback={efsgdm=0.5} optimizer.momentum=0",
        "scheme=demo optimizer={kind='sgd',momentum=0,sign=true}",
        "scheme=onebit optimizer={kind='onebit-adam',warmup_steps=3} exchange.topology=sharded \
         exchange.downlink=compressed policy.bucketing=parameter",
        "scheme=dense exchange.overlap=true policy.bucketing=parameter",
        "scheme=topk local.steps=3",
        "scheme=topk local.steps=3 outer={fragments=2} policy.bucketing=parameter",
        "scheme=qsgd local.steps=4 outer={delay=2} exchange.topology=server",
        "scheme=topk local.steps=3 exchange.topology={kind='two-level',group=2}",
        "scheme=sidco local.steps=4 outer={fragments=2,delay=1} policy.bucketing=parameter \
         exchange.topology={kind='two-level',group=2}",
        "scheme=qsgd local.steps=3 policy.bucketing=parameter exchange.topology=sharded \
         exchange.downlink=compressed",
    ] {
        let settings = sets(settings);
        let (_threads, run) = alone(&settings);
        let expected = (weights(&run), told(&run));
        let program = Program::new();
        let (code, said) = launch(&program, "4", &settings);
        assert_eq!(code, Some(0), "{settings:?}\n{said}");
        let run = program.quick_run();
        assert!(weights(&run) == expected.0, "weights: {settings:?}");
        assert_eq!(told(&run), expected.1, "record: {settings:?}");
    }
}

/// Processes end with a checkpoint; they take it up, as one process would have gone on.
#[test]
fn processes_go_on_from_the_checkpoint() {
    let scheme = ["--scheme", "sidco"];
    let (_threads, whole) = alone(&scheme);
    let program = Program::new();
    let (code, said) =
        launch(&program, "4", &[&scheme[..], &["--set", "train.max_steps=5"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let run = program.quick_run();
    let mut command = mpirun(&program, "4");
    command.args(["train", "--quiet", "--resume"]).arg(&run).args(["--set", "train.max_steps=8"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert!(weights(&run) == weights(&whole));
}

#[test]
fn a_worker_that_fails_elsewhere_is_named_with_its_process() {
    let program = Program::new();
    let (code, said) =
        launch(&program, "4", &[&PATIENCE[..], &["--inject", "panic:worker=3,step=5"]].concat());
    assert_eq!(code, Some(1), "{said}");
    let named = "worker 3 (process 3 on ";
    assert!(said.contains(named) && said.contains("panicked: injected at step 5"), "{said}");
    let failed = &events(&program.quick_run(), "failed")[0]["error"];
    assert!(failed.as_str().unwrap().contains(named), "{failed}");
}

#[test]
fn a_process_that_is_killed_ends_the_job_and_the_checkpoint_stays() {
    let program = Program::new();
    let began = Instant::now();
    let (code, said) =
        launch(&program, "4", &[&PATIENCE[..], &["--inject", "kill:worker=3,step=7"]].concat());
    assert_ne!(code, Some(0), "{said}");
    assert!(began.elapsed() < Duration::from_secs(40));
    let run = program.quick_run();
    let out = program.succeed(&["train", "--resume", argument(&run)]);
    assert!(!out.is_empty());
    let (_threads, whole) = alone(&[]);
    assert!(weights(&run) == weights(&whole));
}

/// The process of the last rank under a launcher.
fn last_process(launcher: &Child) -> u32 {
    let children = |parent: u32| -> Vec<u32> {
        let tasks = format!("/proc/{parent}/task/{parent}/children");
        let text = fs::read_to_string(tasks).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let is_last = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == b"OMPI_COMM_WORLD_RANK=1")
    };
    children(launcher.id()).into_iter().find(is_last).unwrap()
}

#[test]
fn a_process_that_stands_still_is_found_and_named() {
    let program = Program::new();
    let endless = ["--epochs", "100000", "--set", "train.max_steps=100000"];
    let mut command = launcher(&program, "2", &[&PATIENCE[..], &endless].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    begun(&program.path("runs/out/quick"));
    signal(last_process(&child), "-STOP");
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}", texts(&output));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    let failed = &events(&program.quick_run(), "failed")[0]["error"];
    let failed = failed.as_str().unwrap();
    assert!(
        failed.contains("worker 1 (process 1 on ") && failed.contains("was silent"),
        "{failed}"
    );
}

#[test]
fn what_does_not_fit_or_differs_is_refused_by_all() {
    let program = Program::new();
    for workers in [&["--workers", "3"][..], &["--set", "workers=3"]] {
        let (code, said) = launch(&program, "2", workers);
        assert_ne!(code, Some(0));
        let parts = ["workers = 3", "has started 2 processes", "leave `workers` out"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    let (code, said) = launch(&program, "2", &sets("exchange.topology=sharded"));
    assert_ne!(code, Some(0));
    assert!(said.contains("write exchange.topology = \"allgather\""), "{said}");

    // Two programs of one job, told different things.
    let other = quick(&[&words(STEPS)[..], &["--set", "train.batch=5"]].concat());
    let mut command = launcher(&program, "1", &[]);
    command.args([":", "-n", "1", env!("CARGO_BIN_EXE_gradwire")]).args(&other);
    let output = command.output().unwrap();
    let (_, said) = texts(&output);
    assert!(!output.status.success());
    assert!(said.contains("process 1") && said.contains("train.batch = 5"), "{said}");
}

/// A host name of one's own, for root and for others.
const UNSHARE: [&str; 2] = ["--map-root-user", "--uts"];

/// Two hosts, both of them this machine: what mpirun starts in place of ssh starts its daemon here, under a host name of
/// its own. Where neither root nor a user's namespace may give it one, GRADWIRE_ONE_HOST leaves this test out, and
/// `cluster::job` has the rule alone.
#[test]
fn a_group_on_two_hosts_is_refused_by_all() {
    if std::env::var_os("GRADWIRE_ONE_HOST").is_some() {
        return;
    }
    let named = Command::new("unshare").args(UNSHARE).args(["hostname", "host1"]).output();
    assert!(
        named.is_ok_and(|output| output.status.success()),
        "`unshare` gives no process a host name of its own here; GRADWIRE_ONE_HOST=1 leaves this test out"
    );
    let two = sets("scheme=topk exchange.topology={kind='two-level',group=2}");
    for (mapping, fits) in [("slot", true), ("node", false)] {
        let program = Program::new();
        fs::write(program.path("hosts"), "192.0.2.1 slots=2\n192.0.2.2 slots=2\n").unwrap();
        let unshare = UNSHARE.join(" ");
        let agent = format!(
            "host=host${{1##*.}}\nshift\nexec unshare {unshare} sh -c \"hostname $host && $*\"\n"
        );
        fs::write(program.path("agent"), agent).unwrap();
        let mut command = launcher(&program, "4", &two);
        command
            .env("OMPI_MCA_plm_rsh_agent", format!("sh {}", program.path("agent").display()))
            .env("OMPI_MCA_orte_default_hostfile", program.path("hosts"))
            .env("OMPI_MCA_rmaps_base_mapping_policy", mapping)
            .envs([("OMPI_MCA_plm_rsh_no_tree_spawn", "1"), ("OMPI_MCA_pml", "ob1")])
            .envs([("OMPI_MCA_btl", "tcp,self"), ("OMPI_MCA_btl_tcp_if_include", "lo")])
            .env("OMPI_MCA_oob_tcp_if_include", "lo");
        let output = command.output().unwrap();
        let (_, said) = texts(&output);
        assert_eq!(output.status.success(), fits, "{mapping}: {said}");
        let refusal = "is not on the host of the others of its group; let the launcher fill";
        assert_eq!(said.contains(refusal), !fits, "{mapping}: {said}");
    }
}
