//! POSIX ACL rules: the stored form (`spec/metadata.md` 1.14). What rules mean is `meta/ops/acl.rs`.

/// "Not present" in `owner`, `group`, `mask` and `other`.
pub const ABSENT: u16 = 0xFFFF;

/// One rule; nodes refer to it by id. Permissions use the low three bits (r=4, w=2, x=1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AclRule {
    pub owner: u16,
    pub group: u16,
    pub mask: u16,
    pub other: u16,
    /// (uid, permissions)
    pub users: Vec<(u32, u16)>,
    /// (gid, permissions)
    pub groups: Vec<(u32, u16)>,
}

impl AclRule {
    /// The rule without any entry.
    pub fn empty() -> AclRule {
        AclRule { owner: ABSENT, group: ABSENT, mask: ABSENT, other: ABSENT, users: Vec::new(), groups: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        *self == AclRule::empty()
    }

    /// Says no more than the nine permission bits do.
    pub fn is_minimal(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask == ABSENT
    }

    /// The stored form of Redis and TKV.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 6 * (self.users.len() + self.groups.len()));
        for value in [self.owner, self.group, self.mask, self.other] {
            out.extend(value.to_be_bytes());
        }
        for entries in [&self.users, &self.groups] {
            out.extend((entries.len() as u32).to_be_bytes());
            out.extend(encode_entries(entries));
        }
        out
    }

    /// `None` when the bytes are not exactly one rule.
    pub fn decode(bytes: &[u8]) -> Option<AclRule> {
        let (head, mut rest) = bytes.split_first_chunk::<8>()?;
        let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let mut entries = || {
            let (count, tail) = rest.split_first_chunk::<4>()?;
            let bytes = (u32::from_be_bytes(*count) as usize).checked_mul(6)?;
            let (list, tail) = tail.split_at_checked(bytes)?;
            rest = tail;
            decode_entries(list)
        };
        let (users, groups) = (entries()?, entries()?);
        rest.is_empty().then(|| AclRule {
            owner: u16_at(0),
            group: u16_at(2),
            mask: u16_at(4),
            other: u16_at(6),
            users,
            groups,
        })
    }
}

/// Six bytes an entry, without a count (the form of the SQL columns).
pub fn encode_entries(entries: &[(u32, u16)]) -> Vec<u8> {
    entries.iter().flat_map(|(id, perm)| id.to_be_bytes().into_iter().chain(perm.to_be_bytes())).collect()
}

/// `None` when the length is not a multiple of six.
pub fn decode_entries(bytes: &[u8]) -> Option<Vec<(u32, u16)>> {
    let (entries, rest) = bytes.as_chunks::<6>();
    rest.is_empty().then(|| {
        entries
            .iter()
            .map(|e| (u32::from_be_bytes([e[0], e[1], e[2], e[3]]), u16::from_be_bytes([e[4], e[5]])))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_survive_the_stored_form() {
        let rule =
            AclRule { owner: 7, group: 5, mask: 4, other: 0, users: vec![(1000, 6)], groups: vec![(5, 4), (6, 1)] };
        let bytes = rule.encode();
        assert_eq!(bytes[..18], [0, 7, 0, 5, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0xe8, 0, 6]);
        assert_eq!(AclRule::decode(&bytes), Some(rule));
        assert_eq!(AclRule::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(AclRule::decode(&[]), None);
        assert!(AclRule::empty().is_minimal());
    }
}
