//! `mount -t sluicefs` and `mount -t juicefs`: mount(8) calls `mount.TYPE SOURCE DIR -o OPTIONS` (`spec/surface.md` 11.2).
//!
//! The call is translated into a `mount -d` command: what is an option of ours gets its dashes back, what only concerns
//! mount(8) is dropped, the rest goes to FUSE as it came.

use super::Cli;
use anyhow::bail;
use clap::{ArgAction, CommandFactory};
use std::ffi::{OsStr, OsString};

/// Options that are meant for mount(8) and the boot, not for us.
const DROPPED: [&str; 6] = ["_netdev", "nofail", "rw", "defaults", "remount", "background"];

/// Old names of the kernel caches.
const OLD_NAMES: [(&str, &str); 3] =
    [("attrcacheto", "attr-cache"), ("entrycacheto", "entry-cache"), ("direntrycacheto", "dir-entry-cache")];

/// Whether the program was called as a mount helper.
pub fn is_called_by(name: &OsStr) -> bool {
    let file = std::path::Path::new(name).file_name().unwrap_or(name);
    file == "mount.sluicefs" || file == "mount.juicefs" || std::env::var_os("CALL_VIA_MOUNT").is_some()
}

/// The words of the `mount` command that the helper's words mean.
pub fn translate(words: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let mut arguments = Vec::new();
    let mut options = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => match words.next().and_then(|list| list.to_str()) {
                Some(list) => options.extend(list.split(',').filter(|option| !option.is_empty())),
                None => bail!("option -o requires a value"),
            },
            // mount(8) passes these on: sloppy, no mtab, verbose, fake (a dry run would mount nothing).
            Some("-s" | "-n" | "-v") => {}
            Some("-f") => bail!("a fake mount (-f) is not possible"),
            _ => arguments.push(word.clone()),
        }
    }
    let mut root = Cli::command();
    root.build();
    let mount = root.find_subcommand("mount").expect("mount is a command");
    let mut out: Vec<OsString> = vec!["mount".into(), "-d".into()];
    let mut rest = Vec::new();
    for option in options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let name = OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| *new);
        if DROPPED.contains(&name) {
            continue;
        }
        let known = |command: &clap::Command| {
            command.get_arguments().find_map(|arg| {
                let is = arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name));
                is.then(|| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
            })
        };
        match known(mount).or_else(|| known(&root)) {
            None => rest.push(option.to_string()),
            Some(true) => match value {
                Some(value) => out.push(format!("--{name}={value}").into()),
                None => bail!("option {name} requires a value"),
            },
            Some(false) => {
                let value = value.map(|value| format!("={value}")).unwrap_or_default();
                out.push(format!("--{name}{value}").into());
                if name == "debug" {
                    rest.push("debug".into());
                }
            }
        }
    }
    if !rest.is_empty() {
        out.push("-o".into());
        out.push(rest.join(",").into());
    }
    out.push("--".into());
    out.extend(arguments);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = translate(&words).map_err(|e| e.to_string())?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_line_of_fstab_becomes_a_mount_command() {
        assert_eq!(
            translated("redis://h/1 /mnt -o rw,_netdev,nofail,cache-size=1024,writeback,attrcacheto=2,allow_other,debug,x=y"),
            Ok("mount -d --cache-size=1024 --writeback --attr-cache=2 --debug -o allow_other,debug,x=y -- redis://h/1 /mnt".into())
        );
        assert_eq!(translated("redis://h /mnt"), Ok("mount -d -- redis://h /mnt".into()));
        assert_eq!(
            translated("redis://h /mnt -n -o ro,log-level=warn"),
            Ok("mount -d --log-level=warn -o ro -- redis://h /mnt".into())
        );
    }

    #[test]
    fn what_is_incomplete_is_refused() {
        assert_eq!(translated("h /mnt -o cache-size"), Err("option cache-size requires a value".into()));
        assert_eq!(translated("h /mnt -o"), Err("option -o requires a value".into()));
    }

    #[test]
    fn the_helper_is_known_by_its_name() {
        assert!(is_called_by(OsStr::new("/sbin/mount.sluicefs")) && is_called_by(OsStr::new("mount.juicefs")));
        assert!(!is_called_by(OsStr::new("/usr/bin/sluice")));
    }
}
