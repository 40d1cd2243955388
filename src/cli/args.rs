//! The peer's habits of the command line, made into what clap understands (`spec/surface.md` 1).
//!
//! Options may stand anywhere, global ones too; one or two dashes before a long name are the same; a switch may be given
//! a value (`--writeback=false`); the last of several wins. [`prepare`] puts the words in clap's order and answers what
//! clap would answer differently: an unknown option or command gets the nearest known one, a wrong number of arguments
//! the peer's three lines.

use clap::{ArgAction, Command};
use std::ffi::{OsStr, OsString};
use std::fmt;

/// Why the words are not a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Usage {
    UnknownOption {
        option: String,
        nearest: Option<String>,
    },
    UnknownCommand {
        command: String,
        nearest: Option<String>,
    },
    MissingValue {
        option: String,
    },
    NotBoolean {
        option: String,
        value: String,
    },
    NotText,
    /// The lines for standard output.
    Arguments(String),
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Usage::UnknownOption { option, nearest } => {
                write!(f, "unknown option: \"{option}\"")?;
                nearest.iter().try_for_each(|near| write!(f, ", did you mean \"{near}\"?"))
            }
            Usage::UnknownCommand { command, nearest } => {
                write!(f, "unknown command: \"{command}\"")?;
                nearest.iter().try_for_each(|near| write!(f, ", did you mean \"{near}\"?"))
            }
            Usage::MissingValue { option } => write!(f, "option {option} requires a value"),
            Usage::NotBoolean { option, value } => write!(f, "invalid boolean value \"{value}\" for {option}"),
            Usage::NotText => f.write_str("an option is not valid UTF-8"),
            Usage::Arguments(lines) => f.write_str(lines.lines().next().unwrap_or_default()),
        }
    }
}

/// One option as clap knows it, found under some name.
struct Known<'a> {
    long: &'a str,
    value: Value,
}

/// What an option does with a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// Needs one.
    Needed,
    /// A switch: on, unless the value says otherwise.
    Switch,
    /// On or off, and not given is a third answer.
    Boolean,
}

fn find<'a>(command: &'a Command, name: &str) -> Option<Known<'a>> {
    let mut single = name.chars();
    let single = single.next().filter(|_| single.next().is_none());
    command.get_arguments().find_map(|arg| {
        let long = arg.get_long()?;
        let by_long = long == name || arg.get_all_aliases().is_some_and(|all| all.contains(&name));
        let by_short = single.is_some() && arg.get_short() == single;
        (by_long || by_short).then(|| Known {
            long,
            value: match arg.get_action() {
                ArgAction::Set | ArgAction::Append if arg.get_num_args().is_some_and(|n| n.min_values() == 0) => {
                    Value::Boolean
                }
                ArgAction::Set | ArgAction::Append => Value::Needed,
                _ => Value::Switch,
            },
        })
    })
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long())
}

/// Puts the words of a command line (without the program) in clap's order: program, global options, command, its
/// options, `--`, arguments. `root` must be built.
pub fn prepare(root: &Command, words: Vec<OsString>) -> Result<Vec<OsString>, Usage> {
    let mut globals = Vec::new();
    let mut options = Vec::new();
    let mut arguments = Vec::new();
    let mut command: Option<&Command> = None;
    let mut only_arguments = false;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let is_option = !only_arguments && word.as_encoded_bytes().first() == Some(&b'-') && word.len() > 1;
        if is_option && word == "--" {
            only_arguments = true;
        } else if is_option {
            let text = word.to_str().ok_or(Usage::NotText)?;
            let body = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).unwrap_or(text);
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (body, None),
            };
            let (known, target) = match command.and_then(|command| find(command, name)) {
                Some(known) => (known, &mut options),
                None => match find(root, name) {
                    Some(known) => (known, &mut globals),
                    None => return Err(unknown_option(root, command, &text[..text.len() - body.len()], name)),
                },
            };
            let option = format!("--{}", known.long);
            if known.value == Value::Boolean {
                target.push(format!("{option}={}", boolean(&option, value.as_deref())?).into());
            } else if known.value == Value::Needed {
                let value =
                    value.or_else(|| words.next()).ok_or_else(|| Usage::MissingValue { option: option.clone() })?;
                let mut word = OsString::from(option + "=");
                word.push(value);
                target.push(word);
            } else {
                let long = known.long;
                // The last one wins, also when it says no.
                target.retain(|word: &OsString| word.to_str().is_none_or(|word| word.strip_prefix("--") != Some(long)));
                if boolean(&option, value.as_deref())? {
                    target.push(option.into());
                }
            }
        } else if command.is_none() && !only_arguments {
            let name = word.to_string_lossy();
            command = match root.find_subcommand(&*name) {
                Some(found) => Some(found),
                None => {
                    let known = root.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name);
                    let nearest = nearest(&name, known).map(str::to_string);
                    return Err(Usage::UnknownCommand { command: name.into_owned(), nearest });
                }
            };
        } else {
            arguments.push(word);
        }
    }
    let mut out = vec![OsString::from(root.get_name())];
    out.append(&mut globals);
    if let Some(command) = command {
        let asks_for_help = options.iter().any(|option| option == "--help");
        if !asks_for_help {
            count_arguments(root, command, &arguments)?;
        }
        out.push(command.get_name().into());
        out.append(&mut options);
        if !arguments.is_empty() {
            out.push("--".into());
            out.append(&mut arguments);
        }
    }
    Ok(out)
}

