//! CIFAR-10, CIFAR-100 and AG-News: loaders, synthetic twins, sharding, augmentation, prefetching.
