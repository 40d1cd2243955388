//! Data on its way to the kernel.
//!
//! A reply is one contiguous slice on this transport. Most reads lie within one block, so their payload is one piece
//! and goes out from where it lies; a read across a block border is gathered once, and counted.

use crate::buf::{Payload, copied};
use std::cell::RefCell;

thread_local! {
    /// Where pieces are gathered. It keeps its memory between replies (at most one read, 1 MiB, per thread that
    /// answers), because a fresh buffer for each costs more than the copy itself.
    static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `send` with all bytes of `payload` in one slice.
pub fn contiguous<T>(payload: &Payload, send: impl FnOnce(&[u8]) -> T) -> T {
    if let Some(single) = payload.as_single() {
        return send(single);
    }
    GATHERED.with_borrow_mut(|gathered| {
        gathered.clear();
        for piece in payload.iter() {
            gathered.extend_from_slice(piece);
        }
        copied(gathered.len());
        send(gathered)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn one_piece_is_sent_from_where_it_lies() {
        let bytes = Bytes::from_static(b"block");
        let payload = Payload::from(bytes.clone());
        contiguous(&payload, |slice| assert_eq!(slice.as_ptr(), bytes.as_ptr()));
    }

    #[test]
    fn several_pieces_arrive_in_order() {
        let mut payload = Payload::new();
        for piece in [&b"end of one block, "[..], b"start of the next"] {
            payload.push(Bytes::from_static(piece));
        }
        for _ in 0..2 {
            contiguous(&payload, |slice| assert_eq!(slice, b"end of one block, start of the next"));
        }
        contiguous(&Payload::new(), |slice| assert!(slice.is_empty()));
    }
}
