//! ResNets and text classifiers on candle, with CPU training kernels.
