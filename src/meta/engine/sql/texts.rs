//! The statements, written once for all dialects: `@node` stands for the volume's table of that name, `?` for the
//! next parameter, and backticks for the quotes that reserved words need. They are built once per engine, so that
//! their text can be the key of a statement cache.

use super::dialect::{Dialect, OnConflict};

/// The columns of a node beside its number, in the order of `records::NodeColumns`.
const NODE: &str = "type, flags, mode, uid, gid, atime, mtime, ctime, atimensec, mtimensec, ctimensec, nlink, length, \
                    rdev, parent, access_acl_id, default_acl_id, tier_id";
const QUOTA: &str = "max_space, max_inodes, used_space, used_inodes";

struct Writer<'a> {
    dialect: &'a Dialect,
    prefix: &'a str,
}

impl Writer<'_> {
    fn table(&self, name: &str) -> String {
        self.dialect.quoted(&format!("{}{name}", self.prefix))
    }

    fn text(&self, template: &str) -> String {
        let mut out = String::with_capacity(template.len() + 32);
        let mut parameters = 0;
        let mut rest = template.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '?' => {
                    parameters += 1;
                    out += &(self.dialect.parameter)(parameters);
                }
                '`' => out.push(self.dialect.quote),
                '@' => {
                    let mut name = String::new();
                    while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                        name.push(c);
                    }
                    out += &self.table(&name);
                }
                other => out.push(other),
            }
        }
        out
    }

    /// An insert whose row may exist. `keys` and then `others` are the columns, in the order of the parameters.
    fn upsert(&self, table: &str, keys: &[&str], others: &[&str], action: OnConflict<'_>) -> String {
        let columns: Vec<&str> = keys.iter().chain(others).copied().collect();
        let parameters = vec!["?"; columns.len()].join(", ");
        let tail = (self.dialect.on_conflict)(keys, action);
        self.text(&format!("INSERT INTO @{table} ({}) VALUES ({parameters}) {tail}", columns.join(", ")))
    }

    fn insert(&self, table: &str, columns: &[&str]) -> String {
        let parameters = vec!["?"; columns.len()].join(", ");
        self.text(&format!("INSERT INTO @{table} ({}) VALUES ({parameters})", columns.join(", ")))
    }

    fn replace(&self, table: &str, keys: &[&str], others: &[&str]) -> String {
        self.upsert(table, keys, others, OnConflict::Replace(others))
    }
}

