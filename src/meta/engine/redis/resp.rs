//! Replies of a server (RESP2), parsed as they arrive.
//!
//! The crate's parser builds each value through a chain of combinators that can stop anywhere: a quarter of the time of
//! listing a directory. This one keeps the arrays it is inside of, looks at a value when all of it is there, and never at
//! the same bytes twice but for an unfinished line.

use bytes::{Buf, BytesMut};
use redis::{RedisError, Value};
use std::io;

/// Room for the next read.
const READ_BYTES: usize = 16 << 10;
/// A buffer that has grown beyond this is given back when it is empty.
const KEEP_BYTES: usize = 256 << 10;
/// Longest line. Only errors have long ones, and those of scripts name the script's line, not its text.
const LINE_MAX: usize = 64 << 10;
/// Longest value: twice what a server takes unless it is told otherwise (`proto-max-bulk-len`).
const BULK_MAX: i64 = 1 << 30;
/// Arrays within arrays. What we ask for has four.
const DEPTH_MAX: usize = 32;
/// Longest array. Pages and transactions have thousands.
const ARRAY_MAX: i64 = 1 << 24;
/// Elements of an array that room is made for before they are seen.
const ELEMENTS_AHEAD: usize = 4096;

/// Bytes that have arrived, and the reply that they are a part of.
#[derive(Default)]
pub(super) struct Replies {
    arrived: BytesMut,
    /// The arrays around the next value, the outermost first.
    open: Vec<Open>,
}

struct Open {
    values: Vec<Value>,
    missing: usize,
}

fn malformed(what: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, what).into()
}

impl Replies {
    /// Where the next bytes go.
    pub fn room(&mut self) -> &mut BytesMut {
        if self.arrived.is_empty() && self.arrived.capacity() > KEEP_BYTES {
            self.arrived = BytesMut::new();
        }
        self.arrived.reserve(READ_BYTES);
        &mut self.arrived
    }

    /// The next reply, when all of it has arrived. After an error the connection is of no more use.
    pub fn next(&mut self) -> Result<Option<Value>, RedisError> {
        while let Some(element) = element(&self.arrived)? {
            let (mut value, used) = match element {
                Element::Array(length, used) => {
                    if self.open.len() >= DEPTH_MAX {
                        return Err(malformed("the server answered with too many arrays in each other"));
                    }
                    self.arrived.advance(used);
                    let values = Vec::with_capacity(length.min(ELEMENTS_AHEAD));
                    self.open.push(Open { values, missing: length });
                    continue;
                }
                Element::Value(value, used) => (value, used),
            };
            self.arrived.advance(used);
            loop {
                let Some(open) = self.open.last_mut() else { return Ok(Some(value)) };
                open.values.push(value);
                open.missing -= 1;
                if open.missing > 0 {
                    break;
                }
                let whole = self.open.pop().expect("it was there a moment ago");
                value = Value::Array(whole.values);
            }
        }
        Ok(None)
    }
}

/// What stands at the beginning of some bytes, and how many of them it takes.
enum Element {
    Value(Value, usize),
    /// The head of an array with this many elements, at least one.
    Array(usize, usize),
}

/// `None` when it has not all arrived.
fn element(bytes: &[u8]) -> Result<Option<Element>, RedisError> {
    let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_MAX {
            Ok(None)
        } else {
            Err(malformed("the server answered with an endless line"))
        };
    };
    let used = end + 1;
    let (Some((kind, line)), b"\r\n") =
        (bytes[..end.saturating_sub(1)].split_first(), &bytes[end.saturating_sub(1)..used])
    else {
        return Err(malformed("the server answered with a line that is none"));
    };
    let value = match kind {
        b'+' if line == b"OK" => Value::Okay,
        b'+' => {
            Value::SimpleString(std::str::from_utf8(line).map_err(|_| malformed("a status is no text"))?.to_owned())
        }
        // How the crate takes errors apart is part of how they are judged.
        b'-' => redis::parse_redis_value(&bytes[..used])?,
        b':' => Value::Int(number(line)?),
        b'$' => match number(line)? {
            -1 => Value::Nil,
            length @ 0..=BULK_MAX => {
                let end = used + length as usize;
                if bytes.len() < end + 2 {
                    return Ok(None);
                }
                if &bytes[end..end + 2] != b"\r\n" {
                    return Err(malformed("the server answered with a value that is longer than it says"));
                }
                return Ok(Some(Element::Value(Value::BulkString(bytes[used..end].to_vec()), end + 2)));
            }
            _ => return Err(malformed("the server answered with an impossible length")),
        },
        b'*' => match number(line)? {
            -1 => Value::Nil,
            0 => Value::Array(Vec::new()),
            length @ 1..=ARRAY_MAX => return Ok(Some(Element::Array(length as usize, used))),
            _ => return Err(malformed("the server answered with an impossible length")),
        },
        _ => {
            return Err(malformed("this is no server of the Redis protocol, or one that speaks another version of it"));
        }
    };
    Ok(Some(Element::Value(value, used)))
}

