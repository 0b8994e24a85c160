//! Gradient compression and exchange: a gradient in on every rank, the mean gradient out.