fn boolean(option: &str, value: Option<&OsStr>) -> Result<bool, Usage> {
    let Some(value) = value else { return Ok(true) };
    match value.to_str() {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        _ => Err(Usage::NotBoolean { option: option.into(), value: value.to_string_lossy().into_owned() }),
    }
}

/// The value is left out: it may be a secret.
fn unknown_option(root: &Command, command: Option<&Command>, dashes: &str, name: &str) -> Usage {
    let known = command.into_iter().flat_map(names).chain(names(root));
    let nearest = nearest(name, known).map(|near| format!("--{near}"));
    Usage::UnknownOption { option: format!("{dashes}{name}"), nearest }
}

fn count_arguments(root: &Command, command: &Command, given: &[OsString]) -> Result<(), Usage> {
    let (mut least, mut most) = (0, Some(0));
    for positional in command.get_positionals() {
        least += usize::from(positional.is_required_set());
        let several = matches!(positional.get_action(), ArgAction::Append);
        most = if several { None } else { most.map(|most| most + 1) };
    }
    let problem = if given.len() < least {
        let s = if least == 1 { "" } else { "s" };
        format!("This command requires at least {least} argument{s}")
    } else if let Some(most) = most.filter(|most| given.len() > *most) {
        let s = if most == 1 { "" } else { "s" };
        let given: Vec<String> = given.iter().map(|word| mask(&word.to_string_lossy())).collect();
        format!("This command accept at most {most} argument{s} but got [{}]", given.join(" "))
    } else {
        return Ok(());
    };
    let names: Vec<String> = command
        .get_positionals()
        .flat_map(|positional| positional.get_value_names().unwrap_or_default().iter().map(|name| name.to_string()))
        .collect();
    let usage = format!("{} {} [command options] {}", root.get_name(), command.get_name(), names.join(" "));
    Err(Usage::Arguments(format!("ERROR: {problem}\nUSAGE:\n   {usage}")))
}

/// Hides the password of a URL, whatever kind of URL it is.
pub fn mask(text: &str) -> String {
    let rest = text.find("://").map_or(0, |at| at + 3);
    let Some(at) = text[rest..].rfind('@').map(|at| rest + at) else { return text.to_string() };
    match text[rest..at].find(':') {
        Some(colon) => format!("{}:****{}", &text[..rest + colon], &text[at..]),
        None => text.to_string(),
    }
}

/// The known word that `word` was probably meant to be: few edits away, for its length.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, best)| best)
}

