//! `destroy META-URL UUID`: removes a volume with all its objects and records (`spec/surface.md` 5.23).
//!
//! Objects go first: as long as the record exists, a destruction that was interrupted can be repeated.

use super::{open, proceed_anyway};
use crate::base::Ino;
use crate::base::fault::one_line;
use crate::object::{ObjectStore, SharedStore};
use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};

/// Deletions under way at a time: enough to hide the store's latency, few enough not to be throttled.
const DELETES: usize = 50;

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// The volume's UUID, to be sure that the right one is meant
    #[arg(value_name = "UUID", required = true)]
    uuid: String,
    /// Ask no questions
    #[arg(short, long)]
    yes: bool,
    /// Check nothing
    #[arg(long)]
    force: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    let format = open::existing_format(&meta).await?;
    if format.uuid != args.uuid {
        bail!("UUID {:?} != expected {:?}", args.uuid, format.uuid);
    }
    format.check_layout()?;
    let store = open::objects(&format).context("object storage")?;
    if !args.force {
        refuse_users(&meta).await?;
        let usage = meta.statfs(Ino::ROOT).await.context("read the usage")?;
        println!(" volume name: {}", format.name);
        println!(" volume UUID: {}", format.uuid);
        println!("data storage: {}", store.name());
        println!("  used bytes: {}", usage.used);
        println!(" used inodes: {}", usage.inodes_used);
        println!("WARNING: The target volume will be permanently destroyed, including:");
        println!("WARNING: 1. ALL objects in the data storage: {}", store.name());
        println!("WARNING: 2. ALL entries in the metadata engine: {uri}");
        if !args.yes {
            proceed_anyway()?;
        }
    }
    let objects = remove_objects(&store).await.context("remove the objects")?;
    tracing::info!("Deleted {objects} objects");
    meta.engine().erase().await.map_err(open::fault).context("remove the metadata")?;
    tracing::info!("The volume has been destroyed! You may need to delete cache directory manually.");
    Ok(())
}

async fn refuse_users(meta: &crate::meta::Meta) -> anyhow::Result<()> {
    let sessions = meta.sessions().await.context("list sessions")?;
    let now = meta.now().seconds;
    let active: Vec<_> = sessions.into_iter().filter(|session| session.expire > now).collect();
    if active.is_empty() {
        return Ok(());
    }
    println!("{:>8}  {:<32}  MountPoint", "SID", "HostName");
    for session in &active {
        let info = session.info.clone().unwrap_or_default();
        println!("{:>8}  {:<32}  {}", session.sid, one_line(&info.host_name), one_line(&info.mount_point));
    }
    bail!("{} sessions are active, please disconnect them first", active.len());
}

/// Deletes every object under the prefix and answers how many there were.
async fn remove_objects(store: &SharedStore) -> anyhow::Result<u64> {
    let mut removed = 0;
    let mut after = String::new();
    loop {
        let page = store.list("", &after, 1000).await?;
        let Some(last) = page.last().map(|object| object.key.clone()) else { break };
        let full = page.len() >= 1000;
        removed += page.len() as u64;
        stream::iter(page.into_iter().map(|object| async move { delete(&**store, &object.key).await }))
            .buffer_unordered(DELETES)
            .try_collect::<()>()
            .await?;
        if !full {
            break;
        }
        after = last;
    }
    Ok(removed)
}

async fn delete(store: &dyn ObjectStore, key: &str) -> anyhow::Result<()> {
    Ok(store.delete(key).await?)
}
