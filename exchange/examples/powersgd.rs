//! What PowerSGD computes in a step on a ResNet-18's gradient (CIFAR-10, 11.2 million parameters), in
//! milliseconds: residual added, products, columns made orthonormal, gradient and residual written.
//! Nothing is sent. `benches/pytorch/powersgd.py` runs it beside PyTorch's hook.
//!
//! `powersgd [RANK [STEPS [WARM]]]` prints one line of JSON with the seconds of every step.

use std::error::Error;
use std::time::Instant;

use gradwire_exchange::rng::Stream;
use gradwire_exchange::schemes::powersgd::Config;
use gradwire_exchange::{Alone, BucketGradient, Built, Next, Reducer, Result, Scheme, Seat};

/// The shapes of a ResNet-18's parameters as PyTorch orders them: for 32 × 32 images and ten classes.
fn resnet18() -> Vec<Vec<usize>> {
    let mut shapes = Vec::new();
    let mut convolution = |to: usize, from: usize, side: usize| {
        shapes.extend([vec![to, from, side, side], vec![to], vec![to]]);
    };
    convolution(64, 3, 3);
    let mut from = 64;
    for width in [64, 128, 256, 512] {
        for _ in 0..2 {
            convolution(width, from, 3);
            convolution(width, width, 3);
            if from != width {
                convolution(width, from, 1);
            }
            from = width;
        }
    }
    shapes.extend([vec![10, 512], vec![10]]);
    shapes
}

/// One step of one rank alone: the means are what it posts.
fn step(
    reducer: &mut dyn Reducer,
    number: u64,
    values: &mut [f32],
    residual: &mut [f32],
    alone: &mut Alone,
) -> Result<()> {
    for (value, residual) in values.iter().zip(residual.iter_mut()) {
        *residual += *value;
    }
    let mut bucket = BucketGradient::new(values, Some(residual));
    while alone.turn(reducer, number, &mut bucket)? == Next::Again {}
    reducer.commit();
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (rank, steps, warm) = (number(4)?, number(20)?, number(3)?);
    let shapes = resnet18();
    let length = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
    let config = Config { rank, ..Config::default() };
    config.validate()?;
    let parameters = shapes.iter().map(|shape| shape.iter().product()).collect();
    let mut seat = Seat::alone(length, 1);
    (seat.parameters, seat.shapes) = (parameters, shapes);
    let Built::Reducer(mut reducer) = config.build(&seat) else { unreachable!("it has rounds") };
    // Roughly what gradients are like: a sum of uniform numbers.
    let stream = Stream::new(&[rank as u64]);
    let value = |i: u32| (0..4).map(|k| stream.uniform(4 * i + k)).sum::<f32>() - 2.0;
    let fresh: Vec<f32> = (0..length as u32).map(|i| 1e-3 * value(i)).collect();
    let (mut values, mut residual) = (fresh.clone(), vec![0.0; length]);
    let mut alone = Alone::default();
    let mut seconds = Vec::new();
    for at in 0..warm + steps {
        values.copy_from_slice(&fresh);
        let start = Instant::now();
        step(&mut *reducer, at as u64 + 1, &mut values, &mut residual, &mut alone)?;
        if at >= warm {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    println!("{{\"rank\": {rank}, \"elements\": {length}, \"seconds\": {seconds:?}}}");
    Ok(())
}
