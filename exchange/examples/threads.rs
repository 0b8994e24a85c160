//! Four threads train one line together; each of them sends the largest tenth of its gradient.
//!
//! `cargo run --release --example threads`

use std::time::Duration;

use gradwire_exchange::schemes::topk;
use gradwire_exchange::{Bucketing, Exchange, Layout, Result, SchemeConfig, mesh};

const WORLD_SIZE: usize = 4;
const STEPS: u64 = 2000;

/// What one rank does: a step of gradient descent on its own data, with everybody's mean gradient.
fn train(rank: usize, end: gradwire_exchange::Mesh) -> Result<(Vec<f32>, u64)> {
    let layout = Layout::new([("bias".to_string(), 20), ("weight".to_string(), 980)])?;
    let scheme = SchemeConfig::Topk(topk::Config { ratio: 0.1.into(), ..Default::default() });
    let mut exchange = Exchange::new(&scheme, Bucketing::Whole, layout, 0, Box::new(end))?;
    let mut weights = vec![0f32; 1000];
    let mut sent = 0;
    for step in 1..=STEPS {
        // This rank's data pull element i towards i·(rank + 1); the mean of all is 2.5·i.
        let mut gradient: Vec<f32> =
            (0..1000).map(|i| weights[i] - (i * (rank + 1)) as f32).collect();
        sent += exchange.allreduce(step, &mut gradient)?.wire_bytes;
        for (weight, mean) in weights.iter_mut().zip(&gradient) {
            *weight -= 0.01 * mean;
        }
    }
    Ok((weights, sent))
}

fn main() -> Result<()> {
    let ends = mesh(WORLD_SIZE, Duration::from_secs(10)).into_iter().enumerate();
    let threads: Vec<_> =
        ends.map(|(rank, end)| std::thread::spawn(move || train(rank, end))).collect();
    let mut ranks = Vec::new();
    for thread in threads {
        ranks.push(thread.join().expect("no thread panics")?);
    }
    let (weights, sent) = &ranks[0];
    assert!(ranks.iter().all(|(theirs, _)| theirs == weights), "replicas are bit-identical");
    let error = (0..1000).map(|i| (weights[i] - 2.5 * i as f32).abs()).fold(0.0, f32::max);
    println!("replicas equal; largest error {error:.3} of weights up to 2497.5");
    println!("{sent} bytes a rank in {STEPS} steps; uncompressed {}", STEPS * 4000);
    assert!(error < 50.0, "the replicas did not reach the target");
    Ok(())
}
