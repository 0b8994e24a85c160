//! Watches the experiments, which are compiled into the crate: a new one is taken up by the next build.

fn main() {
    println!("cargo::rerun-if-changed=../runs/reproduce");
}
