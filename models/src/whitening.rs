//! The weight of a convolution that whitens patches of images: its outputs are uncorrelated and of one variance, as far
//! as the images it was made from tell.
//!
//! As in Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (arXiv 2404.00498), section 3.2, and in the
//! code beside it: the filters are the eigenvectors of the patches' second moments, not centred, each over the root of
//! its eigenvalue plus [`EPSILON`], and then the same with the opposite signs.

use candle_core::{Device, Result, Tensor, bail};

use crate::eigen;

/// Added to each eigenvalue, so that directions in which patches hardly differ are not blown up.
pub(crate) const EPSILON: f64 = 5e-4;

/// The filters that whiten patches of `side`×`side` pixels of so many channels: two for each direction.
pub(crate) fn filters(side: usize, channels: usize) -> usize {
    2 * side * side * channels
}

/// The weight `[filters, channels, side, side]` from `images` f32 `[n, height, width, channels]`, for inputs of the
/// kind that these are (normalised as they are). It is computed in f64 and in one order, so that the same images give
/// the same bits.
///
/// # Errors
/// Images of another rank, without a patch, or with values that are not finite.
pub(crate) fn weight(images: &Tensor, side: usize) -> Result<Tensor> {
    let (count, height, width, channels) = images.dims4()?;
    if count == 0 || channels == 0 || height < side || width < side {
        bail!(
            "whitening: {count} images of {height}x{width} pixels have no {side}x{side} patches; give it some training images"
        );
    }
    let images = images.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let sizes = [height, width, channels];
    let Some(eigen) = eigen::symmetric(moments(&images, sizes, side)) else {
        bail!("whitening: the images hold values that are not finite; look at the data");
    };
    let mut weight = Vec::with_capacity(2 * eigen.vectors.len() * eigen.vectors.len());
    for sign in [1., -1.] {
        for (value, vector) in eigen.values.iter().zip(&eigen.vectors) {
            // A sum of squares, but for rounding.
            let scale = sign / (value.max(0.) + EPSILON).sqrt();
            weight.extend(vector.iter().map(|x| (x * scale) as f32));
        }
    }
    let shape = (filters(side, channels), channels, side, side);
    Tensor::from_vec(weight, shape, &Device::Cpu)
}

/// The mean over all patches of the product of each two of their elements, which are numbered as those of a filter:
/// channel, row, column.
fn moments(images: &[f32], [height, width, channels]: [usize; 3], side: usize) -> Vec<Vec<f64>> {
    let n = side * side * channels;
    let mut sums = vec![vec![0.0; n]; n];
    let mut patch = vec![0.0; n];
    let mut patches = 0_u64;
    for image in images.chunks_exact(height * width * channels) {
        for (top, left) in
            (0..=height - side).flat_map(|top| (0..=width - side).map(move |left| (top, left)))
        {
            for (at, element) in patch.iter_mut().enumerate() {
                let (channel, row, column) = (at / (side * side), at / side % side, at % side);
                let pixel = (top + row) * width + left + column;
                *element = f64::from(image[pixel * channels + channel]);
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // The half above the diagonal says it all, and whole rows take vectors.
                let factor = patch[i];
                sums.iter_mut().zip(&patch).for_each(|(sum, x)| *sum += factor * x);
            }
            patches += 1;
        }
    }
    sums.iter_mut().flatten().for_each(|sum| *sum /= patches as f64);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Maps;
    use crate::ops;

    fn images(count: usize, height: usize, width: usize, channels: usize) -> Tensor {
        // Neighbours that are alike, as in pictures.
        let value = |i: usize| {
            let (pixel, channel) = (i / channels, i % channels);
            let (y, x) = (pixel / width, pixel % width);
            ((y * y) as f32 * 0.11 + x as f32 * 0.37).sin()
                + (i as f32 * 12.9898).sin() * 0.2
                + channel as f32 * 0.1
        };
        let values = (0..count * height * width * channels).map(value).collect();
        Tensor::from_vec(values, (count, height, width, channels), &Device::Cpu).unwrap()
    }

    /// Every output of the convolution of those images, filter by filter.
    fn outputs(images: &Tensor, weight: &Tensor) -> Vec<Vec<f64>> {
        let ys = ops::conv2d(&Maps::new(images).unwrap(), weight, 1, 0, false).unwrap();
        let ys = ys.tensor().unwrap().flatten(0, 2).unwrap().t().unwrap().to_vec2::<f32>().unwrap();
        ys.into_iter().map(|ys| ys.into_iter().map(f64::from).collect()).collect()
    }

    #[test]
    fn outputs_are_uncorrelated_and_of_one_size() {
        for (channels, side) in [(3, 2), (1, 2), (2, 3)] {
            let images = images(6, 9, 11, channels);
            let weight = weight(&images, side).unwrap();
            let half = filters(side, channels) / 2;
            assert_eq!(weight.dims(), [2 * half, channels, side, side]);
            let outputs = outputs(&images, &weight);
            let mean = |a: &[f64], b: &[f64]| {
                a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / a.len() as f64
            };
            let mut before = 1.0;
            for i in 0..half {
                // The eigenvalue λ makes λ / (λ + ε) of itself, less the smaller it is.
                let square = mean(&outputs[i], &outputs[i]);
                assert!(square <= before + 1e-6, "filter {i}: {square} after {before}");
                before = square;
                for j in 0..i {
                    let both = mean(&outputs[i], &outputs[j]);
                    assert!(both.abs() < 1e-4, "filters {i} and {j}: {both}");
                }
                assert!(outputs[i].iter().zip(&outputs[half + i]).all(|(a, b)| *a == -*b));
            }
            assert!((mean(&outputs[0], &outputs[0]) - 1.0).abs() < 1e-2);
        }
    }

    #[test]
    fn directions_without_variance_are_held_down_by_epsilon() {
        let flat = Tensor::ones((2, 4, 4, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let weight = weight(&flat, 2).unwrap();
        let values: Vec<f32> = weight.flatten_all().unwrap().to_vec1().unwrap();
        // The first eigenvalue is 4, of four equal pixels; the others are 0.
        assert!(
            values[..4].iter().all(|x| (f64::from(*x) - 0.5 / (4.0 + EPSILON).sqrt()).abs() < 1e-6)
        );
        let norm = values[4..8].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        assert!((norm * EPSILON - 1.0).abs() < 1e-4, "{norm}");
    }

    #[test]
    fn what_has_no_patches_or_no_numbers_is_refused() {
        let message = |images: &Tensor| weight(images, 2).unwrap_err().to_string();
        assert!(message(&images(2, 1, 5, 3)).contains("no 2x2 patches"));
        let nan = (images(1, 4, 4, 3) * f64::NAN).unwrap();
        assert!(message(&nan).contains("not finite"));
    }
}
