//! What fuser 0.18 leaves out of a lock request: whether flock(2) or fcntl(2) asks. One flag of the kernel's message
//! says so, and without it flock would have to stay local to the mount, where the peer's excludes other clients.
//!
//! fuser lends the header of a message from the buffer that the message was read into (`fuser::Request` is
//! `repr(transparent)` over it), so that the arguments lie right behind it. That is how the crate is made and not what
//! it promises; hence its version is pinned in `Cargo.toml`, everything that it passes on as well is compared by the
//! caller, and tests of real mounts lock with both calls. The alternatives weighed: a fork of the crate for one field,
//! and a copy of every message on its way to it. This file goes when fuser tells the flag.

use std::mem::{align_of, size_of};

const SETLK: u32 = 32;
const SETLKW: u32 = 33;
const FLOCK: u32 = 1;

/// `fuse_in_header`, and then `fuse_lk_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Message {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    caller: [u32; 4],
    handle: u64,
    owner: u64,
    start: u64,
    end: u64,
    kind: u32,
    pid: u32,
    flags: u32,
    padding: u32,
}

/// What fuser passes on of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub unique: u64,
    pub handle: u64,
    pub owner: u64,
    pub start: u64,
    pub end: u64,
    pub kind: i32,
    pub pid: u32,
}

/// Whether the lock is asked for by flock(2); `None` when what lies behind the header is not the request that fuser
/// told of.
pub fn is_flock<H>(header: &H, told: &Told) -> Option<bool> {
    const HEADER_BYTES: usize = 40;
    const { assert!(size_of::<H>() == HEADER_BYTES && align_of::<H>() <= 8) };
    // SAFETY: the header is plain numbers, forty bytes of them.
    let head: [u32; 2] = unsafe { std::ptr::read_unaligned(std::ptr::from_ref(header).cast()) };
    if (head[0] as usize) < size_of::<Message>() || ![SETLK, SETLKW].contains(&head[1]) {
        return None;
    }
    // SAFETY: fuser has checked that the buffer holds as many bytes as the header says, and the header is lent from
    // that buffer. Nobody writes there before the call that was given the header returns.
    let message: Message = unsafe { std::ptr::read_unaligned(std::ptr::from_ref(header).cast()) };
    let Message { unique, handle, owner, start, end, kind, pid, flags, .. } = message;
    let seen = Told { unique, handle, owner, start, end, kind: kind as i32, pid };
    (seen == *told).then_some(flags & FLOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Buffer {
        _message: Message,
        _rest: [u8; 100],
    }

    #[repr(C)]
    struct Header {
        _words: [u64; 5],
    }

    fn asked(change: impl FnOnce(&mut Message)) -> Option<bool> {
        let mut message =
            Message { len: 88, opcode: SETLK, unique: 7, node: 1, caller: [0, 0, 99, 0], ..Message::default() };
        (message.handle, message.owner, message.end, message.kind, message.pid) = (3, 0xAB << 56, u64::MAX >> 1, 1, 99);
        let told = Told { unique: 7, handle: 3, owner: 0xAB << 56, start: 0, end: u64::MAX >> 1, kind: 1, pid: 99 };
        change(&mut message);
        let buffer = Box::new(Buffer { _message: message, _rest: [0xFF; 100] });
        // SAFETY: the buffer begins with the forty bytes of a header, and is longer.
        is_flock(unsafe { &*std::ptr::from_ref(&*buffer).cast::<Header>() }, &told)
    }

    #[test]
    fn the_flag_is_where_the_kernel_puts_it() {
        assert_eq!((size_of::<Message>(), std::mem::offset_of!(Message, flags)), (88, 80));
        assert_eq!(asked(|_| ()), Some(false));
        assert_eq!(asked(|m| m.flags = FLOCK), Some(true));
        assert_eq!(asked(|m| (m.flags, m.opcode) = (FLOCK, SETLKW)), Some(true));
    }

    #[test]
    fn another_message_is_not_believed() {
        assert_eq!(asked(|m| m.len = 80), None);
        assert_eq!(asked(|m| m.opcode = 31), None);
        for change in [
            |m: &mut Message| m.unique += 1,
            |m: &mut Message| m.handle += 1,
            |m: &mut Message| m.owner += 1,
            |m: &mut Message| m.start += 1,
        ] {
            assert_eq!(asked(change), None);
        }
        for change in [|m: &mut Message| m.end -= 1, |m: &mut Message| m.kind = 2, |m: &mut Message| m.pid = 1] {
            assert_eq!(asked(change), None);
        }
    }
}
