//! `status META-URL`: the volume's record, who uses it, and how full it is, as JSON (`spec/surface.md` 5.8).

use super::open;
use crate::base::{Errno, Ino, SessionId, Stop};
use crate::config::volume::go_json;
use crate::meta::Meta;
use crate::meta::engine::Scan;
use crate::meta::record::PlockRange;
use crate::meta::record::{Key, Record};
use crate::meta::session::{SessionDetail, SessionEntry};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use serde_json::{Map, Value, json};

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Show what this session holds
    #[arg(short, long, value_name = "SID")]
    session: Option<u64>,
    /// Also count trash and what waits for deletion; may take long
    #[arg(short, long)]
    more: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    if let Some(sid) = args.session.filter(|sid| *sid != 0) {
        let detail = match meta.session_detail(SessionId(sid)).await {
            Ok(detail) => detail,
            Err(Stop::Errno(Errno::ENOENT)) => bail!("get session: session not found: {sid}"),
            Err(stop) => return Err(stop).context("get session"),
        };
        println!("{}", go_json(&detailed(&detail), "  "));
        return Ok(());
    }
    let format = open::existing_format(&meta).await.context("get status: load setting")?;
    let sessions = meta.sessions().await.context("list sessions")?;
    let usage = meta.statfs(Ino::ROOT).await.context("read the usage")?;
    let mut stat = Map::new();
    stat.insert("UsedSpace".into(), json!(usage.used));
    stat.insert("AvailableSpace".into(), json!(usage.avail));
    stat.insert("UsedInodes".into(), json!(usage.inodes_used));
    stat.insert("AvailableInodes".into(), json!(usage.inodes_avail));
    if args.more {
        for (name, number) in waiting(&meta).await.context("scan what waits for deletion")?.named() {
            if number > 0 {
                stat.insert(name.into(), json!(number));
            }
        }
    }
    let status = json!({
        "Setting": format.redacted(),
        "Sessions": sessions.iter().map(|session| Value::Object(described(session))).collect::<Vec<_>>(),
        "Stat": stat,
    });
    println!("{}", go_json(&status, "  "));
    Ok(())
}

pub(super) fn described(entry: &SessionEntry) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("Sid".into(), json!(entry.sid.0));
    let expire = jiff::Timestamp::from_second(entry.expire).unwrap_or_default();
    let expire = expire.to_zoned(jiff::tz::TimeZone::system());
    let expire = expire.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    // RFC 3339 as the peer writes it: UTC is Z.
    let expire = expire.strip_suffix("+00:00").map(|time| format!("{time}Z")).unwrap_or(expire);
    out.insert("Expire".into(), json!(expire));
    let info = entry.info.clone().unwrap_or_default();
    out.insert("Version".into(), json!(info.version));
    out.insert("HostName".into(), json!(info.host_name));
    if !info.ip_addrs.is_empty() {
        out.insert("IPAddrs".into(), json!(info.ip_addrs));
    }
    out.insert("MountPoint".into(), json!(info.mount_point));
    out.insert("MountTime".into(), json!(info.mount_time));
    out.insert("ProcessID".into(), json!(info.process_id));
    out
}

fn detailed(detail: &SessionDetail) -> Value {
    let mut out = described(&detail.entry);
    if !detail.sustained.is_empty() {
        out.insert("Sustained".into(), json!(detail.sustained.iter().map(|ino| ino.0).collect::<Vec<_>>()));
    }
    if !detail.flocks.is_empty() {
        let lock = |(ino, holder): &(Ino, crate::meta::record::FlockHolder)| json!({"Inode": ino.0, "Owner": holder.owner, "Ltype": if holder.exclusive { "W" } else { "R" }});
        out.insert("Flocks".into(), detail.flocks.iter().map(lock).collect());
    }
    if !detail.plocks.is_empty() {
        let lock = |(ino, owner, ranges): &(Ino, u64, Vec<PlockRange>)| {
            let records = base64::engine::general_purpose::STANDARD.encode(PlockRange::encode_list(ranges));
            json!({"Inode": ino.0, "Owner": owner, "Records": records})
        };
        out.insert("Plocks".into(), detail.plocks.iter().map(lock).collect());
    }
    Value::Object(out)
}

/// What is deleted and still takes space.
#[derive(Default)]
struct Waiting {
    trash_files: (u64, u64),
    pending_files: (u64, u64),
    trash_slices: (u64, u64),
    pending_slices: (u64, u64),
}

impl Waiting {
    fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("TrashFileCount", self.trash_files.0),
            ("TrashFileSize", self.trash_files.1),
            ("PendingDeletedFileCount", self.pending_files.0),
            ("PendingDeletedFileSize", self.pending_files.1),
            ("TrashSliceCount", self.trash_slices.0),
            ("TrashSliceSize", self.trash_slices.1),
            ("PendingDeletedSliceCount", self.pending_slices.0),
            ("PendingDeletedSliceSize", self.pending_slices.1),
        ]
    }
}

async fn waiting(meta: &Meta) -> anyhow::Result<Waiting> {
    let mut w = Waiting::default();
    let add = |sum: &mut (u64, u64), bytes: u64| *sum = (sum.0 + 1, sum.1 + bytes);
    let scans = [Scan::Attrs, Scan::DeletedFiles, Scan::DelayedSlices, Scan::SliceRefs];
    for scan in scans {
        let mut after = None;
        loop {
            let page = meta.engine().scan(&scan, after.as_ref(), 10_000).await.map_err(open::fault)?;
            for row in page.rows {
                match row {
                    (Key::Attr(ino), Record::Attr(attr)) if !ino.is_trash() && attr.parent.is_hourly() => {
                        add(&mut w.trash_files, attr.length);
                    }
                    (Key::DeletedFile(_, length), _) => add(&mut w.pending_files, length),
                    (Key::DelayedSlices(..), Record::Slices(slices)) => {
                        slices.iter().for_each(|slice| add(&mut w.trash_slices, slice.size.into()));
                    }
                    // No reference left: the objects are still to be removed.
                    (Key::SliceRef(_, size), Record::Number(count)) if count <= 0 => {
                        add(&mut w.pending_slices, size.into())
                    }
                    _ => {}
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
    }
    Ok(w)
}
