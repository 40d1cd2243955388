//! Meta URLs of every engine: their parts, what is refused, and that no password is shown.

use super::*;
use std::collections::HashMap;

#[derive(Default)]
struct Given(HashMap<&'static str, &'static str>);

impl Passwords for Given {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| value.to_string())
    }

    fn file(&self, path: &str) -> ConfigResult<String> {
        self.variable(path).ok_or_else(|| ConfigError::new("no such file"))
    }
}

fn parse(text: &str) -> MetaUri {
    MetaUri::parse_with(text, &Given::default()).unwrap()
}

fn redis_of(text: &str) -> RedisUri {
    match parse(text) {
        MetaUri::Redis(redis) => redis,
        other => panic!("{other}"),
    }
}

#[test]
fn redis_urls_have_their_parts() {
    let uri = redis_of("redis://bob:p%40ss@10.0.0.1:7000/3?read_timeout=5s&client-cache=true");
    assert_eq!(uri.address, RedisAddress::Tcp(vec![("10.0.0.1".into(), 7000)]));
    assert_eq!((uri.username.as_deref(), uri.password.as_ref().unwrap().expose()), (Some("bob"), "p@ss"));
    assert_eq!((uri.db, uri.option("read-timeout"), uri.option("client-cache")), (3, Some("5s"), Some("true")));
    let plain = redis_of("localhost/1");
    assert_eq!((plain.address, plain.db, plain.tls), (RedisAddress::Tcp(vec![("localhost".into(), 6379)]), 1, false));
    assert!(redis_of("rediss://:x@h").tls);
    assert_eq!(redis_of("redis://[::1]:6380").address, RedisAddress::Tcp(vec![("::1".into(), 6380)]));
    let cluster = redis_of("redis://a:1,b:2,c/0");
    assert_eq!(cluster.address, RedisAddress::Tcp(vec![("a".into(), 1), ("b".into(), 2), ("c".into(), 6379)]));
    let sentinel = redis_of("redis://mymaster,a,b:5000/2").address;
    let expected = vec![("a".into(), 5000), ("b".into(), 5000)];
    assert_eq!(sentinel, RedisAddress::Sentinel { master: "mymaster".into(), sentinels: expected, password: None });
    let unix = redis_of("unix:///run/r.sock?db=4");
    assert_eq!((unix.address, unix.db), (RedisAddress::Unix("/run/r.sock".into()), 4));
}

#[test]
fn passwords_of_the_environment_fill_in_what_the_url_leaves_out() {
    let with = |text, given: &[(&'static str, &'static str)]| match MetaUri::parse_with(
        text,
        &Given(given.iter().copied().collect()),
    )
    .unwrap()
    {
        MetaUri::Redis(redis) => redis.password.map(|p| p.expose().to_string()),
        other => panic!("{other}"),
    };
    assert_eq!(with("h", &[("META_PASSWORD", "m"), ("REDIS_PASSWORD", "r")]).as_deref(), Some("r"));
    assert_eq!(with("h", &[("META_PASSWORD", "m")]).as_deref(), Some("m"));
    assert_eq!(with("redis://u:@h", &[("META_PASSWORD_FILE", "f"), ("f", "line\nmore")]).as_deref(), Some("line"));
    assert_eq!(with("redis://:own@h", &[("META_PASSWORD", "m")]).as_deref(), Some("own"));
    assert!(MetaUri::parse_with("h", &Given([("META_PASSWORD_FILE", "f")].into())).is_err());
}

#[test]
fn display_masks_the_password_and_the_full_form_keeps_it() {
    for text in ["redis://bob:p%40ss@h:6379/3?read-timeout=5s", "unix://:p%40ss@/run/r.sock?db=4"] {
        let uri = parse(text);
        assert!(!uri.to_string().contains("p%40ss") && uri.to_string().contains(":****@"), "{uri}");
        assert!(!format!("{uri:?}").contains("p@ss"));
        assert_eq!(uri.with_password().expose(), text);
        assert_eq!(parse(uri.with_password().expose()), uri);
    }
    assert_eq!(parse("localhost").to_string(), "redis://localhost:6379/0");
}

#[test]
fn hostile_urls_are_refused_in_one_sentence_without_what_was_typed() {
    for text in [
        "redis://:hunter2",
        "redis://user:hunter2/1",
        "redis://h/hunter2",
        "redis://h:99999/hunter2",
        "redis://:hunter2@h:-1",
        "redis://:hunter2@h:65536/0",
        "redis://:hunter2@h/99999999999",
        "redis://:hunter2@h/2147483648",
        "redis://:hunter2@h o s t",
        "redis://:hunter2@[::1",
        "redis://:hunter2@[::1]x",
        "redis://:hunter2@h#fragment",
        "redis://:hunter2@,h",
        "redis://:hunter2%zz@h",
        "redis://:hunter2%ff@h",
        "redis://:hunter2@h\n/1",
        "redis://:hunter2\0@h",
        "unix://user:hunter2/x@/run/redis.sock",
        "unix://hunter2",
        "unix:///run/%0a.sock",
        "sqlite3://?hunter2",
        "sqlite3://a\u{1b}[2J.db",
        "hunter2://h",
        "hunter2://",
        "://hunter2",
    ] {
        let error = MetaUri::parse_with(text, &Given::default()).expect_err(text).to_string();
        assert!(!error.contains("hunter2") && error.lines().count() == 1, "{text:?}: {error}");
    }
}

