//! POSIX ACLs: their Linux form, setting and getting them, what chmod and inheritance make of them, and the numbers
//! of rules (`spec/metadata.md` 1.14, 7.13). Checking is in `access.rs`.
//!
//! Rules are stored once, never change and are never deleted, so a `RuleBook` per client may remember them for ever.
//! An operation that needs the number of a rule which is not in the book answers `Ruled::Wants`, having changed
//! nothing; the rule is then stored in a transaction of its own and the operation runs again. Road not taken:
//! storing the rule in the batch of the operation. Its number has to come from the engine before the commit anyway,
//! and a chmod that loses a race would leave a number behind with every try; outside, a number is taken once, and
//! two clients that store the same rule at the same time merely have it twice, as the format allows.

use crate::base::acl::{ABSENT, AclRule};
use crate::base::mode::{PERMISSION_BITS, SGID, flag};
use crate::base::{Attr, AttrPatch, Errno, Ino, Kind, Mode, Outcome};
use crate::meta::engine::{Change, Scan};
use crate::meta::record::{Counter, Key, Record};
use crate::meta::txn::{AclRuleOf, AttrOf, Operation, Peek, Seen, Settled, Tx};
use crate::meta::{Caller, Meta, outside};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Which of the two ACLs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    Access,
    /// Directories only: what new children start from.
    Default,
}

impl AclKind {
    pub const ACCESS_NAME: &'static [u8] = b"system.posix_acl_access";
    pub const DEFAULT_NAME: &'static [u8] = b"system.posix_acl_default";

    /// By the name of the extended attribute that stands for it.
    pub fn from_xattr(name: &[u8]) -> Option<AclKind> {
        match name {
            AclKind::ACCESS_NAME => Some(AclKind::Access),
            AclKind::DEFAULT_NAME => Some(AclKind::Default),
            _ => None,
        }
    }
}

const VERSION: u32 = 2;
const ITEM_BYTES: usize = 8;
/// The id of entries that name nobody.
const NO_ID: u32 = u32::MAX;

