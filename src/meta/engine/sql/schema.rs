//! The tables of a volume: names, columns and indexes as JuiceFS makes them. Every name counts, for JuiceFS completes
//! the schema by name at each start and would add what it does not find (`spec/metadata.md` 3.1, 3.3).

use super::dialect::Dialect;

/// What a column holds; each dialect has its own name for it (`spec/metadata.md` 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Int,
    Big,
    /// 64 bits, numbered by the database; always the primary key.
    Serial,
    /// As `Serial`, with 32 bits.
    IntSerial,
    /// Text of up to 255 characters.
    Name,
    Text,
    /// Up to so many bytes.
    Binary(u32),
    Blob,
}

pub struct Column {
    pub name: &'static str,
    pub of: Type,
    pub primary: bool,
    pub nullable: bool,
    pub default: Option<&'static str>,
}

pub struct Index {
    /// The last part of the index's name.
    pub group: &'static str,
    pub unique: bool,
    pub columns: &'static [&'static str],
}

pub struct Table {
    /// Without the prefix.
    pub name: &'static str,
    pub columns: &'static [Column],
    /// The primary key, where it is more than one column.
    pub primary: &'static [&'static str],
    pub indexes: &'static [Index],
}

const fn column(name: &'static str, of: Type) -> Column {
    Column { name, of, primary: false, nullable: false, default: None }
}

const fn key(name: &'static str, of: Type) -> Column {
    Column { primary: true, ..column(name, of) }
}

const fn nullable(name: &'static str, of: Type) -> Column {
    Column { nullable: true, ..column(name, of) }
}

const fn zero(name: &'static str, of: Type) -> Column {
    Column { default: Some("0"), ..column(name, of) }
}

