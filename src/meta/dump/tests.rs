//! Dumps of the peer are the touchstone: `golden/` holds one volume, as JSON and in the binary form, from SQLite and
//! from Redis. Whatever engine a dump was loaded into, it must give that text again.

use super::stream::Packing;
use super::*;
use crate::base::{Attr, ChunkIndex, FaultKind, Kind, Name, SessionId, Slice, SliceId, Stop, Timestamp};
use crate::meta::check::check;
use crate::meta::engine::mem::MemEngine;
use crate::meta::engine::{Batch, Change};
use crate::meta::ops::create::NewNode;
use crate::meta::ops::xattr::XattrMode;
use crate::meta::record::{Counter, Key, Quota, QuotaOwner, Record, Session};
use crate::meta::testing::{Store, block_on, cases, file, rows, volume};
use crate::meta::{Caller, Meta};
use crate::util::task::{Stopper, stop_signal};
use proptest::prelude::*;

const JSON: &str = include_str!("golden/golden.json");
const SUBDIRECTORY: &str = include_str!("golden/golden-sub.json");
const BINARY: &[u8] = include_bytes!("golden/golden.bin");
/// Commits under way.
const AT_A_TIME: usize = 4;
/// The same volume, after it was loaded into Redis by the peer.
const BINARY_OF_REDIS: &[u8] = include_bytes!("golden/golden-redis.bin");

fn course() -> (Course, Stopper) {
    let (stopper, stop) = stop_signal();
    (Course { tell: Arc::new(|_, _| ()), stop }, stopper)
}

fn admit(document: &[u8]) -> Result<Bytes, Fault> {
    Ok(Bytes::copy_from_slice(document))
}

/// The format document as a JSON dump has it.
fn setting_of(dump: &str) -> Vec<u8> {
    let from = dump.find("{\n    \"Name\"").expect("a document");
    let to = dump.find(",\n  \"Counters\"").expect("its end");
    dump[from..to].as_bytes().to_vec()
}

fn options(setting: Vec<u8>) -> DumpOptions {
    DumpOptions { setting, top: Ino::ROOT, skip_trash: false, threads: 3 }
}

async fn json_of(engine: &dyn Engine, options: &DumpOptions) -> String {
    let mut out = Vec::new();
    json::dump(engine, options, &mut out, &course().0).await.expect("a dump");
    String::from_utf8(out).expect("UTF-8")
}

async fn binary_of(engine: &dyn Engine) -> Vec<u8> {
    let mut out = Vec::new();
    binary::dump(engine, &options(setting_of(JSON)), &mut out, &course().0).await.expect("a dump");
    out
}

/// Clones of it are one store.
fn shared(engine: &MemEngine) -> Arc<dyn Engine> {
    Arc::new(engine.clone())
}

async fn load_json(engine: &Arc<dyn Engine>, text: &[u8]) -> Outcome<Loaded> {
    json_load::load(engine, &mut &*text, &admit, AT_A_TIME, &course().0).await
}

async fn load_binary(engine: &Arc<dyn Engine>, dump: &[u8]) -> Outcome<Loaded> {
    binary_load::load(engine, &mut &*dump, &admit, AT_A_TIME, &course().0).await
}

async fn assert_clean(engine: &dyn Engine) {
    let report = check(engine).await.expect("a readable volume");
    assert!(report.is_clean(), "{report:?}");
}

