//! The commands from outside: words in, exit code, output and log lines out. No mounts; those are in `tests/mount`.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

struct Outcome {
    code: i32,
    out: String,
    log: String,
}

fn outcome(output: Output) -> Outcome {
    Outcome {
        code: output.status.code().expect("the command ended by itself"),
        out: String::from_utf8(output.stdout).expect("text"),
        log: String::from_utf8(output.stderr).expect("text"),
    }
}

/// A place for one volume: its metadata, its objects.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary directory"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.current_dir(self.0.path());
        for name in [
            "ACCESS_KEY",
            "SECRET_KEY",
            "SESSION_TOKEN",
            "META_PASSWORD",
            "JFS_NO_CHECK_OBJECT_STORAGE",
            "JFS_RSA_PASSPHRASE",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, words: &str) -> Outcome {
        outcome(self.command().args(words.split_whitespace()).output().expect("the binary runs"))
    }

    /// Runs a command that must succeed and answers its standard output.
    fn ok(&self, words: &str) -> String {
        let outcome = self.run(words);
        assert_eq!(outcome.code, 0, "{words}: {}{}", outcome.out, outcome.log);
        outcome.out
    }

    /// Runs a command that must fail and answers its last log line.
    fn fails(&self, words: &str) -> String {
        let outcome = self.run(words);
        assert_eq!(outcome.code, 1, "{words}: {}{}", outcome.out, outcome.log);
        outcome.log.lines().last().unwrap_or_default().to_string()
    }

    fn format(&self, options: &str) -> Outcome {
        self.run(&format!("format sqlite3://meta.db vol --bucket objects {options}"))
    }

    fn record(&self) -> Value {
        serde_json::from_str(&self.ok("config sqlite3://meta.db")).expect("JSON")
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn the_version_is_one_line() {
    let place = Place::new();
    for words in ["version", "-V", "--version"] {
        let out = place.ok(words);
        assert!(out.starts_with("sluice ") && out.contains("1.4.2") && out.lines().count() == 1, "{out}");
    }
}

#[test]
fn mistakes_are_answered_with_the_nearest_word() {
    let place = Place::new();
    let line = place.fails("format --stoage s3 sqlite3://meta.db vol");
    assert!(line.contains("<FATAL>: unknown option: \"--stoage\", did you mean \"--storage\"?"), "{line}");
    let outcome = place.run("fromat sqlite3://meta.db vol");
    assert_eq!((outcome.code, outcome.out.as_str()), (1, "No help topic for 'fromat'\n"));
    assert!(outcome.log.contains("did you mean \"format\"?"), "{}", outcome.log);
    let outcome = place.run("format sqlite3://meta.db");
    assert_eq!(outcome.code, 1);
    assert!(outcome.out.starts_with("ERROR: This command requires at least 2 arguments\nUSAGE:\n"), "{}", outcome.out);
    assert!(place.fails("format sqlite3://meta.db vol --block-size 5KiB").contains("5KiB"));
    assert!(place.fails("format sqlite3://meta.db vol --trash-days many").contains("trash-days"));
    assert!(place.fails("format badger://u:hunter2@h vol").contains("sqlite3://"));
    assert!(!place.path().join("meta.db").exists(), "a mistake leaves nothing behind");
}

#[test]
fn options_stand_anywhere() {
    let place = Place::new();
    place.ok("-q format sqlite3://meta.db --trash-days 7 vol -bucket objects");
    assert_eq!(place.record()["TrashDays"], 7);
}

#[test]
fn an_encrypted_volume_keeps_its_key() {
    let place = Place::new();
    let key = |name: &str| {
        format!("--encrypt-rsa-key {}/src/object/envelope/testkeys/{name}.pem", env!("CARGO_MANIFEST_DIR"))
    };
    let fails = |options: &str| place.fails(&format!("format sqlite3://meta.db vol --bucket objects {options}"));
    let line = fails(&key("rsa-pkcs8-pbkdf2"));
    assert!(line.contains("has a passphrase; put it into JFS_RSA_PASSPHRASE"), "{line}");
    assert!(fails(&key("p256-pkcs8")).contains("SM2"));
    assert!(!place.path().join("meta.db").exists(), "a mistake leaves nothing behind");
    let line = fails(&format!("{} --encrypt-algo rot13", key("rsa-pkcs8")));
    assert!(line.contains("unsupported cipher: \"rot13\""), "{line}");

    let made = place.format(&format!("{} --encrypt-algo chacha20-rsa --secret-key hunter2", key("rsa-pkcs8")));
    assert_eq!(made.code, 0, "{}", made.log);
    assert!(!made.log.contains("PRIVATE KEY") && !made.log.contains("hunter2"), "{}", made.log);
    let uuid = std::fs::read(place.path().join("objects/vol/juicefs_uuid")).expect("the volume's first object");
    assert_eq!(uuid.len(), 36 + 287, "in its envelope");
    // A script may format again with the same words; what would make the data unreadable is refused.
    assert_eq!(place.format(&format!("{} --trash-days 3", key("rsa-pkcs8"))).code, 0);
    assert!(fails(&key("sm2-pkcs8")).contains("cannot update volume encryption key"));
    assert!(fails("--encrypt-algo aes256gcm-rsa").contains("from chacha20-rsa to aes256gcm-rsa"));
    place.ok("config sqlite3://meta.db --secret-key hunter3 --bucket objects");
    let record = place.record();
    assert_eq!(
        [&record["EncryptKey"], &record["SecretKey"], &record["EncryptAlgo"]],
        ["removed", "removed", "chacha20-rsa"]
    );
    assert_eq!((&record["KeyEncrypted"], &record["TrashDays"]), (&true.into(), &3.into()));
    let uuid = record["UUID"].as_str().expect("a text");
    place.ok(&format!("destroy sqlite3://meta.db {uuid} --yes"));
}

#[test]
fn a_volume_is_made_shown_and_removed() {
    let place = Place::new();
    let made = place.format("--capacity 10 --inodes 1000 --compress lz4 --block-size 1M --secret-key hunter2");
    assert_eq!(made.code, 0, "{}", made.log);
    assert!(made.log.contains("<INFO>: Volume is formatted as {\n  \"Name\": \"vol\",\n"), "{}", made.log);
    let record = place.record();
    assert_eq!(record["BlockSize"], 1024);
    assert_eq!(record["Capacity"], 10_u64 << 30);
    assert_eq!((&record["Compression"], &record["SecretKey"]), (&"lz4".into(), &"removed".into()));
    let bucket = format!("{}/objects/", place.path().canonicalize().expect("a path").display());
    assert_eq!(record["Bucket"], bucket.as_str());
    let uuid = record["UUID"].as_str().expect("a UUID").to_string();
    assert_eq!(std::fs::read_to_string(place.path().join("objects/vol/juicefs_uuid")).expect("the marker"), uuid);

    let status: Value = serde_json::from_str(&place.ok("status sqlite3://meta.db")).expect("JSON");
    assert_eq!(status["Setting"], record);
    assert_eq!(status["Sessions"], Value::Array(Vec::new()));
    assert_eq!((&status["Stat"]["UsedSpace"], &status["Stat"]["AvailableSpace"]), (&0.into(), &(10_u64 << 30).into()));
    assert_eq!(status["Stat"]["AvailableInodes"], 1000);

    assert!(place.fails("destroy sqlite3://meta.db 1234").contains("UUID \"1234\" != expected"));
    assert!(place.fails(&format!("destroy sqlite3://meta.db {uuid}")).contains("Aborted."), "no input means no");
    place.record();
    let removed = place.run(&format!("destroy -y sqlite3://meta.db {uuid}"));
    assert!(removed.code == 0 && removed.log.contains("The volume has been destroyed!"), "{}", removed.log);
    assert!(!place.path().join("objects/vol/juicefs_uuid").exists());
    assert!(place.fails("config sqlite3://meta.db").contains("database is not formatted"));
    assert!(place.fails("status sqlite3://meta.db").contains("database is not formatted"));
}

#[test]
fn what_is_fixed_cannot_be_formatted_again() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    let uuid = place.record()["UUID"].clone();
    let line = place.fails("format sqlite3://meta.db vol --block-size 8M");
    assert!(line.contains("cannot update volume block size from 4096 to 8192"), "{line}");
    assert!(place.fails("format sqlite3://meta.db other").contains("cannot update volume name from vol to other"));
    place.ok("format sqlite3://meta.db vol --trash-days 2");
    place.ok("format --no-update sqlite3://meta.db vol --trash-days 5");
    let record = place.record();
    assert_eq!((&record["TrashDays"], &record["UUID"]), (&2.into(), &uuid));
}

