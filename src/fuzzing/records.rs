//! Stored records: attributes, slices, ACLs, locks, the volume's document, what sessions say of themselves.

use super::{choice, sentence, texts};
use crate::base::acl::{AclRule, decode_entries, encode_entries};
use crate::base::attr::ATTR_FIXED_BYTES;
use crate::base::slice::resolve;
use crate::base::{Attr, CHUNK_BYTES, Ino, Kind, Name, SliceId, Timestamp};
use crate::base::{Slice, name::NAME_BYTES_MAX};
use crate::chunk::layout;
use crate::config::Secret;
use crate::config::seal;
use crate::config::volume::{Access, VolumeFormat};
use crate::meta::ops::compact::plan_compaction;
use crate::meta::ops::{acl, plock};
use crate::meta::record::{PlockRange, decode_delayed, encode_delayed};
use crate::meta::session::SessionInfo;
use crate::meta::trash::hour_start;
use crate::vfs::file::ChunkView;

fn sample() -> Attr {
    let time = Timestamp::new(1_795_968_751, 802_140_652);
    Attr {
        flags: 0,
        kind: Kind::File,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        atime: time,
        mtime: time,
        ctime: time,
        nlink: 1,
        length: 5_242_897,
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

fn samples() -> Vec<Attr> {
    let plain = sample();
    vec![
        plain,
        Attr { kind: Kind::Directory, length: 4096, nlink: 2, default_acl: 7, ..plain },
        Attr { kind: Kind::BlockDevice, rdev: 0x801, tier: 3, parent: Ino::MANY, ..plain },
        Attr { access_acl: 1, tier: 1, mode: 0o7777, parent: Ino(Ino::TRASH.0 + 1), ..plain },
    ]
}

pub fn attrs() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = samples().iter().map(Attr::encode).collect();
    // Records of clients before there were parents.
    all.push(sample().encode()[..63].to_vec());
    all
}

/// What replies and accounting do with any attributes.
fn use_attr(attr: &Attr) {
    let space = i64::try_from(attr.space()).expect("space fits the counters");
    let _ = space.checked_neg().expect("space may be taken away again");
    let _ = attr.mtime.since(attr.ctime);
    #[cfg(feature = "fuse")]
    {
        let times = [attr.atime, attr.mtime, attr.ctime].map(crate::fuse::convert::system_time);
        assert!(times.iter().all(|time| time.elapsed().is_ok() || time.elapsed().is_err()));
        let _ = crate::fuse::convert::blocks(attr);
    }
}

pub fn attr(data: &[u8]) {
    let Some(attr) = Attr::decode(data) else { return };
    let stored = attr.encode();
    assert_eq!(Attr::decode(&stored), Some(attr));
    let known = if data.len() < ATTR_FIXED_BYTES { ATTR_FIXED_BYTES - 8 } else { ATTR_FIXED_BYTES };
    assert_eq!(data[..known], stored[..known]);
    use_attr(&attr);
}

#[cfg(feature = "sqlite")]
pub fn node_rows() -> Vec<Vec<u8>> {
    let columns = |attr: &Attr| crate::meta::engine::sql::records::node_columns(attr);
    samples().iter().map(|attr| columns(attr).iter().flat_map(|column| column.to_be_bytes()).collect()).collect()
}

#[cfg(feature = "sqlite")]
pub fn node_row(data: &[u8]) {
    use crate::meta::engine::sql::records::{NodeColumns, attr_of, node_columns};
    let mut columns: NodeColumns = [0; _];
    for (column, bytes) in columns.iter_mut().zip(data.as_chunks::<8>().0) {
        *column = i64::from_be_bytes(*bytes);
    }
    let Some(attr) = attr_of(&columns) else { return };
    let again = attr_of(&node_columns(&attr)).expect("what we write can be read");
    // Times at the end of what the columns hold stop there, and then stay.
    assert_eq!(Attr { atime: attr.atime, mtime: attr.mtime, ctime: attr.ctime, ..again }, attr);
    assert_eq!(attr_of(&node_columns(&again)), Some(again));
    use_attr(&attr);
}

#[cfg(not(feature = "sqlite"))]
pub fn node_rows() -> Vec<Vec<u8>> {
    Vec::new()
}

#[cfg(not(feature = "sqlite"))]
pub fn node_row(_: &[u8]) {}

fn written(pos: u32, id: u64, len: u32) -> Slice {
    Slice { pos, id: SliceId(id), size: len, off: 0, len }
}

pub fn slice_lists() -> Vec<Vec<u8>> {
    let part = Slice { pos: 400, id: SliceId(9), size: 9000, off: 100, len: 800 };
    let whole = Slice::hole(0, CHUNK_BYTES as u32);
    [
        vec![written(0, 1, 100)],
        vec![written(0, 1, 5 << 20), Slice::hole(1000, 5000), written(100, 2, 9000), part],
        vec![whole, written(CHUNK_BYTES as u32 - 10, 3, 10), part, part, whole],
        (0..40).map(|i| written(i * 1000, u64::from(i) + 1, 4000)).collect(),
    ]
    .map(|list| Slice::encode_list(&list))
    .to_vec()
}

pub fn slices(data: &[u8]) {
    let Some(list) = Slice::decode_list(data) else { return };
    assert_eq!(Slice::encode_list(&list), data);
    // Impossible records are refused by whoever reads a chunk; here they only must not do harm.
    resolve(&list);
    let list: Vec<Slice> = list.into_iter().filter(Slice::is_possible).take(400).collect();
    let pieces = resolve(&list);
    let mut at = 0;
    for piece in &pieces {
        assert!(u64::from(piece.pos) == at && piece.len > 0 && piece.is_possible(), "{piece:?} at {at}");
        at = piece.end();
    }
    assert_eq!(at, list.iter().filter(|slice| slice.len > 0).map(Slice::end).max().unwrap_or(0));
    let view = ChunkView::new(list.clone());
    for (from, to) in [(0, 1), (at as u32 / 3, at as u32 / 2), (0, CHUNK_BYTES as u32)] {
        assert!(view.cut(from, to.max(from)).all(|piece| piece.pos >= from && piece.end() <= u64::from(to.max(from))));
    }
    for piece in pieces.iter().filter(|piece| !piece.is_hole()) {
        let parts = layout::split(piece.id, piece.size, 64 << 10, piece.off, piece.len);
        let mut sum = 0;
        for (key, range) in parts {
            assert!(range.start < range.end && range.end <= key.size);
            sum += range.end - range.start;
        }
        assert_eq!(sum, piece.len);
    }
    if let Some(plan) = plan_compaction(&list) {
        let sum: u64 = plan.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        assert!(sum == u64::from(plan.size) && plan.skipped < plan.read && plan.read <= list.len(), "{plan:?}");
    }
}

pub fn delayed_lists() -> Vec<Vec<u8>> {
    vec![encode_delayed(&[written(0, 5, 9), written(0, u64::MAX, u32::MAX)])]
}

pub fn delayed(data: &[u8]) {
    if let Some(list) = decode_delayed(data) {
        assert_eq!(encode_delayed(&list), data);
    }
}

fn rules() -> Vec<AclRule> {
    let rule = AclRule { owner: 7, group: 5, mask: 4, other: 0, users: vec![(1000, 6)], groups: vec![(5, 4), (6, 1)] };
    let many = AclRule { users: (0..50).map(|uid| (uid, 7)).collect(), ..rule.clone() };
    vec![AclRule { owner: 6, group: 4, other: 4, ..AclRule::empty() }, rule, many]
}

pub fn acl_rules() -> Vec<Vec<u8>> {
    rules().iter().map(AclRule::encode).collect()
}

pub fn acl_rule(data: &[u8]) {
    if let Some(rule) = AclRule::decode(data) {
        assert_eq!(rule.encode(), data);
        // Whatever is stored can be shown.
        let _ = acl::format(&rule);
    }
    if let Some(entries) = decode_entries(data) {
        assert_eq!(encode_entries(&entries), data);
    }
}

pub fn acl_xattrs() -> Vec<Vec<u8>> {
    rules().iter().map(|rule| acl::format(rule).to_vec()).collect()
}

/// The value that setfacl(1) sets: anybody may send anything.
pub fn acl_xattr(data: &[u8]) {
    if let Ok(rule) = acl::parse(data) {
        assert_eq!(acl::parse(&acl::format(&rule)), Ok(rule.clone()));
        assert_eq!(AclRule::decode(&rule.encode()), Some(rule));
    }
}

pub fn plocks() -> Vec<Vec<u8>> {
    let range = |exclusive, start, end| PlockRange { exclusive, pid: 4980, start, end };
    [vec![range(true, 50, 149), range(false, 200, 249)], vec![range(false, 0, i64::MAX as u64)]]
        .map(|list| PlockRange::encode_list(&list))
        .to_vec()
}

pub fn plock(data: &[u8]) {
    let Some(held) = PlockRange::decode_list(data) else { return };
    assert_eq!(PlockRange::encode_list(&held), data);
    for (start, end) in [(0, 0), (50, 100), (149, u64::MAX), (0, i64::MAX as u64)] {
        for set in [None, Some(PlockRange { exclusive: true, pid: 1, start, end })] {
            let list = plock::replace(&held, start, end, set);
            let stored = PlockRange::encode_list(&list);
            assert_eq!(PlockRange::decode_list(&stored), Some(list), "what we write can be read");
        }
    }
}

pub fn names() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 8] =
        [b"a", b"..", b"name", b"a/b", b"\0", b"1-22-name", b"2026-11-29-12", "\u{fc}\u{1b}[0m".as_bytes()];
    texts.into_iter().map(<[u8]>::to_vec).chain([vec![b'n'; NAME_BYTES_MAX], vec![0xFF; 300]]).collect()
}