/// The golden volume as the engine under test holds it: the empty values in it may be left out.
async fn held(dump: &str) -> String {
    match Store::new().await.engine().await.stores_empty_values() {
        true => dump.to_owned(),
        false => dump.replace(r#"{"name":"user.b","value":""},"#, ""),
    }
}

fn assert_same(text: &str, golden: &str) {
    for (number, (line, expected)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(line, expected, "line {}", number + 1);
    }
    assert_eq!(text.len(), golden.len());
}

#[tokio::test]
async fn the_json_dump_of_the_peer_comes_back_byte_for_byte() {
    let engine = Store::new().await.engine().await;
    let loaded = load_json(&engine, JSON.as_bytes()).await.unwrap();
    assert_eq!((loaded.inodes, loaded.space), (21, 157_569_024));
    assert_clean(&*engine).await;
    assert_same(&json_of(&*engine, &options(setting_of(JSON))).await, &held(JSON).await);
    let quota = Key::Quota(QuotaOwner::Directory(Ino(2)));
    let counted = Quota { max_space: 1 << 30, max_inodes: 100, used_space: 212_992, used_inodes: 4 };
    assert_eq!(outside(engine.read(&[quota]).await).unwrap(), [Some(Record::Quota(counted))], "as the peer counts it");
}

#[tokio::test]
async fn the_binary_dumps_of_the_peer_hold_the_same_volume() {
    for dump in [BINARY, BINARY_OF_REDIS] {
        let engine = Store::new().await.engine().await;
        load_binary(&engine, dump).await.unwrap();
        assert_clean(&*engine).await;
        let text = json_of(&*engine, &options(setting_of(JSON))).await;
        // The peer's Redis engine turns the `%41` of a target into an `A`.
        let text = if dump == BINARY { text } else { text.replace("\"tgtA%20x", "\"tgt%2541%20x") };
        assert_same(&text, &held(JSON).await);
    }
}

#[tokio::test]
async fn dumps_are_equal_to_those_of_what_they_load() {
    let (first, second, third) = (Store::new().await, Store::new().await, MemEngine::default());
    let (first, second) = (first.engine().await, second.engine().await);
    load_binary(&first, BINARY).await.unwrap();
    let binary = binary_of(&*first).await;
    assert!(binary == binary_of(&*first).await, "twice the same");
    load_binary(&second, &binary).await.unwrap();
    load_binary(&shared(&third), &binary).await.unwrap();
    let text = json_of(&*first, &options(setting_of(JSON))).await;
    assert_same(&json_of(&*second, &options(setting_of(JSON))).await, &text);
    assert_same(&json_of(&third, &options(setting_of(JSON))).await, &text);
    // From memory back to the engine under test.
    let fourth = Store::new().await.engine().await;
    load_binary(&fourth, &binary_of(&third).await).await.unwrap();
    assert_same(&json_of(&*fourth, &options(setting_of(JSON))).await, &text);
    assert_clean(&*fourth).await;
}

#[tokio::test]
async fn a_directory_can_be_dumped_by_itself_and_becomes_a_root() {
    let engine = Store::new().await.engine().await;
    load_json(&engine, JSON.as_bytes()).await.unwrap();
    let top = DumpOptions { top: Ino(2), ..options(setting_of(SUBDIRECTORY)) };
    assert_same(&json_of(&*engine, &top).await, &held(SUBDIRECTORY).await);
    let without_trash = DumpOptions { skip_trash: true, ..options(setting_of(JSON)) };
    let without_trash = json_of(&*engine, &without_trash).await;
    let golden = held(JSON).await;
    assert_same(&without_trash, &format!("{}\n}}\n", &golden[..golden.find(",\n  \"Trash\"").unwrap()]));

    for (dump, inodes) in [(SUBDIRECTORY, 3), (&*without_trash, 16)] {
        let engine = Store::new().await.engine().await;
        let loaded = load_json(&engine, dump.as_bytes()).await.unwrap();
        assert_eq!(loaded.inodes, inodes);
        assert_clean(&*engine).await;
    }
}

/// What the peer's own dumps lose or cannot hold.
#[tokio::test]
async fn odd_names_survive() {
    let meta = volume().await;
    let root = Caller::root();
    let names: [&[u8]; 4] = ["\u{fffd}".as_bytes(), b"\xff\xfe%41", b"%zz\\\"", "\u{2028}<&>".as_bytes()];
    for name in names {
        let node = NewNode { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0, target: Some(name.to_vec().into()) };
        meta.create(&root, Ino::ROOT, &Name::entry(name).unwrap(), &node).await.unwrap();
    }
    let ino = file(&meta, "f").await;
    // Columns of text hold names that are text.
    let odd: &[u8] = match ["mysql", "postgres"].contains(&meta.engine().name()) {
        true => "user.\u{e9}\u{fffd}".as_bytes(),
        false => b"user.\xff\xef\xbf\xbd",
    };
    for name in [odd, b"user.%41", b"user.\xef\xbf\xbd\"\\"] {
        meta.set_xattr(&root, ino, name, b"\x00\xff%41<\xef\xbf\xbd", XattrMode::Set).await.unwrap();
    }
    let setting = options(b"{}".to_vec());
    let text = json_of(&**meta.engine(), &setting).await;
    let (mut binary, (course, _stopper)) = (Vec::new(), course());
    let dumped = binary::dump(&**meta.engine(), &setting, &mut binary, &course).await.unwrap();
    assert_eq!(dumped.odd_names, u64::from(std::str::from_utf8(odd).is_err()));
    for is_binary in [false, true] {
        let store = Store::new().await;
        let engine = store.engine().await;
        match is_binary {
            true => load_binary(&engine, &binary).await.unwrap(),
            false => load_json(&engine, text.as_bytes()).await.unwrap(),
        };
        assert_same(&json_of(&*engine, &setting).await, &text);
        let meta = store.client_of_what_is_there().await;
        for name in names {
            let found = meta.lookup(&root, Ino::ROOT, &Name::entry(name).unwrap()).await.unwrap();
            assert_eq!(meta.readlink(found.ino).await.unwrap(), name);
        }
        let odd = meta.get_xattr(&root, ino, odd).await.unwrap();
        assert_eq!(odd, &b"\x00\xff%41<\xef\xbf\xbd"[..]);
    }
}

async fn commit(engine: &dyn Engine, changes: Vec<Change>) {
    let (txn, _) = engine.begin(&[]).await.unwrap();
    txn.commit(Batch { guards: Vec::new(), changes }).await.unwrap();
}

#[tokio::test]
async fn what_dies_with_a_session_is_cleaned_after_a_binary_load_and_not_in_a_json_one() {
    let meta = volume().await;
    let ino = file(&meta, "f").await;
    meta.unlink(&Caller::root(), Ino::ROOT, &Name::entry(b"f").unwrap(), true).await.unwrap();
    let node = Attr { nlink: 0, ..Attr::decode(&[vec![0, 0x11], vec![0; 70]].concat()).unwrap() };
    let session = SessionId(7);
    let changes = vec![
        Change::Put(Key::Attr(ino), Record::Attr(Attr { parent: Ino::ROOT, ..node })),
        Change::Put(Key::Session(session), Record::Session(Session { expire: i64::MAX, info: Bytes::new() })),
        Change::Put(Key::Sustained(session, ino), Record::Number(1)),
    ];
    commit(&**meta.engine(), changes).await;
    let text = json_of(&**meta.engine(), &options(b"{}".to_vec())).await;
    assert!(text.contains("\"Sustained\": [\n    {\n      \"sid\": 7,\n      \"inodes\": [\n"), "{text}");
    let store = Store::new().await;
    load_json(&store.engine().await, text.as_bytes()).await.unwrap();
    assert_clean(&*store.engine().await).await;

    let store = Store::new().await;
    load_binary(&store.engine().await, &binary_of(&**meta.engine()).await).await.unwrap();
    let loaded = store.client_of_what_is_there().await;
    assert_eq!(rows(&loaded, Scan::Sustained(session)).await.len(), 1);
    let (_stopper, stop) = stop_signal();
    loaded.clean_stale_sessions(std::time::Duration::from_millis(10), &stop).await.unwrap();
    assert_eq!(rows(&loaded, Scan::Sustained(session)).await, []);
    assert_eq!(rows(&loaded, Scan::Sessions).await, []);
}

/// Engines that derive link parents, and old dumps of theirs, say nothing of them.
#[tokio::test]
async fn link_parents_are_counted_where_a_dump_has_none() {
    let meta = volume().await;
    let root = Caller::root();
    let ino = file(&meta, "f").await;
    meta.link(&root, ino, Ino::ROOT, &Name::entry(b"g").unwrap()).await.unwrap();
    meta.unlink(&root, Ino::ROOT, &Name::entry(b"g").unwrap(), true).await.unwrap();
    let dump = binary_of(&**meta.engine()).await;
    // Without its segments of link parents.
    let (mut without, mut at) = (Vec::new(), 0);
    loop {
        let sort = u32::from_be_bytes(dump[at..at + 4].try_into().unwrap());
        if sort == messages::MAGIC {
            break;
        }
        let length = 12 + u64::from_be_bytes(dump[at + 4..at + 12].try_into().unwrap()) as usize;
        if sort != messages::Sort::Parent as u32 {
            without.extend_from_slice(&dump[at..at + length]);
        }
        at += length;
    }
    without.extend_from_slice(&dump[at..]);
    assert!(without.len() < dump.len());
    let engine = Store::new().await.engine().await;
    load_binary(&engine, &without).await.unwrap();
    assert_clean(&*engine).await;
    let parents = outside(engine.read(&[Key::LinkParents(ino)]).await).unwrap();
    assert_eq!(parents, [Some(Record::LinkParents(vec![(Ino::ROOT, 1)]))]);
}

/// The load rules of links: what comes first counts, the others are links to it.
#[tokio::test]
async fn the_first_object_of_a_node_counts() {
    let node = |ino: u64, length: u64| {
        format!(
            r#"{{"attr":{{"inode":{ino},"type":"regular","mode":420,"length":{length}}},"chunks":[{{"index":0,"slices":[{{"id":{ino},"size":5,"len":5}},{{"id":0,"pos":9,"size":0,"len":2}}]}}]}}"#
        )
    };
    let text = format!(
        r#"{{"Setting":{{"DirStats":true}},"Counters":{{"nextInodes":40,"nextChunk":3}},"FSTree":{{"attr":{{"inode":1,"type":"directory","mode":511}},"entries":{{"a":{},"b":{},"d":{{"attr":{{"inode":9,"type":"directory","mode":0}},"entries":{{"c":{}}}}}}}}}}}"#,
        node(7, 11),
        node(7, 99),
        node(7, 11)
    );
    let store = Store::new().await;
    let engine = store.engine().await;
    load_json(&engine, text.as_bytes()).await.unwrap();
    assert_clean(&*engine).await;
    let keys = [Key::Attr(Ino(7)), Key::LinkParents(Ino(7)), Key::Attr(Ino::ROOT), Key::SliceRef(SliceId(0), 0)];
    let found = outside(engine.read(&keys).await).unwrap();
    let Some(Record::Attr(attr)) = found[0] else { panic!("{found:?}") };
    assert_eq!((attr.nlink, attr.length, attr.parent), (3, 11, Ino::MANY));
    assert_eq!(found[1], Some(Record::LinkParents(vec![(Ino::ROOT, 2), (Ino(9), 1)])));
    assert!(matches!(found[2], Some(Record::Attr(Attr { nlink: 3, length: 4096, .. }))), "{found:?}");
    assert_eq!(found[3], None, "a hole is no slice");
    assert_eq!(outside(engine.allocate(Counter::NextInode, 1).await).unwrap(), 40, "as the counters say");
    assert_eq!(outside(engine.allocate(Counter::NextSlice, 1).await).unwrap(), 8, "behind what is in use");
}

#[tokio::test]
async fn only_an_empty_database_is_loaded_into() {
    let meta = volume().await;
    let before = json_of(&**meta.engine(), &options(b"{}".to_vec())).await;
    for refused in [load_json(meta.engine(), JSON.as_bytes()).await, load_binary(meta.engine(), BINARY).await] {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("the database is not empty: it holds a volume"), "{said}");
    }
    assert_eq!(json_of(&**meta.engine(), &options(b"{}".to_vec())).await, before);
    commit(&**meta.engine(), vec![Change::Delete(Key::Setting)]).await;
    let said = load_json(meta.engine(), JSON.as_bytes()).await.unwrap_err().to_string();
    assert!(said.contains("metadata without a volume"), "{said}");
}