mod tag {
    pub const OWNER: u16 = 1;
    pub const USER: u16 = 2;
    pub const OWNING_GROUP: u16 = 4;
    pub const GROUP: u16 = 8;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

/// The rule that the value of an ACL attribute says. EINVAL for anything malformed.
pub fn parse(value: &[u8]) -> Result<AclRule, Errno> {
    let (version, items) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
    let (items, rest) = items.as_chunks::<ITEM_BYTES>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut rule = AclRule::empty();
    for item in items {
        let [t0, t1, p0, p1, id @ ..] = *item;
        let (perm, id) = (u16::from_le_bytes([p0, p1]), u32::from_le_bytes(id));
        if perm > 7 {
            return Err(Errno::EINVAL);
        }
        let single = match u16::from_le_bytes([t0, t1]) {
            tag::OWNER => &mut rule.owner,
            tag::OWNING_GROUP => &mut rule.group,
            tag::MASK => &mut rule.mask,
            tag::OTHER => &mut rule.other,
            named @ (tag::USER | tag::GROUP) => {
                if id == NO_ID {
                    return Err(Errno::EINVAL);
                }
                if named == tag::USER { &mut rule.users } else { &mut rule.groups }.push((id, perm));
                continue;
            }
            _ => return Err(Errno::EINVAL),
        };
        if *single != ABSENT {
            return Err(Errno::EINVAL);
        }
        *single = perm;
    }
    if rule.mask == ABSENT && !rule.is_minimal() {
        return Err(Errno::EINVAL);
    }
    Ok(rule)
}

/// The value of an ACL attribute that says `rule`.
pub fn format(rule: &AclRule) -> Bytes {
    let mut out = VERSION.to_le_bytes().to_vec();
    let mut item = |tag: u16, perm: u16, id: u32| {
        if perm != ABSENT {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
    };
    item(tag::OWNER, rule.owner, NO_ID);
    rule.users.iter().for_each(|(uid, perm)| item(tag::USER, *perm, *uid));
    item(tag::OWNING_GROUP, rule.group, NO_ID);
    rule.groups.iter().for_each(|(gid, perm)| item(tag::GROUP, *perm, *gid));
    item(tag::MASK, rule.mask, NO_ID);
    item(tag::OTHER, rule.other, NO_ID);
    out.into()
}

/// The nine permission bits that stand for an access rule: its mask is the group's, where it has one.
fn rule_mode(rule: &AclRule) -> Mode {
    let group = if rule.mask == ABSENT { rule.group } else { rule.mask };
    (rule.owner & 7) << 6 | (group & 7) << 3 | rule.other & 7
}

/// `rule` with what it leaves out taken from the permission bits.
fn filled(mut rule: AclRule, mode: Mode) -> AclRule {
    for (value, shift) in [(&mut rule.owner, 6), (&mut rule.group, 3), (&mut rule.other, 0)] {
        if *value == ABSENT {
            *value = mode >> shift & 7;
        }
    }
    rule
}

/// The rule of a node after chmod: owner and others follow the mode, and so does the mask, or the owning group where
/// there is no mask.
fn after_chmod(rule: &AclRule, mode: Mode) -> AclRule {
    let mut rule = rule.clone();
    (rule.owner, rule.other) = (mode >> 6 & 7, mode & 7);
    *if rule.is_minimal() { &mut rule.group } else { &mut rule.mask } = mode >> 3 & 7;
    rule
}

/// The rules this client has met.
#[derive(Default)]
pub struct RuleBook(RwLock<Pages>);

#[derive(Default)]
struct Pages {
    rules: HashMap<u32, Arc<AclRule>>,
    ids: HashMap<Arc<AclRule>, u32>,
}

/// Volumes have a handful of rules; past this the book is begun anew.
const BOOK_RULES_MAX: usize = 1 << 16;

impl RuleBook {
    fn rule(&self, id: u32) -> Option<Arc<AclRule>> {
        self.0.read().rules.get(&id).cloned()
    }

    fn id(&self, rule: &AclRule) -> Option<u32> {
        self.0.read().ids.get(rule).copied()
    }

    fn learn(&self, id: u32, rule: Arc<AclRule>) {
        let mut pages = self.0.write();
        if pages.rules.len() >= BOOK_RULES_MAX {
            *pages = Pages::default();
        }
        pages.rules.insert(id, rule.clone());
        pages.ids.entry(rule).or_insert(id);
    }

    /// The number of a rule; `Wants` when the book does not know it.
    fn number(&self, rule: AclRule) -> Ruled<u32> {
        match self.id(&rule) {
            Some(id) => Ruled::Done(id),
            None => Ruled::Wants(rule),
        }
    }
}

/// What an operation answers that may need the number of a rule.
#[derive(Debug)]
pub(crate) enum Ruled<T> {
    Done(T),
    /// Nothing was changed; this rule has to be stored first. `Meta::run_ruled` does it and runs the operation again.
    Wants(AclRule),
}

/// The rule with this number: from the book, or by a trip. `None` when the volume lacks it.
async fn rule_of(tx: &mut Tx<'_>, book: &RuleBook, id: u32) -> Outcome<Option<Arc<AclRule>>> {
    if let Some(rule) = book.rule(id) {
        return Ok(Some(rule));
    }
    // Rules never change, so reading one needs no guard.
    Ok(tx.load(Peek(AclRuleOf(id))).await?.map(|rule| {
        let rule = Arc::new(rule);
        book.learn(id, rule.clone());
        rule
    }))
}

/// What a new node gets from its parent's default ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub mode: Mode,
    pub access_acl: u32,
    pub default_acl: u32,
}

/// Mode and ACLs of a new node whose parent has the default ACL `default_acl` (not 0; the caller guards it by having
/// read it). `mode` is what was asked for: with a default ACL the umask does not count. Symlinks inherit nothing.
/// Answers `Wants` before anything is changed, so call it before listing changes.
pub(crate) async fn inherit(
    tx: &mut Tx<'_>,
    book: &RuleBook,
    default_acl: u32,
    mode: Mode,
    kind: Kind,
) -> Outcome<Ruled<Inherited>> {
    let own_default = if kind == Kind::Directory { default_acl } else { 0 };
    let plain = |mode| Inherited { mode, access_acl: 0, default_acl: own_default };
    let parent = match kind {
        Kind::Symlink => None,
        _ => rule_of(tx, book, default_acl).await?,
    };
    let Some(parent) = parent else {
        return Ok(Ruled::Done(Inherited { default_acl: 0, ..plain(mode) }));
    };
    let special = mode & !0o777;
    // What is not present limits nothing: all its bits are set.
    let rule = AclRule {
        owner: mode >> 6 & 7 & parent.owner,
        group: parent.group,
        mask: mode >> 3 & 7 & parent.mask,
        other: mode & 7 & parent.other,
        users: parent.users.clone(),
        groups: parent.groups.clone(),
    };
    if parent.is_minimal() {
        let group = mode >> 3 & 7 & parent.group;
        return Ok(Ruled::Done(plain(special | rule.owner << 6 | group << 3 | rule.other)));
    }
    let mode = special | rule_mode(&rule);
    Ok(match book.number(filled(rule, mode)) {
        Ruled::Done(access_acl) => Ruled::Done(Inherited { access_acl, ..plain(mode) }),
        Ruled::Wants(rule) => Ruled::Wants(rule),
    })
}

/// The access ACL of a node once its permission bits are those of `mode`: another number where the node has an ACL.
pub(crate) async fn chmod(tx: &mut Tx<'_>, book: &RuleBook, node: &Seen, mode: Mode) -> Outcome<Ruled<u32>> {
    let present = node.access_acl();
    if present == 0 {
        return Ok(Ruled::Done(0));
    }
    // Without its rule an ACL says nothing; the mode alone counts then.
    let Some(rule) = rule_of(tx, book, present).await? else { return Ok(Ruled::Done(present)) };
    let changed = after_chmod(&rule, mode);
    Ok(if changed == *rule { Ruled::Done(present) } else { book.number(changed) })
}

struct SetAcl<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    ino: Ino,
    kind: AclKind,
    rule: &'a AclRule,
}