#[test]
fn an_occupied_prefix_is_refused() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    let line = place.fails("format sqlite3://second.db vol --bucket objects");
    assert!(line.contains("is not empty; please clean it up or pick another volume name"), "{line}");
    assert!(place.fails("config sqlite3://second.db").contains("database is not formatted"));
    assert!(place.fails("format sqlite3://third.db Vol_1").contains("invalid name: \"Vol_1\""));
}

#[test]
fn each_change_is_one_line() {
    let place = Place::new();
    assert_eq!(place.format("--secret-key hunter2").code, 0);
    let out = place.ok(
        "config sqlite3://meta.db -y --capacity 10 --trash-days 0 --secret-key hunter3 --upload-limit 1500 --enable-acl",
    );
    let lines: Vec<&str> = out.lines().filter(|line| !line.starts_with("WARNING")).collect();
    assert_eq!(
        lines,
        [
            "  capacity: 0 B -> 10 GiB",
            "enable-acl: false -> true",
            "secret-key: updated",
            "trash-days: 1 -> 0",
            "upload-limit: 0.0 Mbps -> 1.5 Gbps",
            "min-client-version: 1.1.0-A -> 1.2.0-A",
        ]
    );
    assert_eq!(place.ok("config sqlite3://meta.db --capacity 10"), "Nothing changed.\n");
    place.ok("config sqlite3://meta.db --trash-days 1");
    assert!(place.fails("config sqlite3://meta.db --trash-days 0").contains("Aborted."));
    assert_eq!(place.record()["TrashDays"], 1, "no answer means no change");
    assert!(place.fails("config sqlite3://meta.db -y --min-client-version 1.0.0").contains("cannot lower"));
    assert!(place.fails("config sqlite3://meta.db -y --min-client-version 9.0.0").contains("9.0.0"));
}

#[test]
fn secrets_are_never_shown() {
    let place = Place::new();
    let words = ["--verbose", "format", "sqlite3://meta.db", "vol", "--bucket", "objects"];
    let made = outcome(
        place
            .command()
            .args(words)
            .env("SECRET_KEY", "hunter2")
            .env("SESSION_TOKEN", "hunter2")
            .output()
            .expect("runs"),
    );
    assert_eq!(made.code, 0, "{}", made.log);
    let mut shown = made.out + &made.log;
    for words in
        ["config sqlite3://meta.db", "status sqlite3://meta.db", "config sqlite3://meta.db --secret-key hunter2 -y"]
    {
        let outcome = place.run(&format!("--trace {words}"));
        assert_eq!(outcome.code, 0, "{words}: {}", outcome.log);
        shown += &(outcome.out + &outcome.log);
    }
    for words in [
        "status redis://:hunter2@127.0.0.1:1/0",
        "config redis://:hunter2@127.0.0.1:1/0 x",
        "frmt --secret-key=hunter2",
    ] {
        let outcome = place.run(words);
        assert_eq!(outcome.code, 1, "{words}");
        shown += &(outcome.out + &outcome.log);
    }
    assert!(!shown.contains("hunter2"), "{shown}");
    let stored = std::fs::read(place.path().join("meta.db")).expect("the metadata");
    assert!(!stored.windows(7).any(|window| window == b"hunter2"), "secrets are sealed in the record");
}

/// The record of a volume, as it is stored.
fn stored(place: &Place) -> String {
    let meta = rusqlite::Connection::open(place.path().join("meta.db")).expect("the metadata");
    meta.query_row("SELECT value FROM jfs_setting WHERE name = 'format'", (), |row| row.get(0)).expect("the record")
}

fn store(place: &Place, record: &[u8]) {
    let meta = rusqlite::Connection::open(place.path().join("meta.db")).expect("the metadata");
    let put = "UPDATE jfs_setting SET value = CAST(?1 AS TEXT) WHERE name = 'format'";
    assert_eq!(meta.execute(put, [record]).expect("UPDATE"), 1);
}

/// All that must stay as it is when a command is refused.
fn everything(place: &Place) -> (String, Vec<String>) {
    let mut objects: Vec<String> = std::fs::read_dir(place.path().join("objects/vol"))
        .expect("the objects")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    objects.sort();
    (stored(place), objects)
}