pub fn name(data: &[u8]) {
    for name in [Name::entry(data), Name::xattr(data)].into_iter().flatten() {
        assert_eq!(name.as_bytes(), data);
        assert!(!data.is_empty() && data.len() <= NAME_BYTES_MAX);
    }
    let stored = Name::stored(data);
    assert!(format!("{stored}{stored:?}").bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '));
    if let Some(start) = hour_start(&stored) {
        assert!(start % 3600 == 0);
    }
}

const STORED: &str = "{\n\"Name\": \"vpeer\",\n\"UUID\": \"58e59682-7faf-4d9f-a900-6d35c920d84b\",\n\"Storage\": \"file\",\n\
    \"Tiers\": {\n\"0\": {\n\"ID\": 0,\n\"StorageClass\": \"\",\n\"Tag\": \"\"\n}\n},\n\"Bucket\": \"/tmp/b/\",\n\
    \"AccessKey\": \"AK\",\n\"SecretKey\": \"K8rzTD6X2X+Wysky1C8RJXuKGXcpLNnX8INvPEZ/RMkKqA==\",\n\"BlockSize\": 4096,\n\
    \"Compression\": \"none\",\n\"EncryptAlgo\": \"aes256gcm-rsa\",\n\"KeyEncrypted\": true,\n\"TrashDays\": 1,\n\
    \"MetaVersion\": 1,\n\"MinClientVersion\": \"1.1.0-A\",\n\"DirStats\": true,\n\"EnableACL\": false\n}";

pub fn settings() -> Vec<Vec<u8>> {
    let later = r#"{"First":{"b":1,"a":[1.5,null]},"Name":"abc","Later":18446744073709551615,"UUID":"u","Storage":"s3",
        "Tiers":{"0":{"ID":0,"New":"x","StorageClass":"IA","Tag":""},"7":{"Tag":"t"}},"TrashDays":2,"Zz":null,
        "SecretKey":"hunter2hunter2","MaxClientVersion":"1.9.0","MinClientVersion":"1.2.0-beta1+b","Capacity":1099511627776,
        "Inodes":1000,"Shards":4,"HashPrefix":true,"UploadLimit":-1,"Compression":"LZ4","BlockSize":64,"Bucket":"b%d"}"#;
    let deep = [&b"{\"X\":"[..], &[b'['; 200], &[b']'; 200], b"}"].concat();
    vec![STORED.into(), later.into(), b"{}".to_vec(), deep]
}