impl Operation for SetAcl<'_> {
    const NAME: &'static str = "set_acl";
    type Output = Ruled<()>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Ruled<()>> {
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        if !self.caller.is_root() && self.caller.uid != node.uid() {
            return Err(Errno::EPERM.into());
        }
        if node.flags() & flag::IMMUTABLE != 0 {
            return Err(Errno::EPERM.into());
        }
        match (self.kind, node.kind()) {
            (_, Kind::Symlink) => return Err(Errno::EOPNOTSUPP.into()),
            (AclKind::Access, _) | (AclKind::Default, Kind::Directory) => {}
            // Nothing is all that other nodes can have, so asking for nothing is no mistake.
            (AclKind::Default, _) if self.rule.is_empty() => return Ok(Ruled::Done(())),
            (AclKind::Default, _) => return Err(Errno::EACCES.into()),
        }
        let present = node.mode();
        let mut mode = present;
        if self.kind == AclKind::Access && !self.caller.is_root() && !self.caller.in_group(node.gid()) {
            mode &= !SGID;
        }
        let mut id = 0;
        if !self.rule.is_empty() {
            let rule = filled(self.rule.clone(), mode);
            if self.kind == AclKind::Access {
                mode = mode & !0o777 | rule_mode(&rule);
            }
            if self.kind == AclKind::Default || !rule.is_minimal() {
                id = match self.meta.rule_book().number(rule) {
                    Ruled::Done(id) => id,
                    Ruled::Wants(rule) => return Ok(Ruled::Wants(rule)),
                };
            }
        }
        let (access, default) = match self.kind {
            AclKind::Access => (id, node.default_acl()),
            AclKind::Default => (node.access_acl(), id),
        };
        let mut patch = AttrPatch::new();
        if (access, default) != (node.access_acl(), node.default_acl()) {
            patch = patch.set_acls(access, default);
        }
        if mode != present {
            patch = patch.set_mode(mode & PERMISSION_BITS);
        }
        if !patch.is_empty() {
            tx.patch(self.ino, patch.set_ctime(tx.now()));
        }
        Ok(Ruled::Done(()))
    }

    /// Setting the same ACL again changes nothing.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Ruled<()>>> {
        tx.load(AttrOf(self.ino)).await?;
        Ok(Settled::NotApplied)
    }
}