/// Runs a command that must be refused: one line that says why and no secret, soon, with nothing written.
fn refused(place: &Place, words: &[&str], why: &str) {
    let before = everything(place);
    let started = std::time::Instant::now();
    let outcome = outcome(place.command().args(words).output().expect("the binary runs"));
    assert!(started.elapsed().as_secs() < 20, "{words:?}: {:?}", started.elapsed());
    let line = outcome.log.lines().last().unwrap_or_default();
    assert_eq!(outcome.code, 1, "{words:?}: {}{}", outcome.out, outcome.log);
    assert!(line.contains("<FATAL>") && line.contains(why), "{words:?} should say {why}: {}", outcome.log);
    let all = outcome.out + &outcome.log;
    assert!(!all.contains("hunter2") && !all.contains("panicked") && !all.contains('\u{1b}'), "{all}");
    assert_eq!(everything(place), before, "{words:?}");
}

#[test]
fn volumes_that_ask_for_more_are_refused_and_left_alone() {
    let place = Place::new();
    assert_eq!(place.format("--secret-key hunter2hunter2").code, 0);
    let record = stored(&place);
    let with = |key: &str, value: Value| {
        let mut record: Value = serde_json::from_str(&record).expect("JSON");
        record[key] = value;
        record.to_string()
    };
    let uuid = place.record()["UUID"].as_str().expect("a UUID").to_string();
    for (record, why) in [
        (with("MetaVersion", 2.into()), "metadata version"),
        (with("MetaVersion", i64::MAX.into()), "metadata version"),
        (with("MinClientVersion", "9.0.0".into()), "9.0.0 or newer"),
        (with("MaxClientVersion", "1.0.0".into()), "1.0.0 or older"),
        (with("MinClientVersion", "x\ny".into()), "version string"),
        (with("Compression", "brotli".into()), "brotli"),
        (with("BlockSize", 0.into()), "block size"),
        (with("BlockSize", u64::MAX.into()), "block size"),
        (with("ChangeLog", true.into()), "change log"),
        (with("SecretKey", serde_json::json!(["hunter2"])), "SecretKey"),
        ("[]".into(), "does not decode"),
        ("{".into(), "does not decode"),
        (String::new(), "does not decode"),
    ] {
        store(&place, record.as_bytes());
        refused(&place, &["mount", "sqlite3://meta.db", "mnt"], why);
    }
    store(&place, &[0xFF, 0xFE, b'{']);
    let outcome = place.run("mount sqlite3://meta.db mnt");
    assert!(outcome.code == 1 && outcome.log.contains("does not decode"), "{}", outcome.log);
    // What is wrong in another way than being newer can still be looked at, and a newer one can be told apart.
    store(&place, with("MetaVersion", 7.into()).as_bytes());
    assert_eq!(place.record()["MetaVersion"], 7);
    let line = place.fails("config sqlite3://meta.db --trash-days 5 -y");
    assert!(line.contains("metadata version"), "{line}");
    let line = place.fails("format sqlite3://meta.db vol --trash-days 5");
    assert!(line.contains("metadata version"), "{line}");
    let line = place.fails(&format!("destroy -y sqlite3://meta.db {uuid}"));
    assert!(line.contains("metadata version"), "{line}");
    assert_eq!(place.record()["MetaVersion"], 7);
}

#[test]
fn what_newer_clients_have_stored_survives_a_change() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    let mut record: Value = serde_json::from_str(&stored(&place)).expect("JSON");
    record["Later"] = serde_json::json!({"Deep": [1, 2.5, null, {"x": "y"}], "Big": u64::MAX});
    record["TrashDays"] = 3.into();
    record["Tiers"]["0"]["Newer"] = true.into();
    store(&place, record.to_string().as_bytes());
    place.ok("config sqlite3://meta.db --trash-days 4");
    place.ok("format sqlite3://meta.db vol --inodes 100");
    let now: Value = serde_json::from_str(&stored(&place)).expect("JSON");
    assert_eq!((&now["Later"], &now["Tiers"]), (&record["Later"], &record["Tiers"]));
    assert_eq!(now["Inodes"], 100);
}

#[test]
fn hostile_words_get_one_clear_line() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    for (words, why) in [
        (&["status", "redis://:hunter2"][..], "host:port"),
        (&["status", "redis://:hunter2@h:99999/1"], "host:port"),
        (&["status", "redis://:hunter2@h/99999999999"], "data base"),
        (&["status", "redis://:hunter2@[::1/1"], "host:port"),
        (&["status", "redis://:hunt%er2@h"], "percent"),
        (&["status", "redis://:hunter2@127.0.0.1:1/1?unknown=hunter"], "refused"),
        (&["status", "redis://:hunter2@a.invalid,b.invalid/1"], "lookup"),
        (&["status", "unix://user:hunter2@relative.sock"], "absolute path"),
        (&["status", "unix://:hunter2@/nowhere/redis.sock?db=x"], "data base"),
        (&["status", "sqlite3://"], "no place"),
        (&["status", "sqlite3://nowhere/at/all.db"], "open"),
        (&["status", "sqlite3://a\nb.db"], "control character"),
        (&["status", "what\n://hunter2"], "control character"),
        (&["status", "mysql://u:hunter2@(127.0.0.1:1)/d"], "refused"),
        (&["status", "postgres://u:hunter2@127.0.0.1:1/d"], "refused"),
        (&["status", "mysql://u:hunter2@(127.0.0.1:1)/d?unknown=1"], "known are"),
        (&["status", "badger://u:hunter2@d"], "not in this build"),
        (&["status", "--unknown\n=hunter2", "sqlite3://meta.db"], "unknown option: \"--unknown\\n\""),
        (&["status", "sqlite3://meta.db", "--session", "x\ny"], "invalid value"),
        (&["mount", "sqlite3://meta.db", "mnt", "--cache-size", "1\u{1b}[2J"], "invalid size"),
        (&["mount", "sqlite3://meta.db", "mnt", "--attr-cache", "99999999999999999999h"], "too long"),
        (&["mount", "sqlite3://meta.db", "mnt", "--buffer-size", "99999999999999999999"], "size"),
        (&["mount", "sqlite3://meta.db", "mnt", "-o"], "requires a value"),
        (&["config", "sqlite3://meta.db", "--capacity=-1"], "size"),
        (&["config", "sqlite3://meta.db", "--trash-days", "99999999999999999999"], "trash-days"),
        (&["format", "sqlite3://meta.db", "na/me"], "invalid name"),
        (&["format", "sqlite3://meta.db", "..\n"], "invalid name"),
        (&["format", "sqlite3://other.db", "vol", "--storage", "s4", "--bucket", "b"], "storage kind"),
        (&["format", "sqlite3://other.db", "vol", "--storage", "s3", "--bucket", "http://:hunter2@"], "bucket"),
    ] {
        refused(&place, words, why);
    }
    let usage = place.run("status a b c d");
    assert!(usage.code == 1 && usage.out.starts_with("ERROR: This command accept at most 1 argument"), "{}", usage.out);
}