fn number(line: &[u8]) -> Result<i64, RedisError> {
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed("the server answered with a number that is none"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(replies: &mut Replies) -> Result<Vec<Value>, RedisError> {
        std::iter::from_fn(|| replies.next().transpose()).collect()
    }

    /// In pieces of these lengths, over and over.
    fn parsed(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Value>, RedisError> {
        let (mut replies, mut found, mut rest) = (Replies::default(), Vec::new(), bytes);
        for length in pieces.iter().cycle() {
            if rest.is_empty() {
                return Ok(found);
            }
            let (piece, tail) = rest.split_at((*length).clamp(1, rest.len()));
            replies.room().extend_from_slice(piece);
            rest = tail;
            found.extend(all(&mut replies)?);
        }
        unreachable!("there is a piece")
    }

    fn written(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Nil => out.extend(b"$-1\r\n"),
            Value::Okay => out.extend(b"+OK\r\n"),
            Value::Int(n) => out.extend(format!(":{n}\r\n").into_bytes()),
            Value::SimpleString(text) => out.extend(format!("+{text}\r\n").into_bytes()),
            Value::BulkString(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).into_bytes());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Value::Array(values) => {
                out.extend(format!("*{}\r\n", values.len()).into_bytes());
                values.iter().for_each(|value| written(value, out));
            }
            other => panic!("not of this protocol: {other:?}"),
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            "[a-zA-Z ]{0,9}".prop_filter("another value", |s| s != "OK").prop_map(Value::SimpleString),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
            prop::collection::vec(Just(b'\n'), 0..3).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(4, 60, 8, |inner| prop::collection::vec(inner, 0..8).prop_map(Value::Array))
    }

    proptest! {
        #[test]
        fn replies_are_the_same_however_they_arrive(
            values in prop::collection::vec(value(), 1..6),
            pieces in prop::collection::vec(1usize..50, 1..6),
        ) {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| written(value, &mut bytes));
            prop_assert_eq!(parsed(&bytes, &pieces).unwrap(), values);
        }

        /// The crate knows more than RESP2; what both take is the same, and what is not whole is not taken.
        #[test]
        fn anything_is_read_as_the_crate_does_or_refused(bytes in prop::collection::vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'*'), Just(b'$'), Just(b':'), Just(b'-'), Just(b'+'), 48u8..58],
            1..30,
        ), whole in any::<bool>()) {
            let mut bytes = bytes;
            if whole {
                bytes.extend(b"\r\n");
            }
            if let Ok(found) = parsed(&bytes, &[3])
                && let Some(first) = found.first()
            {
                prop_assert_eq!(&redis::parse_redis_value(&bytes).unwrap(), first);
            }
        }
    }

    #[test]
    fn errors_keep_their_code_and_their_text() {
        let found = parsed(b"*2\r\n-NOSCRIPT No matching script.\r\n:1\r\n-ERR x\r\n", &[7]).unwrap();
        let Value::Array(values) = &found[0] else { panic!("{found:?}") };
        let Value::ServerError(error) = &values[0] else { panic!("{found:?}") };
        assert_eq!((error.code(), error.details()), ("NOSCRIPT", Some("No matching script.")));
        assert!(matches!(found[1], Value::ServerError(_)));
    }

    #[test]
    fn what_is_no_reply_is_an_error_and_takes_no_memory() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$-2\r\n",
            b"$1073741825\r\n",
            b"*-5\r\n",
            b"*2147483647\r\n",
            b":1x\r\n",
            b":\r\n",
            b"\n",
            b"\r\n",
            b"+OK\n",
            b"$1\r\nabc",
            b"+\xff\r\n",
            b"%1\r\n",
        ] {
            let error = parsed(bytes, &[100]).unwrap_err();
            assert!(error.is_io_error(), "{error}");
        }
        assert!(parsed(&b"*1\r\n".repeat(DEPTH_MAX + 1), &[9]).is_err());
        assert!(parsed(&vec![b'+'; LINE_MAX + 1], &[1 << 20]).is_err());
        let mut replies = Replies::default();
        replies.room().extend_from_slice(b"*16777216\r\n$1000000000\r\nx");
        assert_eq!(replies.next().unwrap(), None);
        assert!(replies.arrived.capacity() < 1 << 20);
    }

    #[test]
    fn a_large_buffer_is_given_back() {
        let mut replies = Replies::default();
        let value = Value::BulkString(vec![7; 4 << 20]);
        let mut bytes = Vec::new();
        written(&value, &mut bytes);
        for piece in bytes.chunks(10_000) {
            assert_eq!(replies.next().unwrap(), None);
            replies.room().extend_from_slice(piece);
        }
        assert_eq!(replies.next().unwrap(), Some(value));
        replies.room();
        assert!(replies.arrived.capacity() < KEEP_BYTES);
    }
}
