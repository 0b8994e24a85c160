//! The ways in which an evaluation looks at test images (test-time augmentation).

use crate::recipe::TestViews;
use gradwire_datasets::Features;
use std::borrow::Cow;

/// How one look at an image differs from the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct View {
    /// The weight of its logits in the mean.
    pub(super) weight: f64,
    /// Pixels that it is moved by, down and to the right alike; its border is reflected.
    shift: isize,
    /// Whether it is mirrored.
    mirror: bool,
}

/// How many times an evaluation looks at each sample.
pub fn count(views: TestViews) -> usize {
    views_of(views).len()
}

/// The views of an image; the first is the image itself, and their weights add up to 1.
pub(super) fn views_of(views: TestViews) -> Vec<View> {
    let both =
        |shift, weight| [false, true].map(|mirror| View { weight: weight / 2.0, shift, mirror });
    match views {
        TestViews::One => vec![View { weight: 1.0, shift: 0, mirror: false }],
        TestViews::Mirror => both(0, 1.0).to_vec(),
        TestViews::MirrorTranslate => [both(0, 0.5), both(1, 0.25), both(-1, 0.25)].concat(),
    }
}

impl View {
    /// The samples as they are seen. Texts are seen as they are.
    pub(super) fn look<'f>(&self, features: &'f Features) -> Cow<'f, Features> {
        let as_they_are = self.shift == 0 && !self.mirror;
        let (pixels, height, width, channels) = match features {
            Features::Images { pixels, height, width, channels } if !as_they_are => {
                (pixels, height, width, channels)
            }
            features => return Cow::Borrowed(features),
        };
        let (height, width, channels) = (*height, *width, *channels);
        let mut seen = Vec::with_capacity(pixels.len());
        for image in pixels.chunks_exact((height * width * channels).max(1)) {
            for y in 0..height {
                let y = reflected(y, self.shift, height);
                for x in 0..width {
                    let x = if self.mirror { width - 1 - x } else { x };
                    let start = (y * width + reflected(x, self.shift, width)) * channels;
                    seen.extend_from_slice(&image[start..start + channels]);
                }
            }
        }
        Cow::Owned(Features::Images { pixels: seen, height, width, channels })
    }
}

/// The row or column, of `size`, that is seen at `position` when everything is moved by `shift`, of
/// at most 1 either way. Beyond the border lies the mirror image; an image of one pixel repeats it.
fn reflected(position: usize, shift: isize, size: usize) -> usize {
    match position.checked_add_signed(-shift) {
        Some(inside) if inside < size => inside,
        Some(_) => size.saturating_sub(2),
        None => 1.min(size - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Features {
        let pixels = (0u8..9).map(f32::from).collect();
        Features::Images { pixels, height: 3, width: 3, channels: 1 }
    }

    fn seen(view: View) -> Vec<f32> {
        match view.look(&image()).into_owned() {
            Features::Images { pixels, .. } => pixels,
            _ => panic!("images expected"),
        }
    }

    #[test]
    fn weights_add_up_to_one_and_the_first_view_is_the_image() {
        for (views, count) in
            [(TestViews::One, 1), (TestViews::Mirror, 2), (TestViews::MirrorTranslate, 6)]
        {
            let views = views_of(views);
            assert_eq!(views.len(), count);
            assert_eq!(views.iter().map(|view| view.weight).sum::<f64>(), 1.0);
            assert_eq!(*views[0].look(&image()), image());
        }
    }

    #[test]
    fn images_are_mirrored_and_moved_with_reflected_borders() {
        let view = |shift, mirror| View { weight: 1.0, shift, mirror };
        assert_eq!(seen(view(0, true)), [2., 1., 0., 5., 4., 3., 8., 7., 6.]);
        assert_eq!(seen(view(1, false)), [4., 3., 4., 1., 0., 1., 4., 3., 4.]);
        assert_eq!(seen(view(-1, false)), [4., 5., 4., 7., 8., 7., 4., 5., 4.]);
        assert_eq!(seen(view(-1, true)), [4., 5., 4., 7., 8., 7., 4., 5., 4.]);
        let lone = Features::Images { pixels: vec![7.0], height: 1, width: 1, channels: 1 };
        assert_eq!(*view(1, true).look(&lone), lone);
    }

    #[test]
    fn texts_are_seen_as_they_are() {
        let text = Features::Tokens { ids: vec![1, 2, 3, 4], length: 2 };
        assert_eq!(*views_of(TestViews::Mirror)[1].look(&text), text);
    }
}