/// Every row of the metadata.
fn rows(place: &Place) -> Vec<(String, Vec<rusqlite::types::Value>)> {
    let meta = rusqlite::Connection::open(place.path().join("meta.db")).expect("the metadata");
    let mut tables = meta.prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").expect("SELECT");
    let tables: Vec<String> = tables.query_map((), |row| row.get(0)).and_then(Iterator::collect).expect("names");
    let mut all = Vec::new();
    for table in tables {
        let mut rows = meta.prepare(&format!("SELECT * FROM `{table}`")).expect("SELECT");
        let width = rows.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..width).map(|column| row.get(column)).collect::<Result<Vec<_>, _>>();
        let rows: Vec<Vec<_>> = rows.query_map((), row).and_then(Iterator::collect).expect("rows");
        all.extend(rows.into_iter().map(|row| (table.clone(), row)));
    }
    all
}

fn execute(place: &Place, statements: &str) {
    let meta = rusqlite::Connection::open(place.path().join("meta.db")).expect("the metadata");
    meta.execute_batch(statements).expect(statements);
}

/// A volume with a file of one block, whose object is answered. Slice 1 is the only one.
fn with_a_file(place: &Place) -> std::path::PathBuf {
    assert_eq!(place.format("--trash-days 0").code, 0);
    execute(
        place,
        "INSERT INTO jfs_node (inode, type, flags, mode, uid, gid, atime, mtime, ctime, nlink, length, parent)
            VALUES (2, 1, 0, 420, 0, 0, 5, 5, 5, 1, 5, 1);
        INSERT INTO jfs_edge (parent, name, inode, type) VALUES (1, CAST('file' AS BLOB), 2, 1);
        INSERT INTO jfs_chunk (inode, indx, slices) VALUES (2, 0, x'000000000000000000000001000000050000000000000005');
        INSERT INTO jfs_chunk_ref (chunkid, size, refs) VALUES (1, 5, 1);
        UPDATE jfs_counter SET value = 3 WHERE name = 'nextInode';
        UPDATE jfs_counter SET value = 2 WHERE name = 'nextChunk';
        UPDATE jfs_counter SET value = 4096 WHERE name = 'usedSpace';
        UPDATE jfs_counter SET value = 1 WHERE name = 'totalInodes';
        UPDATE jfs_dir_stats SET data_length = 5, used_space = 4096, used_inodes = 1;",
    );
    let block = place.path().join("objects/vol/chunks/0/0/1_0_5");
    std::fs::create_dir_all(block.parent().expect("a directory")).expect("a directory");
    std::fs::write(&block, "hello").expect("an object");
    block
}

#[test]
fn a_damaged_volume_is_looked_at_and_left_as_it_is() {
    let place = Place::new();
    let block = with_a_file(&place);
    let execute = |statements: &str| execute(&place, statements);
    place.ok("fsck sqlite3://meta.db");
    place.ok("gc sqlite3://meta.db --delete --min-age 0");
    let database = place.path().join("meta.db");
    let whole = std::fs::read(&database).expect("the metadata");

    for (damage, unseen) in [
        ("UPDATE jfs_node SET type = 9 WHERE inode = 2", &[][..]),
        ("UPDATE jfs_node SET mode = 'rw' WHERE inode = 2", &[]),
        ("UPDATE jfs_node SET length = -1 WHERE inode = 2", &[]),
        ("UPDATE jfs_edge SET type = 77", &["gc"]),
        ("UPDATE jfs_edge SET inode = 99", &["gc"]),
        ("UPDATE jfs_chunk SET slices = x'00'", &[]),
        ("UPDATE jfs_chunk SET slices = CAST(replace(hex(slices), '5', '7') AS BLOB)", &["gc"]),
        ("UPDATE jfs_chunk SET slices = x'FFFFFFFF0000000000000001000000050000000000000005'", &[]),
        ("UPDATE jfs_chunk SET indx = -1", &[]),
        ("UPDATE jfs_counter SET value = 'many' WHERE name = 'usedSpace'", &["gc"]),
        ("UPDATE jfs_counter SET value = 'many' WHERE name = 'nextChunk'", &[]),
        ("UPDATE jfs_counter SET value = 'never' WHERE name = 'nextCleanupSlices'", &["gc"]),
        ("UPDATE jfs_counter SET value = 2 WHERE name = 'nextInode'", &["gc"]),
        ("DELETE FROM jfs_counter WHERE name = 'nextChunk'", &["gc"]),
        ("UPDATE jfs_node SET access_acl_id = 3 WHERE inode = 1", &["gc"]),
        ("INSERT INTO jfs_acl (id, `group`) VALUES (3, 'all')", &["gc"]),
        ("INSERT INTO jfs_dir_quota VALUES (1, 'much', 0, 0, 0)", &["gc"]),
        ("INSERT INTO jfs_flock (inode, sid, owner, ltype) VALUES (2, 1, 1, 88)", &["gc"]),
        ("INSERT INTO jfs_flock (inode, sid, owner, ltype) VALUES (2, 1, 1, 87)", &["gc"]),
        ("INSERT INTO jfs_plock (inode, sid, owner, records) VALUES (2, 1, 1, x'00')", &["gc"]),
        ("INSERT INTO jfs_session2 VALUES (7, 'never', x'FF')", &["gc"]),
        ("INSERT INTO jfs_delfile VALUES (9, -5, 'never')", &[]),
        ("INSERT INTO jfs_delslices VALUES (9, 5, x'0102')", &[]),
    ] {
        execute(damage);
        let before = rows(&place);
        for command in ["status", "fsck", "fsck --json", "gc", "gc --json", "gc --delete --min-age 0"] {
            let (name, options) = command.split_once(' ').unwrap_or((command, ""));
            let started = std::time::Instant::now();
            let outcome = place.run(&format!("{name} sqlite3://meta.db {options}"));
            let told = format!("{command} after {damage}: {} {}{}", outcome.code, outcome.out, outcome.log);
            assert!(started.elapsed().as_secs() < 20 && !told.contains("panicked"), "{told}");
            assert!(outcome.code == 0 || outcome.log.lines().any(|line| line.contains("<FATAL>")), "{told}");
            assert!(!outcome.log.contains("\\n"), "a table is in one line: {told}");
            if damage.contains("jfs_node") && told.contains("cannot be read") && command == "fsck" {
                assert!(outcome.log.contains("inode=2"), "which node? {told}");
            }
            // Status looks at little, and what it does not look at may be anything.
            if name != "status" && !unseen.contains(&name) {
                assert_eq!(outcome.code, 1, "{told}");
            }
            assert!(block.exists(), "{told}");
            assert!(command.contains("--delete") || rows(&place) == before, "written by {told}");
        }
        std::fs::write(&database, &whole).expect("the metadata");
        for file in ["meta.db-wal", "meta.db-shm"] {
            let _ = std::fs::remove_file(place.path().join(file));
        }
    }
    place.ok("fsck sqlite3://meta.db");

    // All that cannot be read is told at once, what may follow from it is not, and nothing is mended beside it.
    execute("UPDATE jfs_node SET type = 9 WHERE inode = 2");
    execute("UPDATE jfs_chunk SET slices = x'00'");
    execute("INSERT INTO jfs_delslices VALUES (9, 5, x'0102')");
    execute("UPDATE jfs_node SET nlink = 7 WHERE inode = 1");
    let before = rows(&place);
    for options in ["--json", "--json --repair"] {
        let outcome = place.run(&format!("fsck sqlite3://meta.db {options}"));
        assert_eq!(outcome.code, 1, "{}{}", outcome.out, outcome.log);
        let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("a report");
        let problems = report["Problems"].as_array().expect("a list");
        assert!(problems.iter().all(|problem| problem["Kind"] == "Unreadable"), "{problems:?}");
        for record in ["Attrs", "Chunks", "DelayedSlices"] {
            let of = |problem: &&serde_json::Value| problem["Text"].as_str().is_some_and(|text| text.contains(record));
            assert_eq!(problems.iter().filter(of).count(), 1, "{record}: {problems:?}");
        }
        let refused = report["NotRepaired"].as_array().expect("a list").len();
        assert_eq!(refused, if options.contains("repair") { 3 } else { 0 }, "{report}");
        assert_eq!(report["Repaired"], serde_json::json!([]));
    }
    assert_eq!(rows(&place), before);
}

