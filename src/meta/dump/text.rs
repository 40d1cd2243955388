//! Bytes as the JSON form writes them (`spec/metadata.md` 9.1): names, targets and values may be any bytes, JSON strings
//! may not.
//!
//! Bytes up to 0x20, `%`, `"`, `\` and bytes that are no UTF-8 become `%XX`; the rest stays. The peer takes a real
//! U+FFFD for a sign of damage and loses it; here it is text like any other.

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn escape_byte(out: &mut Vec<u8>, byte: u8) {
    out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Adds the escaped bytes; what comes out is UTF-8 and needs no escape of JSON.
pub fn escape(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                0..=0x20 | b'%' | b'"' | b'\\' => escape_byte(out, byte),
                _ => out.push(byte),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape_byte(out, *byte));
    }
}

/// Turns each `%XX` (upper case) back.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let escaped = match text.get(at + 1..at + 3) {
            Some(&[high, low]) if *byte == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                out.push(high << 4 | low);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// Adds a JSON string as the peer's library writes one: it escapes what a web page could take for markup as well. Bytes
/// that are no UTF-8 become U+FFFD.
pub fn json_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\u{8}' => out.extend(b"\\b"),
            '\u{c}' => out.extend(b"\\f"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            '<' | '>' | '&' | '\0'..='\u{1f}' | '\u{2028}' | '\u{2029}' => {
                out.extend(format!("\\u{:04x}", u32::from(c)).into_bytes());
            }
            c => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        escape(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bytes_are_written_as_the_peer_writes_them() {
        // As dumps of the peer have them.
        assert_eq!(escaped(b"bad\xff\"\\%41\x01\x7f<>&\xe2\x80\xa8\xc3\xa9"), "bad%FF%22%5C%2541%01\x7f<>&\u{2028}é");
        assert_eq!(escaped(b"tgt%41 x\"\\\xc3\xa9"), "tgt%2541%20x%22%5Cé");
        // Which the peer would write as `%EF`.
        assert_eq!(escaped("\u{fffd}".as_bytes()), "\u{fffd}");
        assert_eq!(escaped(b"\xef\xbf"), "%EF%BF");
    }

    #[test]
    fn only_whole_escapes_in_upper_case_are_turned_back() {
        for (text, bytes) in
            [("%41", "A"), ("%4", "%4"), ("%", "%"), ("%4g%4a", "%4g%4a"), ("%2541", "%41"), ("%%41", "%A")]
        {
            assert_eq!(unescape(text.as_bytes()), bytes.as_bytes(), "{text}");
        }
    }

    #[test]
    fn strings_are_those_of_the_peers_library() {
        let mut out = Vec::new();
        json_string(&mut out, "a\"\\<>&\u{1}\n\u{2028}é\u{7f}".as_bytes());
        assert_eq!(String::from_utf8(out).unwrap(), "\"a\\\"\\\\\\u003c\\u003e\\u0026\\u0001\\n\\u2028é\u{7f}\"");
    }

    proptest! {
        #[test]
        fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = escaped(&bytes);
            prop_assert_eq!(unescape(text.as_bytes()), bytes);
            prop_assert!(!text.contains(['"', '\\']));
        }
    }
}
