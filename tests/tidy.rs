//! Keeps the tree as its documentation describes it: who may import whom, module docs, files of one subject.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of the crate and what each may import (crate documentation of `src/lib.rs`).
const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("util", &["base"]),
    ("buf", &["base", "util"]),
    ("config", &["base", "util"]),
    ("telemetry", &["base", "util"]),
    ("object", &["base", "util", "buf"]),
    ("cache", &["base", "util", "buf"]),
    ("chunk", &["base", "util", "buf", "cache", "object"]),
    ("meta", &["base", "util"]),
    ("vfs", &["base", "util", "buf", "cache", "chunk", "object", "meta", "config", "telemetry"]),
    ("fuse", &["base", "util", "buf", "meta", "vfs", "telemetry", "config"]),
    ("fuzzing", &["base", "util", "buf", "cache", "chunk", "object", "meta", "vfs", "fuse", "config", "cli"]),
    ("simulation", &["base", "util", "buf", "cache", "chunk", "object", "meta", "vfs", "config"]),
    ("tools", &["base", "util", "buf", "cache", "chunk", "object", "meta", "vfs"]),
    (
        "cli",
        &["base", "util", "buf", "cache", "chunk", "object", "meta", "vfs", "fuse", "tools", "config", "telemetry"],
    ),
];

/// Past this a file has probably grown a second subject. Suites of tests are lists, and may be long.
const LINES_MAX: usize = 900;

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a source folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|ext| ext == "rs") {
            found.push(entry);
        }
    }
    found.sort();
    found
}

fn all() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = sources(&root.join("src"));
    assert!(files.len() > 50, "only {} source files were found", files.len());
    files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(root).expect("below the root").display().to_string();
            (name, fs::read_to_string(&file).expect("a readable source"))
        })
        .collect()
}

/// The layers that a line of code names: `crate::x::…`, and `use crate::{x::…, y::…}`.
fn named_layers(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or(line);
    code.match_indices("crate::")
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$'))
        .map(|(at, _)| code[at + 7..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""))
        .filter(|name| ALLOWED.iter().any(|(layer, _)| layer == name))
        .collect()
}

#[test]
fn imports_run_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, text) in all() {
        let Some(layer) = name.strip_prefix("src/").and_then(|rest| rest.split(['/', '.']).next()) else { continue };
        let Some(may) = allowed.get(layer) else { continue };
        // Tests put layers together as the program does, and harnesses stand beside what they test.
        if name.ends_with("tests.rs") || name.ends_with("/fuzz.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for used in named_layers(line) {
                if used != layer && !may.contains(&used) {
                    wrong.push(format!("{name}:{}: {layer} must not import {used}", number + 1));
                }
            }
            if name.starts_with("src/meta/engine/") && line.contains("meta::ops") && !name.contains("test") {
                wrong.push(format!("{name}:{}: an engine must not know operations", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_layer_is_fenced() {
    for (name, text) in all() {
        if name == "src/lib.rs" {
            for line in text.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
                let module = line.trim_end_matches(';');
                assert!(
                    ALLOWED.iter().any(|(layer, _)| *layer == module),
                    "{module} is not in the table of tests/tidy.rs"
                );
            }
        }
    }
}

#[test]
fn every_file_says_what_it_owns() {
    let silent: Vec<String> =
        all().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(name, _)| name).collect();
    assert!(silent.is_empty(), "without module documentation:\n{}", silent.join("\n"));
}

#[test]
fn files_keep_to_one_subject() {
    let long: Vec<String> = all()
        .into_iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(name, lines)| *lines > LINES_MAX && !name.ends_with("suite.rs"))
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines, look for the second subject:\n{}", long.join("\n"));
}

/// Time, waiting and randomness are passed in where behaviour depends on them.
#[test]
fn ambient_calls_stay_out() {
    const BANNED: &[(&str, &str, &[&str])] = &[
        (
            "SystemTime::now",
            "ask a util::clock::Clock",
            &["src/util/clock.rs", "src/telemetry/", "src/cli/", "src/object/", "src/cache/"],
        ),
        ("unbounded_channel", "every queue has a bound", &[]),
        ("todo!(", "finish it", &[]),
        ("unimplemented!(", "finish it", &[]),
        ("dbg!(", "log it", &[]),
    ];
    let mut wrong = Vec::new();
    for (name, text) in all() {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(&text);
        if name.contains("test") {
            continue;
        }
        for (number, line) in code.lines().enumerate() {
            for (call, instead, except) in BANNED {
                if line.contains(call)
                    && !line.trim_start().starts_with("//")
                    && !except.iter().any(|e| name.starts_with(e))
                {
                    wrong.push(format!("{name}:{}: {call}: {instead}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