/// A log that is kept from repeating itself does not keep findings back.
#[test]
fn every_finding_has_its_line() {
    let place = Place::new();
    with_a_file(&place);
    let damage: String =
        (0..30).map(|n| format!("INSERT INTO jfs_delslices VALUES ({}, 5, x'0102');", 50 + n)).collect();
    execute(&place, &damage);
    let log = place.run("fsck sqlite3://meta.db --repair").log;
    for (level, text) in [("ERROR", "a record cannot be read"), ("WARNING", "not repaired")] {
        let lines = log.lines().filter(|line| line.contains(&format!("<{level}>")) && line.contains(text));
        assert_eq!(lines.count(), 30, "{log}");
    }
}

/// The check of a part goes on behind what it cannot read, and judges and repairs nothing by what it did not see.
#[test]
fn a_part_of_a_volume_is_checked_behind_what_cannot_be_read() {
    let place = Place::new();
    with_a_file(&place);
    let node = |ino: u32, kind: u32, links: u32, parent: u32| {
        format!(
            "INSERT INTO jfs_node (inode, type, flags, mode, uid, gid, atime, mtime, ctime, nlink, length, parent)
                VALUES ({ino}, {kind}, 0, 420, 0, 0, 5, 5, 5, {links}, {}, {parent});",
            if kind == 2 { 4096 } else { 0 }
        )
    };
    let entry = |dir: u32, name: &str, ino: u32, kind: u32| {
        format!(
            "INSERT INTO jfs_edge (parent, name, inode, type) VALUES ({dir}, CAST('{name}' AS BLOB), {ino}, {kind});"
        )
    };
    // /dir/inner/deep, and /large, which has two chunks.
    let tree = [
        node(3, 2, 3, 1) + &entry(1, "dir", 3, 2),
        node(4, 2, 2, 3) + &entry(3, "inner", 4, 2),
        node(5, 1, 1, 4) + &entry(4, "deep", 5, 1),
        node(6, 1, 1, 1) + &entry(1, "large", 6, 1),
        "UPDATE jfs_node SET length = 67108870 WHERE inode = 6;
         UPDATE jfs_node SET nlink = 3 WHERE inode = 1;
         INSERT INTO jfs_dir_stats VALUES (3, 0, 4096, 1), (4, 0, 4096, 1);
         UPDATE jfs_dir_stats SET data_length = 67108875, used_space = 67121152, used_inodes = 3 WHERE inode = 1;
         UPDATE jfs_counter SET value = 7 WHERE name = 'nextInode';
         UPDATE jfs_counter SET value = 67129344 WHERE name = 'usedSpace';
         UPDATE jfs_counter SET value = 5 WHERE name = 'totalInodes'"
            .to_owned(),
    ];
    execute(&place, &tree.concat());
    place.ok("fsck sqlite3://meta.db");
    place.ok("fsck sqlite3://meta.db --path / -r");

    let damage = "UPDATE jfs_node SET type = 9 WHERE inode = 3;
        UPDATE jfs_edge SET type = 77 WHERE name = CAST('deep' AS BLOB);
        UPDATE jfs_chunk SET slices = x'00' WHERE inode = 2;
        INSERT INTO jfs_chunk (inode, indx, slices) VALUES (6, 1, x'FFFFFFFF0000000000000001000000050000000000000005');
        UPDATE jfs_dir_stats SET used_inodes = 'few' WHERE inode = 4;
        UPDATE jfs_node SET parent = 9 WHERE inode = 4";
    execute(&place, damage);
    let before = rows(&place);
    for options in ["", "--repair", "--sync-dir-stat"] {
        let outcome = place.run(&format!("fsck sqlite3://meta.db --path / -r --json {options}"));
        assert_eq!(outcome.code, 1, "{}{}", outcome.out, outcome.log);
        let report: Value = serde_json::from_str(&outcome.out).expect("a report");
        assert_eq!(report["Complete"], true, "{report}");
        let told = |kind: &str, text: &str| {
            let problems = report["Problems"].as_array().expect("a list").iter();
            let is_it = |problem: &&Value| {
                problem["Kind"] == kind && problem["Text"].as_str().is_some_and(|told| told.contains(text))
            };
            problems.filter(is_it).count()
        };
        for record in ["Attr(Ino(3))", "deep", "Chunk(Ino(2)", "DirStat(Ino(4))"] {
            assert_eq!(told("Unreadable", record), 1, "{record} {options}: {report}");
        }
        assert_eq!((told("BadSlice", "chunk 1 of 6"), told("WrongParent", "node 4")), (1, 1), "{options}: {report}");
        // The counts of directories in which something cannot be read are not judged.
        assert_eq!(report["Problems"].as_array().map(Vec::len), Some(6), "{report}");
        assert_eq!(report["Statistics"], serde_json::json!([]), "{report}");
        assert_eq!(report["Repaired"], serde_json::json!([]), "{report}");
        let refused = report["NotRepaired"].as_array().map(Vec::len);
        assert_eq!(refused, Some(if options.is_empty() { 0 } else { 4 }), "{report}");
    }
    // One node by itself, and one whose way cannot be read.
    for (path, problems) in [("/dir", 1), ("/dir/inner/deep", 1), ("/dir/inner", 3), ("/file", 1)] {
        let outcome = place.run(&format!("fsck sqlite3://meta.db --path {path} --json"));
        let report: Value = serde_json::from_str(&outcome.out).expect("a report");
        assert_eq!(report["Problems"].as_array().map(Vec::len), Some(problems), "{path}: {report}");
    }
    assert!(place.fails("fsck sqlite3://meta.db --path /none").contains("check /none"));
    assert_eq!(rows(&place), before);
}

