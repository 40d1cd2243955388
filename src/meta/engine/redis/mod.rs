//! The Redis engine: records in the key layout of `spec/metadata.md` section 2, so that JuiceFS clients can use the
//! same volume at the same time.
//!
//! A load is one pipelined `MULTI … EXEC` (or a single command), a commit one `EVALSHA` of `commit.lua`, which
//! compares the guarded fields and applies the changes, or does nothing. There is no WATCH: guards name what the
//! decision read, so nothing is held between load and commit, and one multiplexed connection serves all callers.
//! Writes by the script break the WATCH of other clients, so their transactions stay correct next to ours.
//!
//! Promised to the seam: an append and an increment never conflict; a batch is applied whole or not at all (the
//! script checks key types, numbers and nodes before it writes, and Redis refuses for lack of memory or of a primary
//! only at the first write); a commit whose reply is lost is `Undetermined`. Left to others: durability is the
//! server's persistence policy, and access rights (ACL rules that forbid single commands or keys of the volume to
//! this user would break atomicity; give the user the whole database).
//!
//! A volume lies in one slot of a cluster (hash tag `{db}`), so a cluster is one connection as well, to the node that
//! serves the slot; `route` finds it, and the master that sentinels know, anew for each connection. Redis replicates after
//! it has answered, so there a commit is acknowledged only when the replicas have it (`replicas`; `?wait-replicas=N`, `all`
//! or 0, an option that the peer refuses; `all` with sentinels and in clusters, 0 for a single server). What is left
//! to `min-replicas-to-write`: a master that only we can still reach. Servers that refuse scripts are served by WATCH and
//! MULTI (`plain`).
//!
//! Needs Redis 6.2 (HRANDFIELD).
//!
//! `codec` names keys and decodes replies, `batch` encodes commits, `conn` keeps the connection that `link` is and whose
//! replies `resp` parses, `scan` pages through what there is, `url` says where the server is.

mod batch;
mod codec;
mod conn;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod link;
mod plain;
mod replicas;
mod resp;
mod route;
#[cfg(test)]
mod scale_tests;
mod scan;
#[cfg(test)]
mod tests;
mod tls;
mod url;

use super::{
    Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan,
};
use crate::base::{Fault, FaultKind, Ino, Name};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use batch::Encoded;
use codec::{Prefix, Replies};
use conn::Connection;
use redis::{Cmd, ErrorKind, Pipeline, Script, ServerErrorKind, Value};
use std::sync::{Arc, LazyLock};

/// Checks, then writes; see the file.
static COMMIT: &str = include_str!("commit.lua");
static COMMIT_SHA: LazyLock<String> = LazyLock::new(|| Script::new(COMMIT).get_hash().to_owned());

/// One trip instead of two: looking up is what a mount asks most.
static LOOKUP: &str = concat!(include_str!("node_of.lua"), include_str!("lookup.lua"));
static LOOKUP_SHA: LazyLock<String> = LazyLock::new(|| Script::new(LOOKUP).get_hash().to_owned());

/// One trip instead of two: most directories are small.
static LIST: &str = concat!(include_str!("node_of.lua"), include_str!("list.lua"));
static LIST_SHA: LazyLock<String> = LazyLock::new(|| Script::new(LIST).get_hash().to_owned());

/// A removal first, of nothing: see step `o` of the commit.
static ALLOCATE: &str = "redis.call('HDEL', KEYS[2], '') return redis.call('INCRBY', KEYS[1], ARGV[1])";

/// What the node of a cluster says to SELECT.
const NO_DATABASES: &str = "SELECT is not allowed in cluster mode";

/// Oldest server that has every command we use.
const VERSION_MIN: (u32, u32) = (6, 2);

/// A volume in one database of a Redis server.
#[derive(Clone)]
pub struct RedisEngine {
    /// Loads and commits.
    main: Arc<Connection>,
    /// Scans: their replies are long, and loads should not stand in line behind them.
    bulk: Arc<Connection>,
}