/// Edits (insert, delete, replace, swap of neighbours) that make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let width = b.len() + 1;
    let mut table = vec![0; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replace = table[(i - 1) * width + j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let edit = table[(i - 1) * width + j].min(table[i * width + j - 1]) + 1;
                let swap = match i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    true => table[(i - 2) * width + j - 2] + 1,
                    false => usize::MAX,
                };
                replace.min(edit).min(swap)
            };
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn root() -> Command {
        let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let valued = |name: &'static str| Arg::new(name).long(name);
        let mut root = Command::new("sluice")
            .arg(switch("verbose").short('v').alias("debug"))
            .arg(valued("log-id"))
            .subcommand(
                Command::new("mount")
                    .arg(switch("background").short('d'))
                    .arg(switch("writeback"))
                    .arg(valued("subdir"))
                    .arg(valued("o").short('o'))
                    .arg(Arg::new("meta").value_name("META-URL").required(true))
                    .arg(Arg::new("point").value_name("MOUNTPOINT").required(true)),
            )
            .subcommand(
                Command::new("info")
                    .arg(Arg::new("paths").value_name("PATH").required(true).action(ArgAction::Append).num_args(1..)),
            );
        root.build();
        root
    }

    fn words(line: &str) -> Result<String, Usage> {
        let words = prepare(&root(), line.split(' ').map(OsString::from).collect())?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_may_stand_anywhere_with_one_or_two_dashes() {
        let expected = "sluice --verbose mount --background --subdir=x -- redis://h /mnt";
        for line in [
            "mount -d --subdir x redis://h /mnt -v",
            "-v mount redis://h -d /mnt -subdir x",
            "--debug mount --d redis://h /mnt --subdir=x",
            "mount redis://h /mnt --v -background -subdir=x",
        ] {
            let got = words(line).unwrap();
            let sorted = |text: &str| {
                let mut words: Vec<_> = text.split(' ').map(str::to_string).collect();
                words.sort();
                words
            };
            assert_eq!(sorted(&got), sorted(expected), "{line}: {got}");
        }
        assert_eq!(words("mount a -- -b"), Ok("sluice mount -- a -b".into()));
        assert_eq!(words("mount --subdir -5 a b"), Ok("sluice mount --subdir=-5 -- a b".into()));
    }

    #[test]
    fn switches_may_be_switched_off() {
        assert_eq!(words("mount a b --writeback=false"), Ok("sluice mount -- a b".into()));
        assert_eq!(words("mount a b --writeback --writeback=0"), Ok("sluice mount -- a b".into()));
        assert_eq!(words("mount a b --writeback=T"), Ok("sluice mount --writeback -- a b".into()));
        assert!(matches!(words("mount a b --writeback=maybe"), Err(Usage::NotBoolean { .. })));
    }

    #[test]
    fn unknown_words_get_the_nearest_known_one() {
        let text = |line| words(line).unwrap_err().to_string();
        assert_eq!(text("mount --writebak=x a b"), "unknown option: \"--writebak\", did you mean \"--writeback\"?");
        assert_eq!(text("mount -subidr x a b"), "unknown option: \"-subidr\", did you mean \"--subdir\"?");
        assert_eq!(text("mount --zzzzzz a b"), "unknown option: \"--zzzzzz\"");
        assert_eq!(text("muont a b"), "unknown command: \"muont\", did you mean \"mount\"?");
        assert_eq!(text("--writeback mount a b"), "unknown option: \"--writeback\"");
        assert_eq!(text("mount a b --subdir"), "option --subdir requires a value");
        assert!(!text("mount --secretkey=hunter2 a b").contains("hunter2"));
    }

    #[test]
    fn wrong_numbers_of_arguments_are_answered_as_the_peer_does() {
        let lines = |line| match words(line) {
            Err(Usage::Arguments(lines)) => lines,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            lines("mount redis://h"),
            "ERROR: This command requires at least 2 arguments\nUSAGE:\n   sluice mount [command options] META-URL MOUNTPOINT"
        );
        assert!(
            lines("mount redis://:pw@h b c")
                .starts_with("ERROR: This command accept at most 2 arguments but got [redis://:****@h b c]\n")
        );
        assert!(lines("info").starts_with("ERROR: This command requires at least 1 argument\n"));
        assert_eq!(words("info a b c"), Ok("sluice info -- a b c".into()));
        assert_eq!(words("mount --help"), Ok("sluice mount --help".into()));
    }

    #[test]
    fn passwords_in_urls_are_masked() {
        assert_eq!(mask("redis://bob:s3cr3t@h:1/2"), "redis://bob:****@h:1/2");
        assert_eq!(mask("mysql://u:p@ss@(h)/d"), "mysql://u:****@(h)/d");
        assert_eq!(mask(":pw@host"), ":****@host");
        assert_eq!(mask("redis://bob@h"), "redis://bob@h");
        assert_eq!(mask("/some/path"), "/some/path");
    }

    #[test]
    fn distances_count_edits() {
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
