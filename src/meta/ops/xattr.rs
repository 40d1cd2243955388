//! Extended attributes (`spec/metadata.md` 7.17). The two names of POSIX ACLs are not stored here but lead to
//! `acl.rs`. Setting and removing change no attribute of the node; not even ctime.

use super::acl::AclKind;
use crate::base::{Errno, Ino, Name, Outcome};
use crate::meta::engine::Change;
use crate::meta::record::{Key, Record};
use crate::meta::txn::{AttrOf, Operation, Settled, Tx, XattrOf};
use crate::meta::{Caller, Meta};
use bytes::Bytes;

/// The longest value, in bytes.
pub const XATTR_BYTES_MAX: usize = 65536;

/// Whether the attribute may or must be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Set,
    /// EEXIST when it is there.
    Create,
    /// ENODATA when it is not.
    Replace,
}

struct SetXattr<'a> {
    ino: Ino,
    name: &'a Name,
    value: &'a Bytes,
    how: XattrMode,
    /// The engine can store it.
    storable: bool,
}

impl Operation for SetXattr<'_> {
    const NAME: &'static str = "set_xattr";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let (node, present) = tx.load((AttrOf(self.ino), XattrOf(self.ino, self.name))).await?;
        // Guarded by its kind: an attribute of a node that is gone would stay for ever.
        node.exists()?.kind();
        match (self.how, &present) {
            (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST.into()),
            (XattrMode::Replace, None) => return Err(Errno::ENODATA.into()),
            (_, Some(present)) if present == self.value => return Ok(()),
            _ if !self.storable => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        tx.change(Change::Put(Key::Xattr(self.ino, self.name.clone()), Record::Bytes(self.value.clone())));
        Ok(())
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(match (tx.load(XattrOf(self.ino, self.name)).await?, self.how) {
            (Some(value), _) if value == *self.value => Settled::Applied(()),
            // Somebody else's creation, or a change of ours.
            (Some(_), XattrMode::Create) => Settled::Unknown,
            _ => Settled::NotApplied,
        })
    }
}

struct RemoveXattr<'a> {
    ino: Ino,
    name: &'a Name,
}

impl Operation for RemoveXattr<'_> {
    const NAME: &'static str = "remove_xattr";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        tx.load(XattrOf(self.ino, self.name)).await?.ok_or(Errno::ENODATA)?;
        tx.change(Change::Delete(Key::Xattr(self.ino, self.name.clone())));
        Ok(())
    }

    /// It was there before the commit, so its absence is ours, or as good as ours.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(match tx.load(XattrOf(self.ino, self.name)).await? {
            None => Settled::Applied(()),
            Some(_) => Settled::NotApplied,
        })
    }
}

impl Meta {
    /// The value of an extended attribute; ENODATA when there is none.
    pub async fn get_xattr(&self, _caller: &Caller, ino: Ino, name: &[u8]) -> Outcome<Bytes> {
        if let Some(kind) = AclKind::from_xattr(name) {
            return self.get_acl(ino, kind).await;
        }
        let name = Name::xattr(name)?;
        match self.read(&[Key::Xattr(ino, name)]).await?.pop().flatten() {
            Some(Record::Bytes(value)) => Ok(value),
            _ => Err(Errno::ENODATA.into()),
        }
    }

    /// Sets an extended attribute. ERANGE for a name or a value that is too long, EINVAL for an empty value where the
    /// engine cannot store one.
    pub async fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrMode) -> Outcome<()> {
        if let Some(kind) = AclKind::from_xattr(name) {
            return self.set_acl(caller, ino, kind, value).await;
        }
        let name = Name::xattr(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::ERANGE.into());
        }
        self.writable()?;
        let storable = !value.is_empty() || self.engine().stores_empty_values();
        self.run(&SetXattr { ino, name: &name, value: &Bytes::copy_from_slice(value), how, storable }).await
    }

    /// The names of a node's extended attributes, those of its ACLs last.
    pub async fn list_xattr(&self, ino: Ino) -> Outcome<Vec<Name>> {
        let mut records = self.read(&[Key::Xattrs(ino), Key::Attr(ino)]).await?.into_iter();
        let mut names = match records.next().flatten() {
            Some(Record::Xattrs(xattrs)) => xattrs.into_iter().map(|(name, _)| name).collect(),
            _ => Vec::new(),
        };
        let Some(Record::Attr(attr)) = records.next().flatten() else { return Err(Errno::ENOENT.into()) };
        if self.rules().acl {
            if attr.access_acl != 0 {
                names.push(Name::stored(AclKind::ACCESS_NAME));
            }
            if attr.default_acl != 0 {
                names.push(Name::stored(AclKind::DEFAULT_NAME));
            }
        }
        Ok(names)
    }

    /// Removes an extended attribute; ENODATA when there is none.
    pub async fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Outcome<()> {
        if let Some(kind) = AclKind::from_xattr(name) {
            return self.remove_acl(caller, ino, kind).await;
        }
        let name = Name::xattr(name)?;
        self.writable()?;
        self.run(&RemoveXattr { ino, name: &name }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::testing::volume;

    #[tokio::test]
    async fn attributes_are_set_created_replaced_and_removed() {
        let (meta, root) = (volume().await, Caller::root());
        let set = async |value: &[u8], how| {
            meta.set_xattr(&root, Ino::ROOT, b"user.a", value, how).await.map_err(|e| e.errno())
        };
        let before = meta.getattr(Ino::ROOT).await.unwrap();
        assert_eq!(set(b"1", XattrMode::Replace).await, Err(Errno::ENODATA));
        assert_eq!(set(b"1", XattrMode::Create).await, Ok(()));
        assert_eq!(set(b"2", XattrMode::Create).await, Err(Errno::EEXIST));
        assert_eq!(set(b"2", XattrMode::Replace).await, Ok(()));
        assert_eq!(set(&[0; XATTR_BYTES_MAX + 1], XattrMode::Set).await, Err(Errno::ERANGE));
        assert_eq!(meta.get_xattr(&root, Ino::ROOT, b"user.a").await.unwrap(), &b"2"[..]);
        assert_eq!(meta.list_xattr(Ino::ROOT).await.unwrap(), [Name::stored(*b"user.a")]);
        assert_eq!(meta.getattr(Ino::ROOT).await.unwrap(), before, "attributes stay, ctime included");
        meta.remove_xattr(&root, Ino::ROOT, b"user.a").await.unwrap();
        assert_eq!(meta.remove_xattr(&root, Ino::ROOT, b"user.a").await.unwrap_err().errno(), Errno::ENODATA);
        assert_eq!(meta.get_xattr(&root, Ino::ROOT, b"user.a").await.unwrap_err().errno(), Errno::ENODATA);
        assert_eq!(meta.get_xattr(&root, Ino::ROOT, &[b'n'; 256]).await.unwrap_err().errno(), Errno::ERANGE);
        let gone = meta.set_xattr(&root, Ino(99), b"user.a", b"", XattrMode::Set).await;
        assert_eq!(gone.unwrap_err().errno(), Errno::ENOENT);
    }
}