/// What a check of a part does not look at may be all that is left of a file.
#[test]
fn a_part_of_a_volume_is_repaired_as_far_as_it_tells() {
    let place = Place::new();
    with_a_file(&place);
    let part = "fsck sqlite3://meta.db --path / -r";
    place.ok(part);

    execute(&place, "DELETE FROM jfs_node WHERE inode = 2");
    let before = rows(&place);
    let told = place.fails(&format!("{part} --repair"));
    assert!(told.contains("1 problems"), "{told}");
    assert_eq!(rows(&place).len(), before.len(), "nothing was taken away");
    place.ok("fsck sqlite3://meta.db --repair");
    place.ok(part);
    let length = "SELECT length FROM jfs_node WHERE inode = 2";
    let meta = rusqlite::Connection::open(place.path().join("meta.db")).expect("the metadata");
    assert_eq!(meta.query_row(length, (), |row| row.get::<_, i64>(0)), Ok(5), "it has its bytes back");

    // A way back up is no way down.
    execute(&place, "INSERT INTO jfs_edge (parent, name, inode, type) VALUES (1, CAST('up' AS BLOB), 1, 2)");
    let started = std::time::Instant::now();
    place.fails(part);
    assert!(started.elapsed().as_secs() < 20, "it went round and round");
}

/// A finding that its repair does not make go away is repaired once.
#[test]
fn a_repair_that_does_not_hold_is_not_tried_for_ever() {
    let place = Place::new();
    with_a_file(&place);
    execute(&place, "UPDATE jfs_chunk SET inode = -1");
    let outcome = place.run("fsck sqlite3://meta.db --repair --json");
    let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("a report");
    assert_eq!(report["Leaked"].as_array().map(Vec::len), Some(1), "a chunk of nobody is no damage: {report}");
    assert!(report["Repaired"].as_array().is_some_and(|repaired| repaired.len() < 5), "{report}");
    assert!(outcome.out.contains("is there again"), "{report}");
}

#[test]
fn a_mount_that_cannot_be_says_why_from_the_background() {
    let place = Place::new();
    let line = place.fails("mount -d sqlite3://meta.db mnt --log log");
    assert!(line.contains("<FATAL>") && line.contains("database is not formatted"), "{line}");
    assert!(place.fails("mount sqlite3://meta.db /").contains("should not mount on the root directory"));
    assert!(place.fails("mount sqlite3://meta.db mnt --buffer-size 1").contains("buffer-size"));
    assert!(place.fails("umount mnt").contains("failed to unmount"));

    // Nobody listens on port 1: the reason arrives before the waiting ends.
    let line = place.fails("mount -d redis://127.0.0.1:1/1 mnt --log log");
    assert!(line.contains("<FATAL>") && line.contains("refused"), "{line}");
    let mut format = place.command();
    format.args(["format", "--storage", "s3", "--bucket", "http://127.0.0.1:1/b", "--access-key", "anonymous"]);
    format.args(["sqlite3://meta.db", "vol"]).env("JFS_NO_CHECK_OBJECT_STORAGE", "1");
    assert_eq!(outcome(format.output().expect("the binary runs")).code, 0);
    let line = place.fails("mount -d --check-storage sqlite3://meta.db mnt --log log");
    assert!(line.contains("test the object storage") && line.contains("refused"), "{line}");
    assert!(!line.contains("Parts"), "{line}");
}

#[test]
fn info_outside_of_a_mount_is_an_error_line() {
    let place = Place::new();
    let outcome = place.run("info .");
    assert_eq!(outcome.code, 0, "as the peer does");
    assert!(outcome.log.contains("<ERROR>: Open control file for"), "{}", outcome.log);
}

#[test]
fn a_volume_is_checked_and_cleaned_with_reports_for_programs() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    let checked: Value = serde_json::from_str(&place.ok("fsck sqlite3://meta.db --json")).expect("JSON");
    assert_eq!(
        (&checked["Complete"], &checked["Clean"], &checked["LostBlocks"]),
        (&true.into(), &true.into(), &0.into())
    );
    let lone = place.path().join("objects/vol/chunks/0/0/7_0_5");
    std::fs::create_dir_all(lone.parent().expect("a directory")).expect("a directory");
    std::fs::write(&lone, "extra").expect("an object");
    // No id was handed out in this volume yet: what has one may be what a backup of the metadata forgot.
    let outcome = place.run("gc sqlite3://meta.db --delete --json --min-age 0");
    let cleaned: Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!((&cleaned["NeverHandedOut"]["Count"], &cleaned["Leaked"]["Count"]), (&1.into(), &0.into()));
    assert!(outcome.code == 0 && outcome.log.contains("never handed out") && lone.exists(), "{}", outcome.log);
    let line = "scanned 1 objects, 0 valid, 0 pending delete (0 bytes), 0 compacted (0 bytes), 0 leaked (0 bytes), ";
    assert!(outcome.log.contains(line), "{}", outcome.log);
}