/// Passwords may hold anything; what is handed to a child process says the same.
#[test]
fn passwords_with_the_marks_of_a_url_survive() {
    for password in ["p@ss", "a:b", "a/b", "a?b=c&d", "100%", "#", "[x]", " ", "\n", "ü,", "@@", "://"] {
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let uri = redis_of(&format!("redis://u:{encoded}@h:1/2?x=y"));
        assert_eq!(uri.password.as_ref().map(Secret::expose), Some(password));
        let again = MetaUri::Redis(uri.clone()).with_password();
        assert_eq!(redis_of(again.expose()), uri, "{again:?}");
        assert!(!again.expose()["redis://u:".len()..].trim_end_matches("@h:1/2?x=y").contains(['/', '@', '?', '#']));
    }
    let typed = redis_of("redis://:p@ss:word@[::1]:1");
    assert_eq!(typed.password.as_ref().map(Secret::expose), Some("p@ss:word"));
    let socket = redis_of("unix:///run/a%20b%3f.sock");
    assert_eq!(socket.address, RedisAddress::Unix("/run/a b?.sock".into()));
    assert_eq!(MetaUri::Redis(socket).to_string(), "unix:///run/a%20b%3F.sock?db=0");
}

#[test]
fn sqlite_paths_become_absolute() {
    let uri = parse("sqlite3://my.db?_timeout=1000").absolute(Path::new("/home/x"));
    assert_eq!(uri.to_string(), "sqlite3:///home/x/my.db?_timeout=1000");
    assert_eq!(uri.clone().absolute(Path::new("/other")), uri);
    let MetaUri::Sqlite(memory) = parse("sqlite3://:memory:").absolute(Path::new("/x")) else { panic!() };
    assert!(memory.is_memory());
}

#[test]
fn other_engines_are_known_and_refused() {
    let refused = |text| MetaUri::parse_with(text, &Given::default()).unwrap_err().to_string();
    assert!(refused("badger://u:secret@dir").contains("badger:// is not in this build"));
    assert!(refused("fdb://h").contains("sqlite3://"));
    assert!(!refused("memkv://u:secret@x").contains("secret"));
    for wrong in
        ["redis://", "redis://h/x", "redis://h:port", "redis://:%zz@h", "sqlite3://?x=1", "what://x", "redis://[::1"]
    {
        refused(wrong);
    }
}

fn server_of(text: &str) -> ServerUri {
    match parse(text) {
        MetaUri::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

#[test]
fn server_urls_have_their_parts() {
    let mysql = server_of("mysql://bob:p@ss/w:rd)%40@(10.0.0.1:3307)/jfs?max_open_conns=5&tls=true");
    assert_eq!((mysql.server, mysql.path.as_str()), (Server::Mysql, "jfs"));
    assert_eq!(mysql.password.as_ref().map(|p| p.expose().to_string()).as_deref(), Some("p@ss/w:rd)%40"));
    assert_eq!(mysql.address, ServerAddress::Tcp(vec![("10.0.0.1".into(), 3307)]));
    assert_eq!(mysql.option("max_open_conns"), Some("5"));
    assert_eq!(server_of("mysql://root@unix(/run/my.sock)/a").address, ServerAddress::Unix("/run/my.sock".into()));
    assert_eq!(server_of("mysql://h/a").address, ServerAddress::Tcp(vec![("h".into(), 3306)]));
    let postgres = server_of("postgres://u:p%40ss@h/db?search_path=s");
    assert_eq!(postgres.password.as_ref().map(|p| p.expose().to_string()).as_deref(), Some("p@ss"));
    assert_eq!(postgres.address, ServerAddress::Tcp(vec![("h".into(), 5432)]));
    let etcd = server_of("etcd://a,b:5/some/where?cacert=/ca");
    assert_eq!(etcd.address, ServerAddress::Tcp(vec![("a".into(), 2379), ("b".into(), 5)]));
    assert_eq!(etcd.path, "some/where");
    assert_eq!(server_of("tikv://pd").path, "");
    for text in [
        "mysql://bob:p@ss%40@(10.0.0.1:3307)/jfs?tls=true",
        "mysql://root:x@unix(/run/my.sock)/a",
        "postgres://u:p%40ss@h:5432/db?search_path=s",
        "postgres:///db?host=/run",
        "etcd://u:x@a:2379,b:5/some/where?cacert=/ca",
        "tikv://pd:2379",
    ] {
        let uri = server_of(text);
        let again = MetaUri::Server(uri.clone()).with_password();
        assert_eq!(server_of(again.expose()), uri, "{text}");
        let shown = MetaUri::Server(uri.clone()).to_string();
        assert_eq!(shown.contains("****"), uri.password.is_some(), "{shown}");
    }
}

#[test]
fn wrong_server_urls_are_refused_without_their_password() {
    for text in [
        "mysql://u:hunter2@(h:3306)",
        "mysql://u:hunter2@(h:3306/db",
        "mysql://u:hunter2@udp(h:3306)/db",
        "mysql://u:hunter2@unix(relative)/db",
        "postgres://u:hunter2@a,b/db",
        "postgres://u:hunter2@h",
        "postgres://u:hunter2%zz@h/db",
        "postgres://h/db?password=hunter2",
        "etcd://u:hunter2@h:port",
        "tikv://hunter2:99999/x",
    ] {
        let said = MetaUri::parse_with(text, &Given::default()).expect_err(text).to_string();
        assert!(!said.contains("hunter2"), "{text}: {said}");
    }
}