impl RedisEngine {
    /// Connects to the servers of a meta URL (`redis://`, `rediss://`, `unix://`; without a scheme `redis://`) and
    /// checks that they can serve. Passwords may come from the environment; see `url`.
    pub async fn open(url: &str) -> EngineResult<Arc<RedisEngine>> {
        let mut target = url::Target::parse(url, |name| std::env::var(name).ok())?;
        let mut main = Connection::new(target.clone());
        let mut info = server_info(&main).await;
        let is_node = match &info {
            Ok(info) => field(info, "cluster_enabled") == Some("1"),
            // It has one database, whose number is not 0 in the URL.
            Err(EngineError::Fault(fault)) => fault.to_string().contains(NO_DATABASES),
            Err(_) => false,
        };
        if is_node && !main.is_cluster() {
            // One node of a cluster, and not by force the one with the volume.
            target = target.in_cluster();
            main = Connection::new(target.clone());
            info = server_info(&main).await;
        }
        let info = info?;
        let main = Arc::new(main);
        let engine = RedisEngine { bulk: Arc::new(Connection::behind(&main)), main };
        engine.check_server(&info).await?;
        Ok(Arc::new(engine))
    }

    /// Version of the server, the scripts in its cache, and that it keeps what it is given.
    async fn check_server(&self, info: &str) -> EngineResult<()> {
        if let Some(version) = field(info, "redis_version") {
            let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
            if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < VERSION_MIN {
                let fault = Fault::unsupported("open redis").with("version", version);
                return Err(fault.source("Redis 6.2 or newer is needed").into());
            }
        }
        if let Err(fault) = self.try_scripts().await? {
            tracing::info!("redis takes no scripts, so changes go by WATCH and MULTI, which is slower: {fault}");
            self.main.set_without_scripts();
            self.bulk.set_without_scripts();
        }
        match field(info, "maxmemory_policy") {
            Some("noeviction") | None => Ok(()),
            Some(policy) => self.forbid_eviction(policy).await,
        }
    }

    /// Whether the server runs scripts as ours are, or why not.
    async fn try_scripts(&self) -> EngineResult<Result<(), Fault>> {
        let key = self.main.prefix().key(codec::SETTING);
        let eval = codec::command("EVAL", &[b"return #struct.pack('>I4', 1)", b"1", key.as_bytes()]);
        // Known or not, it must not be refused.
        let unknown = "0".repeat(COMMIT_SHA.len());
        let evalsha = codec::command("EVALSHA", &[unknown.as_bytes(), b"1", key.as_bytes()]);
        for (probe, name) in [(eval, "run a script"), (evalsha, "run a stored script")] {
            match self.main.send(&probe, name).await? {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
                Err(error) if conn::is_passing(&error) => return Err(conn::fault(error, name).into()),
                Err(error) => return Ok(Err(conn::fault(error, name))),
            }
        }
        for script in [COMMIT, LOOKUP] {
            // Where it is forbidden the scripts come with their first use.
            let load = codec::command("SCRIPT", &[b"LOAD", script.as_bytes()]);
            let _loaded = self.main.send(&load, "load a script").await?;
        }
        Ok(Ok(()))
    }

