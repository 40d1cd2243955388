//! Who may do what: permission bits, ACL rules, sticky directories (`spec/metadata.md` 7.1, 7.13).

use crate::base::acl::AclRule;
use crate::base::mode::STICKY;
use crate::base::{Errno, Ino, Outcome};
use crate::meta::txn::{AclRuleOf, AttrOf, Peek, Seen, Tx};
use crate::meta::{Caller, Meta};

/// Three permission bits of a class.
type Bits = u8;

/// EACCES unless `caller` has all of `want` (READ, WRITE, EXECUTE) on the node. Guards what it looked at. Costs a
/// trip only for callers that are checked here, on a node with an ACL.
pub(crate) async fn permit(tx: &mut Tx<'_>, node: &Seen, caller: &Caller, want: Bits) -> Outcome<()> {
    if caller.is_root() || !caller.check {
        return Ok(());
    }
    let granted = match node.access_acl() {
        id if id != 0 && node.mode() & 0o070 != 0 => {
            match tx.load(Peek(AclRuleOf(id))).await? {
                // Rules are never deleted or changed, so reading one needs no guard.
                Some(rule) => rule_grants(&rule, node.uid(), node.gid(), caller, want),
                None => mode_bits(node, caller) & want == want,
            }
        }
        _ => mode_bits(node, caller) & want == want,
    };
    if granted { Ok(()) } else { Err(Errno::EACCES.into()) }
}

fn mode_bits(node: &Seen, caller: &Caller) -> Bits {
    let mode = node.mode();
    let shift = if caller.uid == node.uid() {
        6
    } else if caller.in_group(node.gid()) {
        3
    } else {
        0
    };
    (mode >> shift & 7) as Bits
}

/// The first class that matches decides; among groups, one that grants everything is enough.
fn rule_grants(rule: &AclRule, uid: u32, gid: u32, caller: &Caller, want: Bits) -> bool {
    let grants = |perm: u16| perm as Bits & want == want;
    if caller.uid == uid {
        return grants(rule.owner);
    }
    if let Some((_, perm)) = rule.users.iter().find(|(user, _)| *user == caller.uid) {
        return grants(perm & rule.mask);
    }
    let owning = caller.in_group(gid).then_some(rule.group);
    let named = rule.groups.iter().filter(|(group, _)| caller.in_group(*group)).map(|(_, perm)| *perm);
    let mut matched = false;
    for perm in owning.into_iter().chain(named) {
        if grants(perm & rule.mask) {
            return true;
        }
        matched = true;
    }
    !matched && grants(rule.other)
}

/// EACCES when a sticky directory keeps `caller` from removing or renaming `node` in it.
pub(crate) fn sticky_permits(dir: &Seen, node: &Seen, caller: &Caller) -> Outcome<()> {
    if !caller.is_root() && dir.mode() & STICKY != 0 && caller.uid != dir.uid() && caller.uid != node.uid() {
        return Err(Errno::EACCES.into());
    }
    Ok(())
}

impl Meta {
    /// access(2): EACCES unless all of `want` is granted. Judged even for callers whose permissions are the
    /// kernel's business otherwise.
    pub async fn access(&self, caller: &Caller, ino: Ino, want: u8) -> Outcome<()> {
        struct Access<'a>(&'a Caller, Ino, u8);
        impl crate::meta::txn::Operation for Access<'_> {
            const NAME: &'static str = "access";
            type Output = ();
            async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
                let node = tx.load(AttrOf(self.1)).await?.exists()?;
                permit(tx, &node, self.0, self.2).await
            }
        }
        let caller = Caller { check: true, ..caller.clone() };
        self.run(&Access(&caller, ino, want)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::mode::{EXECUTE, READ, WRITE};

    #[test]
    fn the_first_matching_class_of_a_rule_decides() {
        let rule =
            AclRule { owner: 6, group: 4, mask: 6, other: 1, users: vec![(10, 7)], groups: vec![(20, 2), (21, 5)] };
        let who = |uid, gid, groups: &[u32]| Caller { uid, gid, groups: groups.into(), pid: 0, check: true };
        let granted = |caller: &Caller, want| rule_grants(&rule, 1, 2, caller, want);
        assert!(granted(&who(1, 9, &[]), READ | WRITE));
        assert!(!granted(&who(1, 9, &[]), EXECUTE), "the owner's entry decides, not other");
        assert!(granted(&who(10, 9, &[]), READ | WRITE));
        assert!(!granted(&who(10, 9, &[]), EXECUTE), "the mask limits a named user");
        assert!(granted(&who(5, 2, &[]), READ));
        assert!(granted(&who(5, 2, &[20]), WRITE), "any matching group may grant");
        assert!(!granted(&who(5, 2, &[20]), READ | WRITE), "but one alone must grant everything");
        assert!(!granted(&who(5, 2, &[]), EXECUTE), "a group that matched shuts out other");
        assert!(granted(&who(5, 9, &[]), EXECUTE));
    }
}