#[tokio::test]
async fn a_load_that_is_told_to_stop_leaves_nothing() {
    let engine = Store::new().await.engine().await;
    let (course, stopper) = course();
    stopper.stop();
    let stopped = json_load::load(&engine, &mut JSON.as_bytes(), &admit, AT_A_TIME, &course).await.unwrap_err();
    assert!(matches!(stopped, Stop::Errno(Errno::ECANCELED)), "{stopped}");
    let stopped = json::dump(&*engine, &options(Vec::new()), &mut Vec::new(), &course).await;
    assert!(stopped.is_err());
    load_binary(&engine, BINARY).await.unwrap();
}

/// At whatever byte a dump ends, it is refused with a reason, and nothing stays.
#[tokio::test]
async fn a_dump_that_was_cut_is_refused_wherever_it_was() {
    let engine = MemEngine::default();
    // Every byte of it, but not in the same run.
    let first = crate::util::rng::random_range(0..20);
    for end in (first..JSON.trim_end().len()).step_by(20) {
        let refused = load_json(&shared(&engine), &JSON.as_bytes()[..end]).await.unwrap_err();
        let Stop::Fault(fault) = refused else { panic!("{end}: {refused}") };
        assert_eq!(fault.kind(), FaultKind::Corrupt, "{end}: {fault}");
        assert!(fault.to_string().contains("byte="), "{end}: {fault}");
    }
    for end in (first..BINARY.len()).step_by(5) {
        let refused = load_binary(&shared(&engine), &BINARY[..end]).await.unwrap_err().to_string();
        assert!(refused.contains("byte="), "{end}: {refused}");
    }
    assert!(engine.holds_the_same_as(&MemEngine::default()));
    load_json(&shared(&engine), JSON.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_reason() {
    let engine = MemEngine::default();
    let changed = |from: &str, to: &str| {
        assert!(JSON.contains(from), "{from}");
        JSON.replacen(from, to, 1)
    };
    for (text, why) in [
        (changed("\"inode\":3,", "\"inode\":0,"), "cannot have the number 0"),
        (changed("\"inode\":3,", "\"inode\":1,"), "cannot have the number 1"),
        (changed("\"inode\":3,", "\"inode\":9223372036854775807,"), "cannot have the number"),
        (changed("\"inode\":3,", "\"inode\":-3,"), "\"inode\" is not a number"),
        (changed("\"type\":\"fifo\"", "\"type\":\"fofi\""), "type of a node"),
        (changed("\"length\":42", "\"length\":9223372036854775807"), "longer than it can be"),
        (changed("\"size\":100000", "\"size\":10"), "reaches out of its chunk"),
        (changed("\"c\": {", "\"..\": {"), "no entry can have this name"),
        (changed("\"c\": {", "\"%2F\": {"), "no entry can have this name"),
        (changed("\"hl\": {", "\"c\": {"), "the same name twice"),
        (changed("\"nextInodes\": 1026", "\"nextInodes\": 9223372036854775807"), "out of range"),
        (changed("\"FSTree\"", "\"Tree\""), "the trash comes before the tree"),
        (changed("\"Setting\"", "\"setting\""), "the tree comes before the format document"),
        (format!("{JSON} x"), "something follows the end"),
        (changed("\"symlink\": \"bad%FF%FE\"", "\"symlink\": \"\""), "a symlink has no target"),
        ("{}".into(), "no format document"),
        ("[]".into(), "an object is expected"),
    ] {
        let said = load_json(&shared(&engine), text.as_bytes()).await.unwrap_err().to_string();
        assert!(said.contains(why) && said.contains("line="), "{why}: {said}");
    }
    for (at, byte, why) in [(0, 9, "no binary dump"), (3, 99, "no binary dump"), (4, 255, "longer than its segment")] {
        let mut dump = BINARY.to_vec();
        dump[at] = byte;
        let said = load_binary(&shared(&engine), &dump).await.unwrap_err().to_string();
        assert!(said.contains(why) || at == 4, "{why}: {said}");
    }
    assert!(engine.holds_the_same_as(&MemEngine::default()));
}

/// As dumps of volumes in use may have it.
#[tokio::test]
async fn a_directory_that_is_there_twice_is_loaded_once() {
    for (from, to) in
        [("\"inode\":3,", "\"inode\":2,"), ("\"inode\":6,", "\"inode\":3,"), ("\"inode\":3,", "\"inode\":6,")]
    {
        let engine = Store::new().await.engine().await;
        load_json(&engine, JSON.replacen(from, to, 1).as_bytes()).await.unwrap();
        assert_clean(&*engine).await;
    }
    // And such a volume is dumped so that it can be loaded.
    let meta = volume().await;
    let node = NewNode { kind: Kind::Directory, mode: 0o755, umask: 0, rdev: 0, target: None };
    let name = |text: &str| Name::entry(text.as_bytes()).unwrap();
    let dir = meta.create(&Caller::root(), Ino::ROOT, &name("a"), &node).await.unwrap().ino;
    let below = meta.create(&Caller::root(), dir, &name("b"), &node).await.unwrap().ino;
    let again = |parent, text, ino| {
        let dentry = crate::meta::record::Dentry { kind: Kind::Directory, ino };
        Change::Put(Key::Dentry(parent, name(text)), Record::Dentry(dentry))
    };
    commit(&**meta.engine(), vec![again(below, "circle", dir), again(Ino::ROOT, "z", below)]).await;
    let text = json_of(&**meta.engine(), &options(b"{}".to_vec())).await;
    assert!(!text.contains("circle") && !text.contains("\"z\""), "{text}");
    let engine = Store::new().await.engine().await;
    assert_eq!(load_json(&engine, text.as_bytes()).await.unwrap().inodes, 2);
    assert_clean(&*engine).await;
}

/// A commit that may have been applied is not made twice.
#[tokio::test]
async fn a_lost_reply_ends_a_load_and_nothing_stays() {
    let store = Store::new().await;
    let engine = store.lossy_engine().await;
    for _ in 0..3 {
        let lost = load_json(&engine, JSON.as_bytes()).await;
        let there = outside(engine.read(&[Key::Setting, Key::Attr(Ino(7))]).await).unwrap();
        match lost {
            Ok(_) => panic!("it cannot be known that it was loaded"),
            Err(_) => assert_eq!(there, [None, None]),
        }
    }
}

/// Many commits under way, and what several of them are about comes in its order: links, their parents, references.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_commits_under_way_at_a_time_make_the_same_volume() {
    let meta = volume().await;
    let (root, setting) = (Caller::root(), options(b"{\"DirStats\":true}".to_vec()));
    let slice = Slice { pos: 0, id: SliceId(1), size: 10, off: 0, len: 10 };
    for round in 0..cases(40) {
        let ino = file(&meta, &format!("file {round:02}")).await;
        meta.append_slice(ino, ChunkIndex(0), slice, Timestamp::new(1, 0)).await.unwrap();
        if round > 0 {
            commit(&**meta.engine(), vec![Change::AddSliceRef { id: slice.id, size: slice.size, delta: 1 }]).await;
        }
        for link in 0..4 {
            let name = Name::entry(format!("link {link} of {round:02}").as_bytes()).unwrap();
            meta.link(&root, ino, Ino::ROOT, &name).await.unwrap();
        }
    }
    let (text, binary) = (json_of(&**meta.engine(), &setting).await, binary_of(&**meta.engine()).await);
    for is_binary in [false, true] {
        let engine = Store::new().await.bounded_engine().await;
        match is_binary {
            true => load_binary(&engine, &binary).await.unwrap(),
            false => load_json(&engine, text.as_bytes()).await.unwrap(),
        };
        assert_clean(&*engine).await;
        assert_same(&json_of(&*engine, &setting).await, &text);
    }
}

/// Columns of text hold names that are text: the others are counted, and everything else is there.
#[tokio::test]
async fn attributes_that_an_engine_cannot_hold_are_left_out_and_counted() {
    let source = MemEngine::default();
    load_json(&shared(&source), JSON.as_bytes()).await.unwrap();
    let put =
        |name: &[u8], value: Vec<u8>| Change::Put(Key::Xattr(Ino(2), Name::stored(name)), Record::Bytes(value.into()));
    commit(&source, vec![put(b"user.\xff", b"1".to_vec()), put(b"user.long", vec![7; 65_536])]).await;
    let setting = options(setting_of(JSON));
    let (text, binary) = (json_of(&source, &setting).await, binary_of(&source).await);
    for is_binary in [false, true] {
        let engine = Store::new().await.engine().await;
        let loaded = match is_binary {
            true => load_binary(&engine, &binary).await.unwrap(),
            false => load_json(&engine, text.as_bytes()).await.unwrap(),
        };
        let (odd, long) = match engine.name() {
            "mysql" => (false, false),
            "postgres" => (false, true),
            _ => (true, true),
        };
        let empty = u64::from(!engine.stores_empty_values());
        assert_eq!(loaded.left_out, u64::from(!odd) + u64::from(!long) + empty);
        assert_clean(&*engine).await;
        let keys = [&b"user.\xff"[..], b"user.long"].map(|name| Key::Xattr(Ino(2), Name::stored(name)));
        let there = outside(engine.read(&keys[1..]).await).unwrap();
        assert_eq!(there[0].is_some(), long);
        if odd {
            assert!(outside(engine.read(&keys[..1]).await).unwrap()[0].is_some());
        }
    }
}

/// Neither the stack nor the memory may depend on the depth of a tree.
#[tokio::test]
async fn a_very_deep_tree_comes_through() {
    const DEPTH: u64 = 2000;
    let engine = MemEngine::default();
    let mut text = String::from("{\"Setting\":{\"Name\":1},\"FSTree\":");
    for depth in 0..DEPTH {
        text +=
            &format!("{{\"attr\":{{\"inode\":{},\"type\":\"directory\",\"mode\":0}},\"entries\":{{\"d\":", depth + 1);
    }
    text += &format!("{{\"attr\":{{\"inode\":{},\"type\":\"fifo\",\"mode\":0}}}}", DEPTH + 1);
    text += &"}}".repeat(DEPTH as usize);
    text += "}";
    assert_eq!(load_json(&shared(&engine), text.as_bytes()).await.unwrap().inodes, DEPTH);
    let again = json_of(&engine, &options(b"{\"Name\":1}".to_vec())).await;
    let second = MemEngine::default();
    assert_eq!(load_json(&shared(&second), again.as_bytes()).await.unwrap().inodes, DEPTH);
    assert!(engine.holds_the_same_as(&second));
}

#[tokio::test]
async fn a_large_directory_and_a_sparse_file_come_in_order() {
    let meta = volume().await;
    let root = Caller::root();
    let count = cases(1200);
    for n in 0..count {
        file(&meta, &format!("f{}", n * 7919 % count)).await;
    }
    let ino = file(&meta, "zz").await;
    for (at, index) in [0, 5000, 70_000].into_iter().enumerate() {
        let slice = Slice { pos: 0, id: SliceId(at as u64 + 1), size: 10, off: 0, len: 10 };
        meta.append_slice(ino, ChunkIndex(index), slice, Timestamp::new(1, 0)).await.unwrap();
    }
    meta.truncate(&root, ino, 1 << 45, true).await.unwrap();
    let text = json_of(&**meta.engine(), &options(b"{}".to_vec())).await;
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("      \"")?.strip_suffix("\": {")).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!((names.len(), &names), (count as usize + 1, &sorted));
    for index in [0, 5000, 70_000] {
        assert!(text.contains(&format!("\n          {{\"index\":{index},")), "{index}");
    }
    let engine = Store::new().await.engine().await;
    load_json(&engine, text.as_bytes()).await.unwrap();
    assert_clean(&*engine).await;
    assert_same(&json_of(&*engine, &options(b"{}".to_vec())).await, &text);
}

