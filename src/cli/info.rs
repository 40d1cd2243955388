//! `info PATH…|INODE…`: what a file is made of, asked from the mount that it lies in (`spec/surface.md` 5.9).

use super::control::{self, Answer};
use crate::base::CHUNK_BYTES;
use crate::base::fault::one_line;
use anyhow::{Context as _, bail};
use serde::Deserialize;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Paths in a mount, or inodes with --inode
    #[arg(value_name = "PATH/INODE", required = true, num_args = 1..)]
    paths: Vec<PathBuf>,
    /// Take inodes instead of paths; the working directory must be in the mount
    #[arg(short, long)]
    inode: bool,
    /// Sum up whole directories
    #[arg(short, long)]
    recursive: bool,
    /// Count directories instead of trusting their statistics, which is done without it, too
    #[arg(long)]
    strict: bool,
    /// Show slices instead of objects
    #[arg(long)]
    raw: bool,
}

/// The answer of the mount. What a mount does not say is empty.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Info {
    ino: u64,
    failed: bool,
    reason: String,
    summary: Summary,
    paths: Vec<String>,
    #[serde(deserialize_with = "nothing_is_empty")]
    chunks: Vec<Piece>,
    #[serde(deserialize_with = "nothing_is_empty")]
    objects: Vec<Piece>,
    #[serde(rename = "FLocks", deserialize_with = "nothing_is_empty")]
    flocks: Vec<Lock>,
    #[serde(rename = "PLocks", deserialize_with = "nothing_is_empty")]
    plocks: Vec<Lock>,
    tier: Tier,
    restore_status: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Summary {
    length: u64,
    size: u64,
    files: u64,
    dirs: u64,
}

/// A slice record or an object.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Piece {
    chunk_index: u64,
    id: u64,
    key: String,
    size: u64,
    off: u64,
    len: u64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Lock {
    sid: u64,
    owner: u64,
    #[serde(alias = "Ltype")]
    r#type: serde_json::Value,
    pid: u64,
    start: u64,
    end: u64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Tier {
    #[serde(rename = "ID")]
    id: u8,
    storage_class: String,
    tag: String,
}

fn nothing_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub fn run(args: Args) -> anyhow::Result<()> {
    for path in &args.paths {
        // One that fails does not keep the others from being shown; the peer does not call it a failure either.
        if let Err(error) = show(&args, path) {
            tracing::error!("{error:#}");
        }
    }
    Ok(())
}

fn show(args: &Args, path: &Path) -> anyhow::Result<()> {
    let (dir, ino, title) = if args.inode {
        let ino: u64 =
            path.to_str().and_then(|text| text.parse().ok()).with_context(|| format!("{path:?} is no inode"))?;
        (PathBuf::from("."), ino, ino.to_string())
    } else {
        let absolute = std::path::absolute(path).with_context(|| format!("find {path:?}"))?;
        let metadata = absolute.symlink_metadata().with_context(|| format!("lookup inode for {path:?}"))?;
        let dir = match metadata.is_dir() {
            true => absolute,
            false => absolute.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf),
        };
        (dir, metadata.ino(), path.display().to_string())
    };
    let mut file = control::open(&dir)?;
    let mut body = ino.to_be_bytes().to_vec();
    body.extend([u8::from(args.recursive), u8::from(args.raw), u8::from(args.strict)]);
    let info: Info = match control::request(&mut file, control::INFO, &body, |_, _| {})? {
        Answer::Data(json) => serde_json::from_slice(&json).context("read the mount's answer")?,
        Answer::Errno(errno) => bail!("info {title}: {errno}"),
        Answer::Done => bail!("info {title}: the mount gave no data"),
    };
    if info.failed {
        bail!("info {title}: {}", info.reason);
    }
    print!("{} :\n{}", one_line(&title), described(&info, args.raw));
    Ok(())
}

/// What is shown of an answer.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn shown(json: &[u8], raw: bool) -> anyhow::Result<String> {
    Ok(described(&serde_json::from_slice(json)?, raw))
}