#[test]
fn tools_refuse_what_makes_no_sense_in_one_sentence() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    for (words, why) in [
        ("gc sqlite3://meta.db --threads 0", "0 is not in 1..=1000"),
        ("gc sqlite3://meta.db --min-age soon", "invalid duration \"soon\""),
        ("gc sqlite3://nothing.db", "database is not formatted"),
        ("fsck sqlite3://meta.db --threads 99999999999", "is not in 1..=1000"),
        ("fsck sqlite3://meta.db --repair-dir-mode 99999", "expected an octal number"),
        ("fsck sqlite3://meta.db --lost-blocks keep", "it may be report, zero or remove"),
        ("fsck sqlite3://meta.db --path /no/such", "check /no/such: no such file or directory"),
        ("fsck sqlite3://meta.db --path /../..", "no such file or directory"),
        ("restore sqlite3://meta.db yesterday", "lookup yesterday in the trash: no such file or directory"),
        ("rmr /", "has no name that could be removed"),
        ("rmr here", "Open control file"),
        ("compact .", "Open control file"),
        ("compact /dev/null", "neither a file nor a directory"),
    ] {
        let line = place.fails(words);
        assert!(line.contains("<FATAL>") && line.contains(why), "{words}: {line}");
    }
    assert!(!place.path().join("nothing.db").exists(), "a mistake leaves nothing behind");
}

/// One volume of the peer in its own forms, as the tests of the library have it.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/meta/dump/golden");

#[test]
fn a_volume_moves_by_way_of_dumps_in_every_form() {
    let place = Place::new();
    let loaded = place.run(&format!("load sqlite3://a.db {GOLDEN}/golden.json"));
    assert_eq!(loaded.code, 0, "{}", loaded.log);
    assert!(loaded.log.contains("<WARNING>: the secret key was removed from the dump"), "{}", loaded.log);
    assert!(loaded.log.contains("succeed (21 inodes, 157569024 bytes)"), "{}", loaded.log);
    let golden = std::fs::read_to_string(format!("{GOLDEN}/golden.json")).expect("the golden dump");
    assert!(place.ok("dump -q sqlite3://a.db") == golden, "standard output is the dump and nothing else");
    for (number, (file, option)) in [
        ("v.json", ""),
        ("v.json.gz", ""),
        ("v.json.zstd", "--threads 1 --fast"),
        ("v.bin", "--binary"),
        ("v.bin.gz", "--binary"),
        ("v.bin.zst", "--binary"),
    ]
    .into_iter()
    .enumerate()
    {
        let dumped = place.run(&format!("dump sqlite3://a.db {file} {option}"));
        assert_eq!(dumped.code, 0, "{}", dumped.log);
        assert!(dumped.log.contains(&format!("Dump metadata into \"{file}\" succeed")), "{}", dumped.log);
        let binary = if option == "--binary" { option } else { "" };
        place.ok(&format!("load sqlite3://b{number}.db {file} {binary}"));
        assert!(place.ok(&format!("dump -q sqlite3://b{number}.db")) == golden, "{file}");
    }
    let left: Vec<_> =
        std::fs::read_dir(place.path()).expect("a directory").map(|e| e.expect("an entry").path()).collect();
    assert!(left.iter().all(|path| path.extension().is_none_or(|extension| extension != "tmp")), "{left:?}");

    let table = place.ok("load v.bin --binary --stat");
    assert!(table.starts_with("Backup Version: 1\n") && table.contains("\nnode      | 23 "), "{table}");
    assert!(place.ok("load v.bin --binary --stat --offset -1").contains("\nformat    | 1         | 0\n"));
    let part = place.ok("dump -q sqlite3://a.db --subdir /a/b --skip-trash");
    assert!(part.contains("\"hl\"") && !part.contains("\"multi\"") && !part.contains("\"Trash\""), "{part}");
}

#[test]
fn a_dump_is_read_from_standard_input() {
    let place = Place::new();
    let mut load = place.command();
    load.args(["load", "sqlite3://a.db"]).stdin(std::fs::File::open(format!("{GOLDEN}/golden.json")).expect("a dump"));
    let loaded = outcome(load.output().expect("the binary runs"));
    assert!(loaded.code == 0 && loaded.log.contains("load metadata from STDIN succeed"), "{}", loaded.log);
}

#[test]
fn secrets_stay_out_of_dumps_unless_they_are_asked_for() {
    let place = Place::new();
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/src/object/envelope/testkeys/rsa-pkcs8.pem");
    let made = place.format(&format!("--secret-key hunter2 --session-token hunter3 --encrypt-rsa-key {key}"));
    assert_eq!(made.code, 0, "{}", made.log);
    let dumped = place.run("dump sqlite3://meta.db v.json");
    assert!(
        dumped.log.contains("the secret key, session token of the volume is left out of the dump"),
        "{}",
        dumped.log
    );
    let text = std::fs::read_to_string(place.path().join("v.json")).expect("the dump");
    assert_eq!(text.matches("\"removed\"").count(), 2, "the key of the data stays, sealed: {text}");
    let left_out = place.run("dump sqlite3://meta.db v.bin --binary");
    assert!(left_out.log.contains("encryption key"), "{}", left_out.log);
    let loaded = place.run("load sqlite3://b.db v.bin --binary");
    for secret in ["secret key", "session token", "encryption key"] {
        assert!(
            loaded.log.contains(&format!("the {secret} was removed from the dump; please set it")),
            "{}",
            loaded.log
        );
    }
    let line = place.fails("fsck sqlite3://b.db");
    assert!(line.contains("was removed when it was dumped"), "{line}");
    place.ok("dump sqlite3://meta.db kept.json --keep-secret-key");
    place.ok("load sqlite3://c.db kept.json");
    place.ok("fsck sqlite3://c.db");
    for log in [dumped.log, left_out.log, loaded.log, text] {
        assert!(!log.contains("hunter"), "{log}");
    }
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(place.path().join("kept.json")).expect("the dump").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "whoever reads it can use the store");
}

