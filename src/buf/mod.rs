//! Who owns the bytes of a file between the store, the cache and the kernel.