macro_rules! texts {
    (
        plain { $($plain:ident: $template:expr;)* }
        built { $($built:ident: $build:expr;)* }
    ) => {
        /// One field per statement.
        pub struct Texts {
            $(pub $plain: String,)*
            $(pub $built: String,)*
        }

        impl Texts {
            /// `prefix` as `schema::prefix` makes it.
            pub fn new(dialect: &Dialect, prefix: &str) -> Texts {
                let writer = Writer { dialect, prefix };
                Texts {
                    $($plain: writer.text(&$template.replace("{NODE}", NODE).replace("{QUOTA}", QUOTA)),)*
                    $($built: { let build: fn(&Writer<'_>) -> String = $build; build(&writer) },)*
                }
            }
        }
    };
}

texts! {
    plain {
        setting: "SELECT value FROM @setting WHERE name = 'format'";
        delete_setting: "DELETE FROM @setting WHERE name = 'format'";
        counter: "SELECT value FROM @counter WHERE name = ?";
        add_counter: "UPDATE @counter SET value = value + ? WHERE name = ? RETURNING value";
        delete_counter: "DELETE FROM @counter WHERE name = ?";

        node: "SELECT {NODE} FROM @node WHERE inode = ?";
        update_node: "UPDATE @node SET type = ?, flags = ?, mode = ?, uid = ?, gid = ?, atime = ?, mtime = ?, ctime = ?, \
                      atimensec = ?, mtimensec = ?, ctimensec = ?, nlink = ?, length = ?, rdev = ?, parent = ?, \
                      access_acl_id = ?, default_acl_id = ?, tier_id = ? WHERE inode = ?";
        delete_node: "DELETE FROM @node WHERE inode = ?";
        nodes: "SELECT {NODE}, inode FROM @node WHERE inode > ? ORDER BY inode LIMIT ?";
        // For the servers: a list in brackets follows; the same below.
        nodes_among: "SELECT {NODE}, inode FROM @node WHERE inode IN";
        // The directory, the entry and its node, each if it is there.
        look_up: "SELECT p.type, p.flags, p.mode, p.uid, p.gid, p.atime, p.mtime, p.ctime, p.atimensec, p.mtimensec, \
                  p.ctimensec, p.nlink, p.length, p.rdev, p.parent, p.access_acl_id, p.default_acl_id, p.tier_id, \
                  e.inode, e.type, n.type, n.flags, n.mode, n.uid, n.gid, n.atime, n.mtime, n.ctime, n.atimensec, \
                  n.mtimensec, n.ctimensec, n.nlink, n.length, n.rdev, n.parent, n.access_acl_id, n.default_acl_id, \
                  n.tier_id FROM (SELECT 1 AS one) AS x LEFT JOIN @node p ON p.inode = ? LEFT JOIN @edge e \
                  ON e.parent = ? AND e.name = ? LEFT JOIN @node n ON n.inode = e.inode";

        edge: "SELECT inode, type FROM @edge WHERE parent = ? AND name = ?";
        edges_among: "SELECT name, inode, type FROM @edge WHERE parent = ? AND name IN";
        any_edge: "SELECT inode, type FROM @edge WHERE parent = ? LIMIT 1";
        link_parents: "SELECT parent, COUNT(*) FROM @edge WHERE inode = ? GROUP BY parent ORDER BY parent";
        delete_edge: "DELETE FROM @edge WHERE parent = ? AND name = ?";
        edges_of: "SELECT name, inode, type FROM @edge WHERE parent = ? AND name > ? ORDER BY name LIMIT ?";
        edges_of_plus: "SELECT n.type, n.flags, n.mode, n.uid, n.gid, n.atime, n.mtime, n.ctime, n.atimensec, \
                        n.mtimensec, n.ctimensec, n.nlink, n.length, n.rdev, n.parent, n.access_acl_id, \
                        n.default_acl_id, n.tier_id, e.name, e.inode, e.type FROM @edge e LEFT JOIN @node n \
                        ON n.inode = e.inode WHERE e.parent = ? AND e.name > ? ORDER BY e.name LIMIT ?";
        edges: "SELECT id, parent, name, inode, type FROM @edge WHERE id > ? ORDER BY id LIMIT ?";

        symlink: "SELECT target FROM @symlink WHERE inode = ?";
        delete_symlink: "DELETE FROM @symlink WHERE inode = ?";

        chunk: "SELECT slices FROM @chunk WHERE inode = ? AND indx = ?";
        chunks_among: "SELECT indx, slices FROM @chunk WHERE inode = ? AND indx IN";
        update_chunk: "UPDATE @chunk SET slices = ? WHERE inode = ? AND indx = ?";
        delete_chunk: "DELETE FROM @chunk WHERE inode = ? AND indx = ?";
        chunks: "SELECT id, inode, indx, slices FROM @chunk WHERE id > ? ORDER BY id LIMIT ?";
        chunks_of: "SELECT indx, slices FROM @chunk WHERE inode = ? AND indx > ? ORDER BY indx LIMIT ?";

        slice_ref: "SELECT refs FROM @chunk_ref WHERE chunkid = ?";
        add_slice_ref: "UPDATE @chunk_ref SET refs = refs + ? WHERE chunkid = ? RETURNING refs";
        delete_slice_ref: "DELETE FROM @chunk_ref WHERE chunkid = ?";
        slice_refs: "SELECT chunkid, size, refs FROM @chunk_ref WHERE chunkid > ? ORDER BY chunkid LIMIT ?";

        xattr: "SELECT value FROM @xattr WHERE inode = ? AND name = ?";
        xattrs: "SELECT name, value FROM @xattr WHERE inode = ? ORDER BY name";
        delete_xattr: "DELETE FROM @xattr WHERE inode = ? AND name = ?";
        delete_xattrs: "DELETE FROM @xattr WHERE inode = ?";
        xattr_owners: "SELECT DISTINCT inode FROM @xattr WHERE inode > ? ORDER BY inode LIMIT ?";

        acl: "SELECT owner, `group`, mask, other, named_users, named_groups FROM @acl WHERE id = ?";
        delete_acl: "DELETE FROM @acl WHERE id = ?";
        acls: "SELECT owner, `group`, mask, other, named_users, named_groups, id FROM @acl WHERE id > ? ORDER BY id LIMIT ?";

        dir_stat: "SELECT data_length, used_space, used_inodes FROM @dir_stats WHERE inode = ?";
        add_dir_stat: "UPDATE @dir_stats SET data_length = data_length + ?, used_space = used_space + ?, \
                       used_inodes = used_inodes + ? WHERE inode = ?";
        delete_dir_stat: "DELETE FROM @dir_stats WHERE inode = ?";
        dir_stats: "SELECT inode, data_length, used_space, used_inodes FROM @dir_stats WHERE inode > ? ORDER BY inode LIMIT ?";

        dir_quota: "SELECT {QUOTA} FROM @dir_quota WHERE inode = ?";
        add_dir_quota: "UPDATE @dir_quota SET used_space = used_space + ?, used_inodes = used_inodes + ? WHERE inode = ?";
        delete_dir_quota: "DELETE FROM @dir_quota WHERE inode = ?";
        dir_quotas: "SELECT {QUOTA}, inode FROM @dir_quota WHERE inode > ? ORDER BY inode LIMIT ?";
        owner_quota: "SELECT {QUOTA} FROM @user_group_quota WHERE qtype = ? AND qkey = ?";
        add_owner_quota: "UPDATE @user_group_quota SET used_space = used_space + ?, used_inodes = used_inodes + ? \
                          WHERE qtype = ? AND qkey = ?";
        delete_owner_quota: "DELETE FROM @user_group_quota WHERE qtype = ? AND qkey = ?";
        owner_quotas: "SELECT {QUOTA}, qkey FROM @user_group_quota WHERE qtype = ? AND qkey > ? ORDER BY qkey LIMIT ?";

        session: "SELECT expire, info FROM @session2 WHERE sid = ?";
        delete_session: "DELETE FROM @session2 WHERE sid = ?";
        sessions: "SELECT sid, expire, info FROM @session2 WHERE sid > ? ORDER BY sid LIMIT ?";
        sustained: "SELECT 1 FROM @sustained WHERE sid = ? AND inode = ?";
        delete_sustained: "DELETE FROM @sustained WHERE sid = ? AND inode = ?";
        sustained_of: "SELECT inode FROM @sustained WHERE sid = ? AND inode > ? ORDER BY inode LIMIT ?";

        deleted_file: "SELECT expire FROM @delfile WHERE inode = ? AND length = ?";
        delete_deleted_file: "DELETE FROM @delfile WHERE inode = ? AND length = ?";
        deleted_files: "SELECT inode, length, expire FROM @delfile WHERE inode > ? ORDER BY inode LIMIT ?";

        delayed: "SELECT slices FROM @delslices WHERE chunkid = ? AND deleted = ?";
        delete_delayed: "DELETE FROM @delslices WHERE chunkid = ? AND deleted = ?";
        all_delayed: "SELECT chunkid, deleted, slices FROM @delslices WHERE chunkid > ? ORDER BY chunkid LIMIT ?";

        flocks: "SELECT sid, owner, ltype FROM @flock WHERE inode = ? ORDER BY sid";
        delete_flock: "DELETE FROM @flock WHERE inode = ? AND sid = ? AND owner = ?";
        delete_flocks: "DELETE FROM @flock WHERE inode = ?";
        flocked_by: "SELECT DISTINCT inode FROM @flock WHERE sid = ? AND inode > ? ORDER BY inode LIMIT ?";
        flocked: "SELECT DISTINCT inode FROM @flock WHERE inode > ? ORDER BY inode LIMIT ?";
        plocks: "SELECT sid, owner, records FROM @plock WHERE inode = ? ORDER BY sid";
        delete_plock: "DELETE FROM @plock WHERE inode = ? AND sid = ? AND owner = ?";
        delete_plocks: "DELETE FROM @plock WHERE inode = ?";
        plocked_by: "SELECT DISTINCT inode FROM @plock WHERE sid = ? AND inode > ? ORDER BY inode LIMIT ?";
        plocked: "SELECT DISTINCT inode FROM @plock WHERE inode > ? ORDER BY inode LIMIT ?";
    }
    built {
        put_setting: |w| w.replace("setting", &["name"], &["value"]);
        put_counter: |w| w.replace("counter", &["name"], &["value"]);
        // As `put_counter`, but what is there stays.
        first_counter: |w| w.upsert("counter", &["name"], &["value"], OnConflict::Keep);
        put_node: |w| {
            let columns: Vec<&str> = NODE.split(", ").collect();
            w.replace("node", &["inode"], &columns)
        };
        // As `put_edge`, of one that must not be there; the same below.
        insert_edge: |w| w.insert("edge", &["parent", "name", "inode", "type"]);
        insert_xattr: |w| w.insert("xattr", &["inode", "name", "value"]);
        put_edge: |w| w.replace("edge", &["parent", "name"], &["inode", "type"]);
        put_symlink: |w| w.replace("symlink", &["inode"], &["target"]);
        put_chunk: |w| w.replace("chunk", &["inode", "indx"], &["slices"]);
        // Answers the bytes of the list afterwards; no row when there is no list.
        append_chunk: |w| {
            let appended = (w.dialect.appended)("slices");
            w.text(&format!("UPDATE @chunk SET slices = {appended} WHERE inode = ? AND indx = ? RETURNING LENGTH(slices)"))
        };
        put_slice_ref: |w| w.replace("chunk_ref", &["chunkid"], &["size", "refs"]);
        put_xattr: |w| w.replace("xattr", &["inode", "name"], &["value"]);
        put_acl: |w| w.replace("acl", &["id"], &["owner", "`group`", "mask", "other", "named_users", "named_groups"]);
        put_dir_stat: |w| w.replace("dir_stats", &["inode"], &["data_length", "used_space", "used_inodes"]);
        put_dir_quota: |w| w.replace("dir_quota", &["inode"], &QUOTA.split(", ").collect::<Vec<_>>());
        put_owner_quota: |w| w.replace("user_group_quota", &["qtype", "qkey"], &QUOTA.split(", ").collect::<Vec<_>>());
        put_session: |w| w.replace("session2", &["sid"], &["expire", "info"]);
        put_sustained: |w| w.upsert("sustained", &["sid", "inode"], &[], OnConflict::Keep);
        put_deleted_file: |w| w.replace("delfile", &["inode"], &["length", "expire"]);
        put_delayed: |w| w.replace("delslices", &["chunkid"], &["deleted", "slices"]);
        put_flock: |w| w.replace("flock", &["inode", "sid", "owner"], &["ltype"]);
        put_plock: |w| w.replace("plock", &["inode", "sid", "owner"], &["records"]);
    }
}