/// Stores a rule under a number that was never used.
struct StoreRule<'a> {
    id: u32,
    rule: &'a AclRule,
}

impl Operation for StoreRule<'_> {
    const NAME: &'static str = "store_acl_rule";
    /// False: the number was taken after all.
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        if let Some(taken) = tx.load(AclRuleOf(self.id)).await? {
            return Ok(taken == *self.rule);
        }
        tx.change(Change::Put(Key::AclRule(self.id), Record::AclRule(self.rule.clone())));
        Ok(true)
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        Ok(match tx.load(AclRuleOf(self.id)).await? {
            Some(rule) if rule == *self.rule => Settled::Applied(true),
            _ => Settled::NotApplied,
        })
    }
}

/// Rules per page when the book is brought up to date.
const RULES_PAGE: usize = 1000;

impl Meta {
    /// Runs an operation, storing the rules it finds wanting.
    pub(crate) async fn run_ruled<T, O: Operation<Output = Ruled<T>>>(&self, op: &O) -> Outcome<T> {
        loop {
            match self.run(op).await? {
                Ruled::Done(output) => return Ok(output),
                Ruled::Wants(rule) => drop(self.intern(rule).await?),
            }
        }
    }

    /// The number of a rule: that of an equal rule of the volume, or a new one.
    pub(crate) async fn intern(&self, rule: AclRule) -> Outcome<u32> {
        if let Some(id) = self.rule_book().id(&rule) {
            return Ok(id);
        }
        let mut after = None;
        loop {
            let page = outside(self.engine().scan(&Scan::AclRules, after.as_ref(), RULES_PAGE).await)?;
            for row in page.rows {
                if let (Key::AclRule(id), Record::AclRule(rule)) = row {
                    self.rule_book().learn(id, Arc::new(rule));
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if let Some(id) = self.rule_book().id(&rule) {
            return Ok(id);
        }
        loop {
            let id = outside(self.engine().allocate(Counter::AclMaxId, 1).await)? as u32;
            if self.run(&StoreRule { id, rule: &rule }).await? {
                self.rule_book().learn(id, Arc::new(rule));
                return Ok(id);
            }
        }
    }

    /// The ACL of a node, in the form of its extended attribute; ENODATA when it has none.
    pub async fn get_acl(&self, ino: Ino, kind: AclKind) -> Outcome<Bytes> {
        if !self.rules().acl {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let Attr { access_acl, default_acl, .. } = self.getattr(ino).await?;
        let id = match kind {
            AclKind::Access => access_acl,
            AclKind::Default => default_acl,
        };
        if id == 0 {
            return Err(Errno::ENODATA.into());
        }
        if let Some(rule) = self.rule_book().rule(id) {
            return Ok(format(&rule));
        }
        match self.read(&[Key::AclRule(id)]).await?.pop().flatten() {
            Some(Record::AclRule(rule)) => {
                let value = format(&rule);
                self.rule_book().learn(id, Arc::new(rule));
                Ok(value)
            }
            _ => Err(Errno::ENODATA.into()),
        }
    }

    /// Sets an ACL in the form of its extended attribute; a value without entries removes it.
    pub async fn set_acl(&self, caller: &Caller, ino: Ino, kind: AclKind, value: &[u8]) -> Outcome<()> {
        if !self.rules().acl {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let rule = parse(value)?;
        self.put_acl(caller, ino, kind, &rule).await
    }

    /// Removes an ACL; there need not be one.
    pub async fn remove_acl(&self, caller: &Caller, ino: Ino, kind: AclKind) -> Outcome<()> {
        if !self.rules().acl {
            return Err(Errno::EOPNOTSUPP.into());
        }
        self.put_acl(caller, ino, kind, &AclRule::empty()).await
    }

    async fn put_acl(&self, caller: &Caller, ino: Ino, kind: AclKind, rule: &AclRule) -> Outcome<()> {
        self.writable()?;
        self.run_ruled(&SetAcl { meta: self, caller, ino, kind, rule }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::meta::ops::attr::SetAttr;
    use crate::meta::ops::create::NewNode;
    use crate::meta::ops::xattr::XattrMode;
    use crate::meta::testing::{Store, file, lossy_volume, volume};

    const RULE: AclRule = AclRule { owner: 6, group: 4, mask: 6, other: 0, users: Vec::new(), groups: Vec::new() };

    fn named() -> AclRule {
        AclRule { users: vec![(1000, 7)], groups: vec![(20, 4)], ..RULE }
    }

    #[test]
    fn rules_have_the_linux_form() {
        let golden = [
            2, 0, 0, 0, // version
            1, 0, 6, 0, 255, 255, 255, 255, // owner
            2, 0, 7, 0, 0xe8, 3, 0, 0, // user 1000
            4, 0, 4, 0, 255, 255, 255, 255, // owning group
            8, 0, 4, 0, 20, 0, 0, 0, // group 20
            16, 0, 6, 0, 255, 255, 255, 255, // mask
            32, 0, 0, 0, 255, 255, 255, 255, // other
        ];
        assert_eq!(format(&named()), &golden[..]);
        assert_eq!(parse(&golden), Ok(named()));
        assert_eq!(parse(&[2, 0, 0, 0]), Ok(AclRule::empty()));
        let item = |tag: u8, perm: u8, id: u8| vec![tag, 0, perm, 0, id, 0, 0, 0];
        let value = |items: &[Vec<u8>]| [vec![2, 0, 0, 0], items.concat()].concat();
        for malformed in [
            vec![],
            vec![1, 0, 0, 0],
            vec![2, 0, 0, 0, 1],
            value(&[item(1, 8, 0)]),
            value(&[item(3, 7, 0)]),
            value(&[item(1, 7, 0), item(1, 7, 0)]),
            value(&[item(2, 7, 9)]),
            [value(&[item(16, 7, 0)]), vec![2, 0, 7, 0, 255, 255, 255, 255]].concat(),
        ] {
            assert_eq!(parse(&malformed), Err(Errno::EINVAL), "{malformed:?}");
        }
    }

    #[tokio::test]
    async fn setting_an_acl_sets_the_mode_and_chmod_the_acl() {
        for meta in [volume().await, lossy_volume().await] {
            let (ino, root) = (file(&meta, "f").await, Caller::root());
            let acl = async || meta.get_xattr(&root, ino, AclKind::ACCESS_NAME).await.map_err(|s| s.errno());
            assert_eq!(acl().await, Err(Errno::ENODATA));
            meta.set_xattr(&root, ino, AclKind::ACCESS_NAME, &format(&named()), XattrMode::Set).await.unwrap();
            assert_eq!(meta.getattr(ino).await.unwrap().mode, 0o660, "owner, mask, other");
            assert_eq!(acl().await, Ok(format(&named())));
            assert_eq!(meta.list_xattr(ino).await.unwrap(), [Name::stored(AclKind::ACCESS_NAME)]);

            let chmod = SetAttr { mode: Some(0o4751), ..SetAttr::default() };
            assert_eq!(meta.setattr(&root, ino, &chmod).await.unwrap().mode, 0o4751);
            let changed = AclRule { owner: 7, mask: 5, other: 1, ..named() };
            assert_eq!(acl().await, Ok(format(&changed)), "the mask follows the group bits, the group stays");

            let back = SetAttr { mode: Some(0o660), ..SetAttr::default() };
            let first = meta.setattr(&root, ino, &back).await.unwrap().access_acl;
            assert_eq!(first, 1, "the first rule is used again");

            let minimal = AclRule { mask: ABSENT, ..RULE };
            meta.set_acl(&root, ino, AclKind::Access, &format(&minimal)).await.unwrap();
            let attr = meta.getattr(ino).await.unwrap();
            assert_eq!((attr.mode, attr.access_acl), (0o640, 0), "what the mode can say needs no rule");
            meta.set_acl(&root, ino, AclKind::Access, &format(&named())).await.unwrap();
            meta.remove_xattr(&root, ino, AclKind::ACCESS_NAME).await.unwrap();
            assert_eq!(acl().await, Err(Errno::ENODATA));
            meta.remove_xattr(&root, ino, AclKind::ACCESS_NAME).await.unwrap();
        }
    }

    #[tokio::test]
    async fn acls_are_for_owners_and_defaults_for_directories() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        let value = format(&named());
        let (root, stranger) = (Caller::root(), Caller { uid: 5, gid: 8, ..Caller::root() });
        let set = async |caller: &Caller, kind| meta.set_acl(caller, ino, kind, &value).await.map_err(|s| s.errno());
        assert_eq!(set(&stranger, AclKind::Access).await, Err(Errno::EPERM));
        assert_eq!(set(&root, AclKind::Default).await, Err(Errno::EACCES));
        let sgid = SetAttr { mode: Some(0o2770), ..SetAttr::default() };
        meta.setattr(&Caller::root(), ino, &SetAttr { uid: Some(5), ..SetAttr::default() }).await.unwrap();
        meta.setattr(&Caller::root(), ino, &sgid).await.unwrap();
        assert_eq!(set(&stranger, AclKind::Access).await, Ok(()));
        assert_eq!(meta.getattr(ino).await.unwrap().mode, 0o660, "outside the group sgid is lost");
        meta.set_rules(crate::meta::Rules { acl: false, ..meta.rules() });
        assert_eq!(set(&root, AclKind::Access).await, Err(Errno::EOPNOTSUPP));
    }

    #[tokio::test]
    async fn equal_rules_share_a_number_across_clients() {
        let store = Store::new().await;
        let meta = store.client(Arc::new(crate::util::clock::SystemClock)).await;
        let other = store.client(Arc::new(crate::util::clock::SystemClock)).await;
        let first = meta.intern(named()).await.unwrap();
        assert_eq!(other.intern(named()).await.unwrap(), first);
        assert_ne!(other.intern(RULE).await.unwrap(), first);
    }

    /// Runs `inherit` alone.
    struct Inherit<'a>(&'a Meta, u32, Mode, Kind);

    impl Operation for Inherit<'_> {
        const NAME: &'static str = "inherit";
        type Output = Ruled<Inherited>;

        async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Ruled<Inherited>> {
            inherit(tx, self.0.rule_book(), self.1, self.2, self.3).await
        }
    }

    #[tokio::test]
    async fn children_start_from_the_default_acl() {
        let meta = volume().await;
        let inherited = async |id, mode, kind| meta.run_ruled(&Inherit(&meta, id, mode, kind)).await.unwrap();
        let id = meta.intern(named()).await.unwrap();
        let of_file = inherited(id, 0o4656, Kind::File).await;
        assert_eq!((of_file.mode, of_file.default_acl), (0o4640, 0));
        let rule = meta.rule_book().rule(of_file.access_acl).unwrap();
        assert_eq!(*rule, AclRule { owner: 6, mask: 4, other: 0, ..named() });
        let of_dir = inherited(id, 0o777, Kind::Directory).await;
        assert_eq!((of_dir.mode, of_dir.default_acl), (0o660, id));
        assert_eq!(*meta.rule_book().rule(of_dir.access_acl).unwrap(), named());
        let nothing = Inherited { mode: 0o777, access_acl: 0, default_acl: 0 };
        assert_eq!(inherited(id, 0o777, Kind::Symlink).await, nothing);

        let minimal = meta.intern(AclRule { owner: 7, group: 5, mask: ABSENT, ..RULE }).await.unwrap();
        let of_dir = inherited(minimal, 0o1776, Kind::Directory).await;
        assert_eq!(of_dir, Inherited { mode: 0o1750, access_acl: 0, default_acl: minimal });
    }

    #[tokio::test]
    async fn a_default_acl_leaves_the_mode_alone() {
        let meta = volume().await;
        let node = NewNode { kind: Kind::Directory, mode: 0o750, umask: 0, rdev: 0, target: None };
        let name = Name::entry(b"d").unwrap();
        let dir = meta.create(&Caller::root(), Ino::ROOT, &name, &node).await.unwrap().ino;
        let partial = AclRule { owner: ABSENT, ..named() };
        meta.set_acl(&Caller::root(), dir, AclKind::Default, &format(&partial)).await.unwrap();
        let attr = meta.getattr(dir).await.unwrap();
        assert_eq!((attr.mode, attr.access_acl), (0o750, 0));
        let rule = parse(&meta.get_acl(dir, AclKind::Default).await.unwrap()).unwrap();
        assert_eq!(rule, AclRule { owner: 7, ..named() }, "what is left out comes from the mode");
    }
}
