//! `--update-fstab`: one line in /etc/fstab that mounts the same at boot, and the helper that mount(8) will look for
//! (`spec/surface.md` 11.1).

use anyhow::{Context as _, bail};
use std::path::Path;

const FSTAB: &str = "/etc/fstab";
const HELPER: &str = "/sbin/mount.sluicefs";

/// The type in the table. Lines of either type are recognised, ours is written.
const TYPE: &str = "sluicefs";

/// Writes or replaces the line for `source` at `target`. `options` are `name` or `name=value`, `further` what `-o` said.
pub fn update(source: &str, target: &Path, options: &[String], further: &[String]) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("--update-fstab needs root");
    }
    if Path::new("/.dockerenv").exists() || std::env::var_os("JFS_INSIDE_CONTAINER").is_some() {
        tracing::warn!("--update-fstab has no effect in a container");
        return Ok(());
    }
    if !Path::new(HELPER).exists() {
        let program = std::env::current_exe().context("find this program")?;
        std::os::unix::fs::symlink(&program, HELPER).with_context(|| format!("make the link {HELPER}"))?;
    }
    let line = entry(source, target, options, further);
    let table = std::fs::read_to_string(FSTAB).with_context(|| format!("read {FSTAB}"))?;
    let updated = replaced(&table, source, target, &line);
    if updated == table {
        return Ok(());
    }
    // A crash in between must not leave a machine without its table.
    let temporary = format!("{FSTAB}.sluicefs");
    std::fs::write(&temporary, updated).with_context(|| format!("write {temporary}"))?;
    let permissions = std::fs::metadata(FSTAB).with_context(|| format!("look at {FSTAB}"))?.permissions();
    std::fs::set_permissions(&temporary, permissions).with_context(|| format!("set the mode of {temporary}"))?;
    std::fs::rename(&temporary, FSTAB).with_context(|| format!("replace {FSTAB}"))
}

pub(super) fn entry(source: &str, target: &Path, options: &[String], further: &[String]) -> String {
    let mut all = options.to_vec();
    all.extend(further.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()).map(str::to_string));
    all.sort();
    all.dedup();
    let mut list = vec!["_netdev".to_string(), "nofail".to_string()];
    list.extend(all.iter().map(|option| field(option)));
    let target = field(&target.to_string_lossy());
    format!("{}  {target}  {TYPE}  {}  0 0", field(source), list.join(","))
}

/// A field of the table: what separates fields is written in octal.
fn field(text: &str) -> String {
    let octal = |c: char| match c {
        '\\' | ' ' | '\t' | '\n' | '\r' => format!("\\{:03o}", c as u32),
        other => other.to_string(),
    };
    text.chars().map(octal).collect()
}

pub(super) fn replaced(table: &str, source: &str, target: &Path, line: &str) -> String {
    let (source, target) = (field(source), field(&target.to_string_lossy()));
    let same = |old: &str| {
        let mut fields = old.split_whitespace();
        fields.next() == Some(&source)
            && fields.next() == Some(&target)
            && matches!(fields.next(), Some("sluicefs" | "juicefs" | "fuse.sluicefs" | "fuse.juicefs"))
    };
    let mut done = false;
    let mut out = String::new();
    // Other lines stay as they are, to the byte.
    for old in table.split_terminator('\n') {
        if !same(old) {
            out.push_str(old);
        } else if !done {
            done = true;
            out.push_str(line);
        } else {
            continue;
        }
        out.push('\n');
    }
    if !done {
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_added_once_and_replaced_later() {
        let options = ["writeback".to_string(), "cache-size=1024".to_string()];
        let line = entry("redis://h/1", Path::new("/mnt/a b"), &options, &["allow_other".to_string()]);
        assert_eq!(
            line,
            "redis://h/1  /mnt/a\\040b  sluicefs  _netdev,nofail,allow_other,cache-size=1024,writeback  0 0"
        );
        let table = "# comment\nUUID=1 / ext4 defaults 0 1\n";
        let once = replaced(table, "redis://h/1", Path::new("/mnt/a b"), &line);
        assert_eq!(once, format!("{table}{line}\n"));
        let other = once.replace("writeback", "read-only").replace("  sluicefs  ", "  juicefs  ");
        assert_eq!(replaced(&other, "redis://h/1", Path::new("/mnt/a b"), &line), once);
        assert_eq!(replaced(&once, "redis://h/1", Path::new("/elsewhere"), "x"), format!("{once}x\n"));
        let hostile = entry("a\nb", Path::new("/m\t\\"), &["subdir=x y\n/dev/sda / ext4".to_string()], &[]);
        assert_eq!(
            hostile,
            "a\\012b  /m\\011\\134  sluicefs  _netdev,nofail,subdir=x\\040y\\012/dev/sda\\040/\\040ext4  0 0"
        );
    }
}