fn described(info: &Info, raw: bool) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{label:>7}: {text}");
    };
    let summary = &info.summary;
    let both = |bytes: u64| match bytes {
        0..1024 => binary(bytes),
        _ => format!("{} ({bytes} Bytes)", binary(bytes)),
    };
    line("inode", info.ino.to_string());
    line("files", summary.files.to_string());
    line("dirs", summary.dirs.to_string());
    line("length", both(summary.length));
    line("size", both(summary.size));
    match &info.paths[..] {
        [] => line("path", "unknown".into()),
        [path] => line("path", one_line(path).into_owned()),
        paths => line("paths", paths.iter().map(|path| format!("\n\t{}", one_line(path))).collect()),
    }
    let tag = if info.tier.tag.is_empty() { String::new() } else { format!("tag: {}", info.tier.tag) };
    line("tier", format!("{}->{} {tag}", info.tier.id, info.tier.storage_class));
    if !info.restore_status.is_empty() {
        line("restore status", info.restore_status.clone());
    }
    let number = |n: u64| n.to_string();
    let mut table = |title: &str, head: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            let _ = write!(out, "{title}\n{}", drawn(head, &rows));
        }
    };
    if raw {
        let row = |p: &Piece| [p.chunk_index, p.id, p.size, p.off, p.len].map(number).to_vec();
        let rows = info.chunks.iter().map(row).collect();
        table(" chunks:", &["chunkIndex", "sliceId", "size", "offset", "length"], rows);
    } else {
        let row = |(p, pos): (&Piece, u64)| {
            vec![number(p.chunk_index), p.key.clone(), number(p.size), number(p.off), number(p.len), number(pos)]
        };
        let rows = info.objects.iter().zip(positions(&info.objects)).map(row).collect();
        table(" objects:", &["chunkIndex", "objectName", "size", "offset", "length", "pos"], rows);
    }
    // POSIX locks come with the kernel's number of their kind.
    let kind = |lock: &Lock| match (lock.r#type.as_str(), lock.r#type.as_u64()) {
        (Some(letter), _) => letter.to_owned(),
        (None, Some(0)) => "R".into(),
        (None, Some(1)) => "W".into(),
        (None, _) => lock.r#type.to_string(),
    };
    let flocks = info.flocks.iter().map(|l| vec![number(l.sid), number(l.owner), kind(l)]).collect();
    table(" flocks:", &["Sid", "Owner", "Type"], flocks);
    let row = |l: &Lock| vec![number(l.sid), number(l.owner), kind(l), number(l.pid), number(l.start), number(l.end)];
    table(" plocks:", &["Sid", "Owner", "Type", "Pid", "Start", "End"], info.plocks.iter().map(row).collect());
    out
}

/// Where each piece begins in the file: those of a chunk follow one another from its start.
fn positions(pieces: &[Piece]) -> Vec<u64> {
    let (mut chunk, mut next) = (0, 0);
    let position = |piece: &Piece| {
        if piece.chunk_index != chunk {
            (chunk, next) = (piece.chunk_index, piece.chunk_index.saturating_mul(CHUNK_BYTES));
        }
        let here = next;
        next = next.saturating_add(piece.len);
        here
    };
    pieces.iter().map(position).collect()
}

/// Two decimals: `5.00 MiB`.
fn binary(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} Bytes");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.2} {unit}")
}

/// A table with lines around its cells: titles centred, numbers on the right.
fn drawn(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..head.len())
        .map(|i| rows.iter().map(|row| row[i].len()).chain([head[i].len()]).max().unwrap_or(0))
        .collect();
    let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect::<String>() + "+\n";
    // Centred; what cannot be split evenly goes to the left.
    let centred = |title: &str, width: usize| format!("{}{title}", " ".repeat((width - title.len()).div_ceil(2)));
    let titles: String =
        head.iter().zip(&widths).map(|(title, width)| format!("| {:<width$} ", centred(title, *width))).collect();
    let mut out = format!("{rule}{titles}|\n{rule}");
    for row in rows {
        let cell = |(cell, width): (&String, &usize)| match cell.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("| {cell:>width$} "),
            false => format!("| {cell:<width$} "),
        };
        let cells: String = row.iter().zip(&widths).map(cell).collect();
        out.push_str(&cells);
        out.push_str("|\n");
    }
    out + &rule
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_shown_as_the_peer_shows_it() {
        let json = r#"{"Ino":5,"Failed":false,"Reason":"","Summary":{"Length":5242897,"Size":5246976,"Files":1,"Dirs":0},
            "Paths":["/f3"],"Chunks":null,"Objects":[{"ChunkIndex":0,"Key":"vnone/chunks/0/8/8197_0_4194304",
            "Size":4194304,"Off":0,"Len":4194304},{"ChunkIndex":0,"Key":"k","Size":1,"Off":0,"Len":1},
            {"ChunkIndex":1,"Key":"","Size":0,"Off":0,"Len":7}],"PLocks":null,"FLocks":null,
            "Tier":{"ID":0,"StorageClass":"actual()","Tag":""},"RestoreStatus":""}"#;
        let text = described(&serde_json::from_str(json).unwrap(), false);
        let expected = "  inode: 5
  files: 1
   dirs: 0
 length: 5.00 MiB (5242897 Bytes)
   size: 5.00 MiB (5246976 Bytes)
   path: /f3
   tier: 0->actual() 
 objects:
+------------+---------------------------------+---------+--------+---------+----------+
| chunkIndex |            objectName           |   size  | offset |  length |    pos   |
+------------+---------------------------------+---------+--------+---------+----------+
|          0 | vnone/chunks/0/8/8197_0_4194304 | 4194304 |      0 | 4194304 |        0 |
|          0 | k                               |       1 |      0 |       1 |  4194304 |
|          1 |                                 |       0 |      0 |       7 | 67108864 |
+------------+---------------------------------+---------+--------+---------+----------+
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_answer_with_less_in_it_is_shown_too() {
        let info: Info = serde_json::from_str(r#"{"Ino":7,"Summary":{},"Paths":["/a","/b"]}"#).unwrap();
        let text = described(&info, true);
        assert!(text.contains("  paths: \n\t/a\n\t/b\n"), "{text}");
        assert!(text.contains(" length: 0 Bytes\n"), "{text}");
        let info: Info = serde_json::from_str(r#"{"Ino":7,"Paths":["/a\nb\u001b[31m"]}"#).unwrap();
        let text = described(&info, true);
        assert!(text.contains("   path: /a\\nb\\u{1b}[31m\n"), "{text}");
    }
}