pub fn setting(data: &[u8]) {
    let format = match VolumeFormat::from_json(data) {
        Ok(format) => format,
        Err(error) => {
            assert!(!sentence(&error).contains("hunter2"), "{error}");
            return;
        }
    };
    let stored = format.to_json();
    let again = VolumeFormat::from_json(&stored).expect("what we write can be read");
    let document = |bytes: &[u8]| match serde_json::from_slice(bytes) {
        Ok(serde_json::Value::Object(object)) => object,
        other => panic!("a format was read from {other:?}"),
    };
    let (before, after) = (document(data), document(&stored));
    // Numbers past 64 bits, which nobody writes, are rounded each time they are read.
    if !before.values().any(has_float) {
        assert_eq!(again.to_json(), stored, "a document that was rewritten once stays as it is");
    }
    for (key, value) in before.iter().filter(|(key, value)| !VolumeFormat::knows(key) && !has_float(value)) {
        assert_eq!(after.get(key), Some(value), "the unknown key {key:?} is lost");
    }
    let shown = format!("{}{format:?}", format.redacted());
    for secret in [&format.secret_key, &format.session_token, &format.encrypt_key] {
        // Shorter ones may be part of anything.
        if secret.expose().len() > 12 && !without_secrets(&format).contains(secret.expose()) {
            assert!(!shown.contains(secret.expose()));
        }
    }
    for access in [Access::Read, Access::Write] {
        if let Err(error) = format.admit(access) {
            sentence(&error);
        }
    }
    for result in [format.open_secrets().map(drop), format.check_new(), format.check_update(&again)] {
        if let Err(error) = result {
            sentence(&error);
        }
    }
    let _ = crate::vfs::client::rules_of(&format);
}

