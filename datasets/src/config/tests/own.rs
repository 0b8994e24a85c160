//! A data set for the test of the registry: images of one pixel, dark and light by turns.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::definition::{About, Data, Definition, Form};
use crate::error::{Error, Result};
use crate::{Augment, Batch, Dataset, Features, Shape};

/// How many pixels there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Stripes {
    samples: usize,
}

impl Default for Stripes {
    fn default() -> Self {
        Self { samples: 8 }
    }
}

impl Definition for Stripes {
    fn about(&self) -> About {
        About { name: "stripes", line: "pixels, dark and light by turns", paper: "" }
    }

    fn form(&self) -> Form {
        Form { shape: Shape::Image { height: 1, width: 1, channels: 1 }, classes: 2 }
    }

    fn validate(&self) -> Result<()> {
        match self.samples {
            0 => Err(Error::setting("dataset.samples", &0, "write at least 1")),
            _ => Ok(()),
        }
    }

    fn load(&self, _scratch: &Path, _vocabulary: Option<&str>) -> Result<Data> {
        let classes = ["dark", "light"].map(str::to_owned).to_vec();
        let pixels: Arc<dyn Dataset> = Arc::new(Pixels { samples: self.samples, classes });
        Ok(Data {
            train: pixels.clone(),
            test: pixels,
            files: Vec::new(),
            altered: Vec::new(),
            vocabulary: None,
            normalisation: None,
        })
    }
}

struct Pixels {
    samples: usize,
    classes: Vec<String>,
}

impl Dataset for Pixels {
    fn len(&self) -> usize {
        self.samples
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn shape(&self) -> Shape {
        Shape::Image { height: 1, width: 1, channels: 1 }
    }

    fn batch(&self, indices: &[u32], _augment: Option<&Augment>, into: &mut Batch) {
        into.labels = indices.iter().map(|index| index % 2).collect();
        let pixels = into.labels.iter().map(|label| 2.0 * *label as f32 - 1.0).collect();
        into.features = Features::Images { pixels, height: 1, width: 1, channels: 1 };
    }
}