    /// A server that may evict keys would lose metadata; the peer changes the policy as well.
    async fn forbid_eviction(&self, policy: &str) -> EngineResult<()> {
        let set = codec::command("CONFIG", &[b"SET", b"maxmemory-policy", b"noeviction"]);
        match self.main.query(&set).await {
            Ok(_) => tracing::info!("redis: maxmemory-policy was {policy} and is noeviction now"),
            // Managed servers forbid CONFIG.
            Err(EngineError::Fault(fault)) => {
                tracing::warn!("redis may evict keys ({policy}), which loses metadata: set noeviction: {fault}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// One round trip, one snapshot.
    async fn load(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        load_by(&self.main, keys).await
    }

    /// Numbers from a server that may have no memory left, for what removals need: see `batch::is_vital`.
    async fn allocate_on_full(&self, name: &str, count: u64) -> EngineResult<u64> {
        let count_text = codec::text!("{count}");
        let (counter, removed_from) = (self.main.prefix().key(name), self.main.prefix().key(codec::SESSION_INFOS));
        let keys = [counter.as_bytes(), removed_from.as_bytes()];
        let args = [ALLOCATE.as_bytes(), b"2", keys[0], keys[1], count_text.as_bytes()];
        match self.main.query_lasting(&codec::command("EVAL", &args)).await? {
            Value::Int(last) if last > 0 => Ok((last as u64).saturating_sub(count) + 1),
            _ => Err(self.main.odd_reply("allocate ids")),
        }
    }

    async fn commit(&self, batch: &Batch) -> EngineResult<Committed> {
        let encoded = Encoded::new(batch, *self.main.prefix())?;
        let done = match self.main.has_scripts() {
            true => self.commit_by_script(&encoded).await,
            false => plain::commit(&self.main, &encoded).await,
        };
        match &done {
            _ if encoded.vital => {}
            Err(EngineError::Fault(fault)) => self.main.note_room(Some(fault)),
            Err(EngineError::Undetermined(_)) => {}
            Ok(_) | Err(EngineError::Conflict) => self.main.note_room(None),
        }
        report(batch, done?).ok_or_else(|| self.main.odd_reply("commit"))
    }

    /// What the changes report.
    async fn commit_by_script(&self, encoded: &Encoded) -> EngineResult<Vec<Value>> {
        let reply = match self.main.send(&encoded.command("EVALSHA", &COMMIT_SHA), "commit").await? {
            // The server was restarted, or its script cache flushed.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.main.send(&encoded.command("EVAL", COMMIT), "commit").await?
            }
            reply => reply,
        };
        match reply.map_err(|error| conn::fault(error, "commit"))? {
            Value::Int(0) => Err(EngineError::Conflict),
            Value::Array(reports) => Ok(reports),
            _ => Err(self.main.odd_reply("commit")),
        }
    }
}

async fn server_info(connection: &Connection) -> EngineResult<String> {
    match connection.query(&codec::command("INFO", &[])).await? {
        Value::BulkString(info) => Ok(String::from_utf8_lossy(&info).into_owned()),
        _ => Err(connection.odd_reply("read server info")),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Reads records: one command where one is enough, else one transaction, so that the answer is a snapshot.
async fn load_by(connection: &Connection, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
    let mut replies = ask_by(connection, keys).await?;
    keys.iter().map(|key| codec::answer(key, &mut replies)).collect()
}

/// The replies that `codec::answer` makes the records of the keys of.
async fn ask_by(connection: &Connection, keys: &[Key]) -> EngineResult<Replies> {
    if keys.is_empty() {
        return Ok(Replies::new(Vec::new()));
    }
    let values = match mget(connection.prefix(), keys) {
        Some(cmd) => match connection.query(&cmd).await.map_err(|error| naming(error, keys))? {
            Value::Array(values) if values.len() == keys.len() => values,
            value if keys.len() == 1 => vec![value],
            _ => return Err(connection.odd_reply("read")),
        },
        None => {
            let mut pipeline = Pipeline::with_capacity(keys.len() + 4);
            let mut add = |cmd: Cmd| {
                pipeline.add_command(cmd);
            };
            keys.iter().for_each(|key| codec::wish(connection.prefix(), key, &mut add));
            if pipeline.len() > 1 {
                pipeline.atomic();
            }
            connection.query_all(&pipeline, pipeline.len() > 1).await?
        }
    };
    Ok(Replies::new(values))
}

/// What is wrong with one record says which that is.
fn naming(error: EngineError, keys: &[Key]) -> EngineError {
    match (error, keys) {
        (EngineError::Fault(fault), [key]) if fault.kind() == FaultKind::Corrupt => {
            fault.with("key", format_args!("{key:?}")).into()
        }
        (error, _) => error,
    }
}

/// Records that are plain strings take one command together, which is a snapshot without a transaction around it.
fn mget(prefix: &Prefix, keys: &[Key]) -> Option<Cmd> {
    let names: Vec<codec::Text> =
        keys.iter().map(|key| Some(prefix.key(codec::string_name(key)?))).collect::<Option<_>>()?;
    // GET tells a key of another type from a missing one, MGET does not.
    let [name] = &names[..] else {
        let mut cmd = Cmd::with_capacity(names.len() + 1, names.len() * 24);
        cmd.arg("MGET");
        for name in &names {
            cmd.arg(name.as_bytes());
        }
        return Some(cmd);
    };
    Some(codec::command("GET", &[name.as_bytes()]))
}

/// Sorts the numbers of the script by what reported them.
fn report(batch: &Batch, reports: Vec<Value>) -> Option<Committed> {
    let mut reports = reports.into_iter().map(|value| match value {
        Value::Int(n) => Some(n),
        _ => None,
    });
    let mut committed = Committed::default();
    for change in &batch.changes {
        match change {
            Change::Append { .. } => committed.list_lengths.push(usize::try_from(reports.next()??).ok()?),
            Change::AddSliceRef { .. } => committed.references.push(reports.next()??),
            _ => {}
        }
    }
    reports.next().is_none().then_some(committed)
}

#[async_trait]
impl Engine for RedisEngine {
    fn name(&self) -> &'static str {
        "redis"
    }

    /// Keys are found by SCAN over all of them.
    fn lists_chunks_of_file(&self) -> bool {
        false
    }

    /// Redis needs no schema, and counters begin as absent keys.
    async fn prepare(&self) -> EngineResult<()> {
        Ok(())
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.load(keys).await
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        if !self.main.has_scripts() {
            return Ok(None);
        }
        let prefix = self.main.prefix();
        let (attr, dir) = (prefix.key(codec::attr_key(parent)), prefix.key(codec::dir_key(parent)));
        let by = |command, script: &str| {
            codec::command(command, &[script.as_bytes(), b"2", attr.as_bytes(), dir.as_bytes(), name.as_bytes()])
        };
        let known = by("EVALSHA", &LOOKUP_SHA);
        let values = match self.main.query_script(&known, || by("EVAL", LOOKUP)).await? {
            Value::Array(values) => values,
            Value::Nil => return Ok(None),
            _ => return Err(self.main.odd_reply("look up")),
        };
        let mut replies = Replies::new(values);
        let attr_of = |ino, replies: &mut Replies| {
            Ok::<_, EngineError>(match codec::answer(&Key::Attr(ino), replies)? {
                Some(Record::Attr(attr)) => Some(attr),
                _ => None,
            })
        };
        let parent_attr = attr_of(parent, &mut replies)?;
        let dentry = match codec::answer(&Key::Dentry(parent, name.clone()), &mut replies)? {
            Some(Record::Dentry(dentry)) => Some(dentry),
            _ => None,
        };
        let node = attr_of(dentry.map_or(parent, |dentry| dentry.ino), &mut replies)?;
        Ok(Some(Looked { parent: parent_attr, dentry, node }))
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let records = self.load(first).await?;
        Ok((Box::new(RedisTxn(self.clone())), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        scan::page(&self.bulk, scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        scan::plus_page(&self.bulk, dir, after, limit).await
    }

    /// Redis stores the last id handed out. Inode 1 is the root's, so a fresh counter begins there.
    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        let (name, prefix) = (codec::counter_name(counter), self.main.prefix());
        if counter == Counter::NextTrash && self.main.has_scripts() {
            return self.allocate_on_full(name, count).await;
        }
        let mut pipeline = Pipeline::new();
        pipeline.atomic();
        if counter == Counter::NextInode {
            pipeline.add_command(codec::keyed(prefix, "SET", name.as_bytes(), &[b"1", b"NX"]));
        }
        pipeline.add_command(codec::keyed(prefix, "INCRBY", name.as_bytes(), &[codec::text!("{count}").as_bytes()]));
        // Repeating it after a lost reply wastes ids, which the format allows. Ids that a failover forgets would be given out
        // again.
        let allocated = self.main.query_all_lasting(&pipeline).await.inspect_err(|error| {
            if let EngineError::Fault(fault) = error {
                self.main.note_room(Some(fault));
            }
        });
        let last = match allocated?.pop() {
            Some(Value::Int(last)) if last > 0 => last as u64,
            Some(Value::ServerError(error)) => {
                return Err(conn::server_fault(&error, "allocate ids").with("key", name).into());
            }
            _ => return Err(self.main.odd_reply("allocate ids")),
        };
        let first = last.saturating_sub(count) + 1;
        if counter == Counter::NextInode && first < 2 {
            // The counter was there and zero: leave the range that includes the root.
            return Box::pin(self.allocate(counter, count)).await;
        }
        Ok(first)
    }

    /// Nothing to do: what a reply has acknowledged is as durable as the server's append-only file makes it, and no
    /// command of a client changes that. (WAIT would count replicas, which is another question.)
    async fn sync(&self) -> EngineResult<()> {
        Ok(())
    }

    async fn erase(&self) -> EngineResult<()> {
        scan::erase(&self.bulk).await
    }
}

/// A handle: the guards of the commit carry all that a transaction knows.
struct RedisTxn(RedisEngine);

#[async_trait]
impl EngineTxn for RedisTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.0.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        self.0.commit(&batch).await
    }
}