fn has_float(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => number.is_f64(),
        serde_json::Value::Array(list) => list.iter().any(has_float),
        serde_json::Value::Object(object) => object.values().any(has_float),
        _ => false,
    }
}

/// All that may be shown.
fn without_secrets(format: &VolumeFormat) -> String {
    let mut open = format.clone();
    (open.secret_key, open.session_token, open.encrypt_key) = Default::default();
    String::from_utf8_lossy(&open.to_json()).into_owned() + &format!("{open:?}")
}

const UUID: &str = "2fd07c25-f1eb-4359-ad5e-9c77cc932105";

pub fn sealed_texts() -> Vec<Vec<u8>> {
    texts(&["KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", "AAAA", "removed"])
}

pub fn sealed(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for algorithm in ["aes256gcm-rsa", "sm4gcm"] {
        if let Err(error) = seal::open(&Secret::new(text), UUID, algorithm, "secret key") {
            let said = sentence(&error);
            // What has a space is no base64, but may be a piece of the sentence itself.
            assert!(text.len() < 12 || text.contains(' ') || !said.contains(text), "{said}");
        }
    }
}

pub fn session_infos() -> Vec<Vec<u8>> {
    let info = SessionInfo {
        version: "1.4.2".into(),
        host_name: "h".into(),
        ip_addrs: vec!["::1".into()],
        mount_point: "/mnt".into(),
        mount_time: "2026-11-29T12:00:00.000000001Z".into(),
        process_id: 7,
    };
    vec![serde_json::to_vec(&info).expect("plain data"), b"{}".to_vec()]
}

/// Sessions of every age and of other programs are listed; a description that cannot be read is none.
pub fn session_info(data: &[u8]) {
    let Some((number, info)) = choice(data, 256) else { return };
    let expire = [i64::MIN, -1, 0, i64::MAX].get(number).copied().unwrap_or(number as i64);
    crate::cli::fuzz::session(expire, info);
    if let Ok(info) = serde_json::from_slice::<SessionInfo>(info) {
        let stored = serde_json::to_vec(&info).expect("plain data");
        assert_eq!(serde_json::from_slice::<SessionInfo>(&stored).ok(), Some(info));
    }
}
