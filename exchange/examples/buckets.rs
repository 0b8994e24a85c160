//! A caller that holds buckets and never the flat gradient, as a framework's hook does: backward
//! hands over one bucket after the other, the last layer's first, and each is exchanged at once.
//!
//! `cargo run --release --example buckets`

use std::time::Duration;

use gradwire_exchange::schemes::qsgd;
use gradwire_exchange::{Bucketing, Exchange, Layout, Result, SchemeConfig, mesh};

const LAYERS: [(&str, usize); 3] = [("0.weight", 600), ("1.weight", 300), ("2.weight", 100)];

fn main() -> Result<()> {
    let train = |rank: usize, end| -> Result<Vec<Vec<f32>>> {
        let layout = Layout::new(LAYERS.map(|(name, length)| (name.to_string(), length)))?;
        let scheme = SchemeConfig::Qsgd(qsgd::Config::default());
        let mut exchange = Exchange::new(&scheme, Bucketing::Parameter, layout, 0, Box::new(end))?;
        exchange.one_group_a_bucket()?;
        // One buffer a bucket: nobody ever puts them end to end.
        let mut buckets: Vec<Vec<f32>> =
            exchange.buckets().iter().map(|part| vec![0.0; part.length()]).collect();
        for step in 1..=10 {
            exchange.begin(step);
            for bucket in (0..buckets.len()).rev() {
                let backward = |i| ((i + bucket) as f32 * 0.1 + rank as f32).sin();
                buckets[bucket].iter_mut().enumerate().for_each(|(i, value)| *value = backward(i));
                exchange.exchange_bucket(bucket, &mut buckets[bucket])?;
            }
            let means: Vec<&[f32]> = buckets.iter().map(Vec::as_slice).collect();
            let traffic = exchange.finish_buckets(&means)?;
            if rank == 0 && step == 1 {
                println!("{} bytes for {} parameters", traffic.wire_bytes, traffic.parameters);
            }
        }
        Ok(buckets)
    };
    let ends = mesh(2, Duration::from_secs(10)).into_iter().enumerate();
    let threads: Vec<_> =
        ends.map(|(rank, end)| std::thread::spawn(move || train(rank, end))).collect();
    let mut ranks = Vec::new();
    for thread in threads {
        ranks.push(thread.join().expect("no thread panics")?);
    }
    assert_eq!(ranks[0], ranks[1], "the means are bit-identical");
    println!("the means of {} buckets are equal on both ranks", LAYERS.len());
    Ok(())
}