const fn unique(group: &'static str, columns: &'static [&'static str]) -> Index {
    Index { group, unique: true, columns }
}

const fn index(group: &'static str, columns: &'static [&'static str]) -> Index {
    Index { group, unique: false, columns }
}

const fn table(name: &'static str, columns: &'static [Column], indexes: &'static [Index]) -> Table {
    Table { name, columns, primary: &[], indexes }
}

use Type::{Big, Binary, Blob, Int, IntSerial, Name, Serial, Text};

/// All tables, in the order in which JuiceFS makes them.
pub const TABLES: &[Table] = &[
    table("setting", &[key("name", Name), column("value", Text)], &[]),
    table("counter", &[key("name", Name), column("value", Big)], &[]),
    table(
        "edge",
        &[
            key("id", Serial),
            column("parent", Big),
            column("name", Binary(255)),
            column("inode", Big),
            column("type", Int),
        ],
        &[unique("edge", &["parent", "name"]), index("inode", &["inode"])],
    ),
    table(
        "node",
        &[
            key("inode", Big),
            column("type", Int),
            column("flags", Int),
            column("mode", Int),
            column("uid", Int),
            column("gid", Int),
            column("atime", Big),
            column("mtime", Big),
            column("ctime", Big),
            zero("atimensec", Int),
            zero("mtimensec", Int),
            zero("ctimensec", Int),
            column("nlink", Int),
            column("length", Big),
            nullable("rdev", Int),
            nullable("parent", Big),
            nullable("access_acl_id", Int),
            nullable("default_acl_id", Int),
            nullable("tier_id", Int),
        ],
        &[],
    ),
    table("symlink", &[key("inode", Big), column("target", Binary(4096))], &[]),
    table(
        "xattr",
        &[key("id", Serial), column("inode", Big), column("name", Name), column("value", Blob)],
        &[unique("name", &["inode", "name"])],
    ),
    table(
        "chunk",
        &[key("id", Serial), column("inode", Big), column("indx", Int), column("slices", Blob)],
        &[unique("chunk", &["inode", "indx"])],
    ),
    table("chunk_ref", &[key("chunkid", Big), column("size", Int), column("refs", Int)], &[index("refs", &["refs"])]),
    table("delslices", &[key("chunkid", Big), column("deleted", Big), column("slices", Blob)], &[]),
    table("session2", &[key("sid", Big), column("expire", Big), nullable("info", Blob)], &[]),
    table(
        "sustained",
        &[key("id", Serial), column("sid", Big), column("inode", Big)],
        &[unique("sustained", &["sid", "inode"])],
    ),
    table("delfile", &[key("inode", Big), column("length", Big), column("expire", Big)], &[]),
    table(
        "flock",
        &[key("id", Serial), column("inode", Big), column("sid", Big), column("owner", Big), column("ltype", Int)],
        &[unique("flock", &["inode", "sid", "owner"])],
    ),
    table(
        "plock",
        &[key("id", Serial), column("inode", Big), column("sid", Big), column("owner", Big), column("records", Blob)],
        &[unique("plock", &["inode", "sid", "owner"])],
    ),
    table(
        "dir_quota",
        &[
            key("inode", Big),
            column("max_space", Big),
            column("max_inodes", Big),
            column("used_space", Big),
            column("used_inodes", Big),
        ],
        &[],
    ),
    Table {
        name: "user_group_quota",
        columns: &[
            column("qtype", Int),
            column("qkey", Big),
            column("max_space", Big),
            column("max_inodes", Big),
            column("used_space", Big),
            column("used_inodes", Big),
        ],
        primary: &["qtype", "qkey"],
        indexes: &[],
    },
    table(
        "dir_stats",
        &[key("inode", Big), column("data_length", Big), column("used_space", Big), column("used_inodes", Big)],
        &[],
    ),
    table("detached_node", &[key("inode", Big), column("added", Big)], &[]),
    table(
        "acl",
        &[
            key("id", IntSerial),
            nullable("owner", Int),
            nullable("group", Int),
            nullable("mask", Int),
            nullable("other", Int),
            nullable("named_users", Blob),
            nullable("named_groups", Blob),
        ],
        &[],
    ),
    table("delegation_token", &[key("id", IntSerial), nullable("token", Blob)], &[]),
    table("change_log", &[key("id", Serial), column("entry", Text)], &[]),
];

/// A table of clients before 1.0; not made any more, but part of a volume that has it.
pub const LEGACY_SESSIONS: &str = "session";

/// Rows of the counter table at birth (`spec/metadata.md` 3.4).
pub const FIRST_COUNTERS: &[(&str, i64)] = &[
    ("nextInode", 2),
    ("nextChunk", 1),
    ("nextSession", 0),
    ("usedSpace", 0),
    ("totalInodes", 0),
    ("nextCleanupSlices", 0),
];

/// What all table names of a volume begin with: `jfs_`, or `jfs_abc_` under the URL parameter `table_prefix=abc`.
pub fn prefix(table_prefix: Option<&str>) -> String {
    match table_prefix {
        None | Some("") => "jfs_".to_owned(),
        Some(own) => format!("jfs_{own}_"),
    }
}

impl Dialect {
    pub fn quoted(&self, name: &str) -> String {
        format!("{q}{name}{q}", q = self.quote)
    }
}

impl Table {
    /// The statement that makes the table.
    pub fn create(&self, dialect: &Dialect, prefix: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|c| c.definition(dialect)).collect();
        let mut primary: Vec<String> = self.primary.iter().map(|c| dialect.quoted(c)).collect();
        if !primary.is_empty() {
            primary = vec![format!(", PRIMARY KEY ( {} )", primary.join(","))];
        }
        let name = dialect.quoted(&format!("{prefix}{}", self.name));
        format!("CREATE TABLE {name} ({}{})", columns.join(", "), primary.concat())
    }
}

impl Column {
    /// As it stands in `CREATE TABLE`, and in `ALTER TABLE … ADD COLUMN` for volumes of older clients.
    pub fn definition(&self, dialect: &Dialect) -> String {
        let mut out = format!("{} {}", dialect.quoted(self.name), (dialect.column_type)(self.of));
        if matches!(self.of, Serial | IntSerial) {
            out += " ";
            out += dialect.serial;
        } else if self.primary {
            out += " PRIMARY KEY";
        }
        if let Some(default) = self.default {
            out += " DEFAULT ";
            out += default;
        }
        out + if self.nullable { " NULL" } else { " NOT NULL" }
    }
}

impl Index {
    pub fn name(&self, prefix: &str, table: &str) -> String {
        format!("{}_{prefix}{table}_{}", if self.unique { "UQE" } else { "IDX" }, self.group)
    }

    /// The statement that makes the index.
    pub fn create(&self, dialect: &Dialect, prefix: &str, table: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|c| dialect.quoted(c)).collect();
        format!(
            "CREATE {}INDEX {} ON {} ({})",
            if self.unique { "UNIQUE " } else { "" },
            dialect.quoted(&self.name(prefix, table)),
            dialect.quoted(&format!("{prefix}{table}")),
            columns.join(",")
        )
    }
}