/// What random clients might have made, by numbers.
async fn grow(meta: &Meta, steps: &[(u8, u8, u8)]) {
    let root = Caller::root();
    let (mut dirs, mut files) = (vec![Ino::ROOT], Vec::new());
    for (at, (what, which, with)) in steps.iter().enumerate() {
        let dir = dirs[usize::from(*which) % dirs.len()];
        let name = Name::entry(&[b'n', *with | 0x80, (at + 48) as u8]).unwrap();
        let made = async |kind, target| {
            let node = NewNode { kind, mode: 0o640, umask: 0, rdev: 0, target };
            meta.create(&root, dir, &name, &node).await.map(|entry| entry.ino)
        };
        // That a name is taken is as good as anything.
        match what % 7 {
            0 => dirs.extend(made(Kind::Directory, None).await),
            1 => drop(made(Kind::Symlink, Some(Bytes::from(vec![*with, b'%', 0xff]))).await),
            2 if !files.is_empty() => {
                let ino = files[usize::from(*with) % files.len()];
                drop(meta.link(&root, ino, dir, &name).await);
            }
            3 if !files.is_empty() => {
                let ino = files[usize::from(*with) % files.len()];
                let value = [*with, *which, 0x80];
                drop(meta.set_xattr(&root, ino, &[b'u', *which | 1], &value, XattrMode::Set).await);
            }
            4 if !files.is_empty() => {
                let ino = files[usize::from(*which) % files.len()];
                let id = SliceId(at as u64 + 1);
                let slice = Slice { pos: u32::from(*with), id, size: 300, off: 0, len: 300 };
                drop(meta.append_slice(ino, ChunkIndex(u32::from(*with % 3)), slice, Timestamp::new(5, 6)).await);
            }
            _ => files.extend(made(Kind::File, None).await),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), ..ProptestConfig::default() })]
    #[test]
    fn random_trees_come_through_both_forms(steps in proptest::collection::vec(any::<(u8, u8, u8)>(), 0..60)) {
        block_on(async {
            let meta = volume().await;
            grow(&meta, &steps).await;
            let setting = options(b"{\"DirStats\":true}".to_vec());
            let text = json_of(&**meta.engine(), &setting).await;
            let mut binary = Vec::new();
            binary::dump(&**meta.engine(), &setting, &mut binary, &course().0).await.unwrap();
            let (by_text, by_binary) = (Store::new().await.engine().await, Store::new().await.engine().await);
            load_json(&by_text, text.as_bytes()).await.unwrap();
            load_binary(&by_binary, &binary).await.unwrap();
            for engine in [by_text, by_binary] {
                assert_clean(&*engine).await;
                assert_same(&json_of(&*engine, &setting).await, &text);
            }
        });
    }
}

#[tokio::test]
async fn the_contents_of_a_binary_dump_are_told() {
    let contents = binary_load::contents(&mut &*BINARY).unwrap();
    assert_eq!((contents["node"].records, contents["edge"].records, contents["format"].records), (23, 24, 1));
    let mut packed = Packing::Plain.reader(BINARY).unwrap();
    assert_eq!(binary_load::contents(&mut packed).unwrap(), contents);
}