/// As an automatic backup of an encrypted volume lies in the store.
#[test]
fn a_dump_in_an_envelope_is_opened_with_the_key() {
    let place = Place::new();
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/src/object/envelope/testkeys/rsa-pkcs8.pem");
    assert_eq!(place.format(&format!("--encrypt-rsa-key {key}")).code, 0);
    // The volume's first object is in an envelope of its own; what it holds is no dump, but it is opened.
    let object = "objects/vol/juicefs_uuid";
    let line = place.fails(&format!("load sqlite3://b.db {object} --encrypt-rsa-key {key}"));
    assert!(line.contains("an object is expected here"), "{line}");
    let line = place.fails(&format!("load sqlite3://b.db {object} --encrypt-rsa-key {key} --encrypt-algo rot13"));
    assert!(line.contains("unsupported cipher"), "{line}");
    let line = place.fails(&format!("load sqlite3://b.db {GOLDEN}/golden.json --encrypt-rsa-key {key}"));
    assert!(line.contains("open the encrypted dump"), "{line}");
    std::fs::copy(place.path().join(object), place.path().join("v.json.gz")).expect("a copy");
    let log = place.run("load sqlite3://b.db v.json.gz").log;
    assert!(log.contains("opened with --encrypt-rsa-key"), "{log}");
}

#[test]
fn a_load_that_fails_says_where_and_leaves_nothing() {
    let place = Place::new();
    assert_eq!(place.format("").code, 0);
    let line = place.fails(&format!("load sqlite3://meta.db {GOLDEN}/golden.json"));
    assert!(line.contains("database sqlite3://") && line.contains("is used by volume vol"), "{line}");
    let golden = std::fs::read(format!("{GOLDEN}/golden.json")).expect("the golden dump");
    std::fs::write(place.path().join("cut.json"), &golden[..9000]).expect("a file");
    let outcome = place.run("load sqlite3://b.db cut.json");
    let line = outcome.log.lines().last().unwrap_or_default();
    assert!(outcome.code == 1 && line.contains("byte=9000, line=") && line.contains("ends"), "{line}");
    assert!(outcome.log.contains("what had been loaded was removed again"), "{}", outcome.log);
    place.ok(&format!("load sqlite3://b.db {GOLDEN}/golden.json"));
    for (words, why) in [
        ("dump sqlite3://nothing.db x.json", "database is not formatted"),
        ("dump sqlite3://b.db x.json --subdir /no/such", "/no/such: no such file or directory"),
        ("dump sqlite3://b.db x.json --subdir /multi", "/multi is not a directory"),
        ("dump sqlite3://b.db no/such/x.json", "make the file of the dump"),
        ("dump sqlite3://b.db /dev/full/x", "make the file of the dump"),
        ("dump sqlite3://b.db x.json --threads 0", "0 is not in 1..=1000"),
        ("load sqlite3://c.db no.json", "failed to open file no.json"),
        ("load sqlite3://c.db cut.json --binary", "this is no binary dump"),
        ("load cut.json --stat", "please add `--binary`"),
        ("load sqlite3://c.db cut.json --encrypt-rsa-key no.pem", "load key from path no.pem"),
    ] {
        let line = place.fails(words);
        assert!(line.contains("<FATAL>") && line.contains(why), "{words}: {line}");
    }
    let full = place.command().args(["dump", "-q", "sqlite3://b.db"]).stdout(full()).output().expect("the binary runs");
    let log = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(full.status.code() == Some(1) && log.contains("write dump failed"), "{log}");
    // A device is no file to put another one in the place of.
    place.ok("dump sqlite3://b.db /dev/null");
    use std::os::unix::fs::FileTypeExt as _;
    assert!(std::fs::metadata("/dev/null").expect("a device").file_type().is_char_device());
    for nothing in ["x.json", "x.json.tmp", "nothing.db"] {
        assert!(!place.path().join(nothing).exists(), "{nothing}");
    }
}

/// A pipe that nobody writes to is left at once, and so is one that nobody reads.
#[test]
fn interrupted_dumps_and_loads_leave_nothing() {
    use std::process::Stdio;
    let place = Place::new();
    place.ok(&format!("load sqlite3://a.db {GOLDEN}/golden.json"));
    let mut load = place.command();
    load.args(["load", "sqlite3://b.db"]).stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut load = load.spawn().expect("the binary runs");
    let mut input = load.stdin.take().expect("a pipe");
    let golden = std::fs::read(format!("{GOLDEN}/golden.json")).expect("the golden dump");
    std::io::Write::write_all(&mut input, &golden[..5000]).expect("half of it");
    std::thread::sleep(std::time::Duration::from_millis(700));
    // SAFETY: the process is a child that was not waited for.
    unsafe { libc::kill(load.id() as i32, libc::SIGINT) };
    let ended = outcome(load.wait_with_output().expect("it ends"));
    assert!(ended.code == 1 && ended.log.contains("interrupted: nothing was loaded"), "{}", ended.log);
    assert!(ended.log.contains("what had been loaded was removed again"), "{}", ended.log);
    drop(input);
    place.ok(&format!("load sqlite3://b.db {GOLDEN}/golden.json"));

    // A pipe that is full already.
    let mut dump = place.command();
    dump.args(["dump", "sqlite3://a.db"]).stdout(Stdio::from(full_pipe())).stderr(Stdio::piped());
    let dump = dump.spawn().expect("the binary runs");
    std::thread::sleep(std::time::Duration::from_millis(700));
    // SAFETY: as above.
    unsafe { libc::kill(dump.id() as i32, libc::SIGINT) };
    let ended = outcome(dump.wait_with_output().expect("it ends"));
    assert!(ended.code == 1 && ended.log.contains("interrupted: no dump was made"), "{}", ended.log);
}

/// The writing end of a pipe that takes nothing any more; its reading end lives on.
fn full_pipe() -> std::os::fd::OwnedFd {
    let (read, write) = std::io::pipe().expect("a pipe");
    std::mem::forget(read);
    let mut filling = std::fs::File::from(std::os::fd::OwnedFd::from(write.try_clone().expect("a second end")));
    // SAFETY: the descriptor is open; only its flags are changed, and changed back.
    let blocking = |on: bool| unsafe {
        let flags = libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&write), libc::F_GETFL);
        let flags = if on { flags & !libc::O_NONBLOCK } else { flags | libc::O_NONBLOCK };
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&write), libc::F_SETFL, flags)
    };
    blocking(false);
    while std::io::Write::write(&mut filling, &[0; 4096]).is_ok() {}
    blocking(true);
    write.into()
}

fn full() -> std::fs::File {
    std::fs::File::options().write(true).open("/dev/full").expect("a device that is full")
}
