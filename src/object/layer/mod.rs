//! Decorators of a store, one subject each. Their order is fixed in [`super::stack`] and explained there.

pub mod deadline;
pub mod encrypt;
pub mod fault;
pub mod limit;
pub mod metrics;
pub mod prefix;
pub mod retry;
pub mod shard;
