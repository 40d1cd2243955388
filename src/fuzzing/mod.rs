//! Harnesses for every decoder: bytes in, properties asserted, nothing out.
//!
//! A [`Harness`] takes any bytes. It decodes them, and where they are accepted it asserts what acceptance means: that
//! encoding gives them back, that what is shown holds no secret, that arithmetic on the result stays inside its bounds.
//! Where they are refused, that the reason is one sentence without the bytes. Not to panic, to hang or to allocate by
//! numbers in the input goes without saying; whoever runs a harness watches for that.
//!
//! Two run them. `tests` is part of the ordinary test run: for some seconds each harness gets its corpus, damaged in
//! every way that `mutate` knows, from a new seed each time. `fuzz/` hands the same functions to cargo-fuzz, which is
//! guided by coverage and takes hours; what it finds goes into the corpus here, so that it is never met again.
//!
//! A harness for code that is private to its module stands beside that code, in a file `fuzz.rs`.

pub mod mutate;
mod objects;
mod records;
#[cfg(test)]
mod tests;
mod words;

use std::fmt::Display;

/// One decoder under test.
pub struct Harness {
    /// As its file in `fuzz/fuzz_targets` is called.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Inputs that are accepted, or nearly so: where mutations start.
    pub corpus: fn() -> Vec<Vec<u8>>,
}

macro_rules! harnesses {
    ($($name:ident: $run:path, $corpus:path;)*) => {
        /// All of them.
        pub const HARNESSES: &[Harness] = &[$(Harness { name: stringify!($name), run: $run, corpus: $corpus }),*];
    };
}

harnesses! {
    attr: records::attr, records::attrs;
    node_row: records::node_row, records::node_rows;
    sql_row: sqlite::row, sqlite::rows;
    slices: records::slices, records::slice_lists;
    delayed: records::delayed, records::delayed_lists;
    acl_rule: records::acl_rule, records::acl_rules;
    acl_xattr: records::acl_xattr, records::acl_xattrs;
    plock: records::plock, records::plocks;
    name: records::name, records::names;
    setting: records::setting, records::settings;
    sealed: records::sealed, records::sealed_texts;
    session_info: records::session_info, records::session_infos;
    redis_reply: redis::reply, redis::replies;
    redis_name: redis::name, redis::names;
    resp: redis::resp, redis::resps;
    kv_value: kv::value, kv::values;
    kv_key: kv::stored_key, kv::stored_keys;
    lz4: objects::lz4, objects::lz4_bodies;
    zstd: objects::zstd, objects::zstd_bodies;
    sealed_object: crate::object::envelope::fuzz::object, crate::object::envelope::fuzz::objects;
    private_key: crate::object::envelope::fuzz::key, crate::object::envelope::fuzz::keys;
    json_dump: crate::meta::dump::fuzz::json, crate::meta::dump::fuzz::json_dumps;
    binary_dump: crate::meta::dump::fuzz::binary, crate::meta::dump::fuzz::binary_dumps;
    cache_file: crate::cache::fuzz::file, crate::cache::fuzz::files;
    block_name: objects::block_name, objects::block_names;
    bucket_url: objects::bucket_url, objects::bucket_urls;
    meta_url: words::meta_url, words::meta_urls;
    values: words::values, words::value_texts;
    control: words::control, words::control_requests;
    control_answer: crate::cli::fuzz::control_answer, crate::cli::fuzz::control_answers;
    command_line: crate::cli::fuzz::command_line, crate::cli::fuzz::command_lines;
    mount_helper: crate::cli::fuzz::mount_helper, crate::cli::fuzz::mount_helper_lines;
    fstab: crate::cli::fuzz::fstab, crate::cli::fuzz::tables;
    mount_table: crate::cli::fuzz::mount_table, crate::cli::fuzz::mount_tables;
}

#[cfg(any(feature = "etcd", feature = "tikv"))]
use crate::meta::engine::kv::fuzz as kv;
#[cfg(feature = "redis")]
use crate::meta::engine::redis::fuzz as redis;
#[cfg(feature = "sqlite")]
use crate::meta::engine::sql::sqlite::fuzz as sqlite;

/// Without the engine there is nothing to decode.
#[cfg(not(feature = "redis"))]
mod redis {
    pub fn reply(_: &[u8]) {}
    pub fn name(_: &[u8]) {}
    pub fn resp(_: &[u8]) {}
    pub fn replies() -> Vec<Vec<u8>> {
        Vec::new()
    }
    pub fn resps() -> Vec<Vec<u8>> {
        Vec::new()
    }
    pub fn names() -> Vec<Vec<u8>> {
        Vec::new()
    }
}

#[cfg(not(any(feature = "etcd", feature = "tikv")))]
mod kv {
    pub fn value(_: &[u8]) {}
    pub fn stored_key(_: &[u8]) {}
    pub fn values() -> Vec<Vec<u8>> {
        Vec::new()
    }
    pub fn stored_keys() -> Vec<Vec<u8>> {
        Vec::new()
    }
}

#[cfg(not(feature = "sqlite"))]
mod sqlite {
    pub fn row(_: &[u8]) {}
    pub fn rows() -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// Asserts that a reason is one line that can be printed. It may be long: what was typed may be part of it.
pub(crate) fn sentence(reason: &dyn Display) -> String {
    let text = reason.to_string();
    assert!(!text.trim().is_empty(), "no reason is given");
    assert!(!text.chars().any(char::is_control), "control characters in {text:?}");
    text
}

/// The first byte as a choice of so many, and the rest.
pub(crate) fn choice(data: &[u8], of: usize) -> Option<(usize, &[u8])> {
    data.split_first().map(|(first, rest)| (usize::from(*first) % of, rest))
}

/// Texts as inputs.
pub(crate) fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}
