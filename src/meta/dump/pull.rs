//! Reads JSON piece by piece, as its caller asks for it: of a tree of any depth only what is being looked at is in
//! memory. What is not understood is refused with the place where it stands.

use crate::base::Fault;
use std::io::Read;

/// Strings are names, targets and values of extended attributes (64 KiB), each byte escaped twice at the worst.
const STRING_BYTES_MAX: usize = 1 << 20;
/// The format document; it may hold a key and a Kerberos configuration.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;
/// Levels of a value that is passed over, at a byte each: it may be a whole tree.
const SKIPPED_LEVELS_MAX: usize = 1 << 21;
const BUFFER_BYTES: usize = 64 << 10;

/// A reader of one document. It is used like a cursor: `object` enters an object, `key` moves to its next key or
/// leaves it, and in between the value is read or passed over; `array` and `element` likewise.
pub struct Pull<'a> {
    input: &'a mut (dyn Read + Send),
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
    /// Bytes before the buffer.
    before: u64,
    line: u64,
    /// An object or array was entered, and nothing of it was read.
    first: bool,
    /// What is read is kept as well.
    kept: Option<Vec<u8>>,
}

type Pulled<T> = Result<T, Fault>;

impl<'a> Pull<'a> {
    pub fn new(input: &'a mut (dyn Read + Send)) -> Pull<'a> {
        Pull { input, buffer: vec![0; BUFFER_BYTES], at: 0, filled: 0, before: 0, line: 1, first: false, kept: None }
    }

    /// What is wrong, and where.
    pub fn wrong(&self, why: impl Into<String>) -> Fault {
        let byte = self.before + self.at as u64;
        Fault::corrupt("load dump").with("byte", byte).with("line", self.line).source(why.into())
    }

    fn peek(&mut self) -> Pulled<Option<u8>> {
        if self.at == self.filled {
            self.before += self.filled as u64;
            (self.at, self.filled) = (0, 0);
            self.filled = loop {
                match self.input.read(&mut self.buffer) {
                    Ok(count) => break count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(Fault::corrupt("read dump").with("byte", self.before).source(error));
                    }
                }
            };
        }
        Ok((self.at < self.filled).then(|| self.buffer[self.at]))
    }

    fn take(&mut self) -> Pulled<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.at += 1;
            self.line += u64::from(byte == b'\n');
            if let Some(kept) = &mut self.kept {
                if kept.len() >= DOCUMENT_BYTES_MAX {
                    return Err(self.wrong("the format document is longer than any can be"));
                }
                kept.push(byte);
            }
        }
        Ok(byte)
    }

    fn peek_token(&mut self) -> Pulled<Option<u8>> {
        while let Some(byte) = self.peek()? {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Ok(Some(byte));
            }
            self.take()?;
        }
        Ok(None)
    }

    fn expect(&mut self, wanted: u8, what: &str) -> Pulled<()> {
        match self.peek_token()? {
            Some(byte) if byte == wanted => self.take().map(|_| ()),
            Some(_) => Err(self.wrong(format!("{what} is expected here"))),
            None => Err(self.wrong("the file ends too early")),
        }
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Pulled<()> {
        match self.peek_token()? {
            None => Ok(()),
            Some(_) => Err(self.wrong("something follows the end of the dump")),
        }
    }

    pub fn object(&mut self) -> Pulled<()> {
        self.expect(b'{', "an object")?;
        self.first = true;
        Ok(())
    }

    /// The next key of the object, `false` at its end.
    pub fn key(&mut self, key: &mut Vec<u8>) -> Pulled<bool> {
        if !self.more(b'}')? {
            return Ok(false);
        }
        self.string(key)?;
        self.expect(b':', "a colon")?;
        Ok(true)
    }

    pub fn array(&mut self) -> Pulled<()> {
        self.expect(b'[', "a list")?;
        self.first = true;
        Ok(())
    }

    /// Whether the list has another element.
    pub fn element(&mut self) -> Pulled<bool> {
        self.more(b']')
    }

    fn more(&mut self, end: u8) -> Pulled<bool> {
        let first = std::mem::take(&mut self.first);
        match self.peek_token()? {
            Some(byte) if byte == end => {
                self.take()?;
                Ok(false)
            }
            Some(b',') if !first => {
                self.take()?;
                Ok(true)
            }
            Some(_) if first => Ok(true),
            Some(_) => Err(self.wrong("a comma is expected here")),
            None => Err(self.wrong("the file ends too early")),
        }
    }

    /// Whether the value is `null`, which is read then.
    pub fn null(&mut self) -> Pulled<bool> {
        if self.peek_token()? != Some(b'n') {
            return Ok(false);
        }
        self.word("null")?;
        Ok(true)
    }

    fn word(&mut self, word: &str) -> Pulled<()> {
        for wanted in word.bytes() {
            if self.take()? != Some(wanted) {
                return Err(self.wrong("this is no value"));
            }
        }
        Ok(())
    }

    /// An integer; out of range is an error that names `what`.
    pub fn integer<T: TryFrom<i128>>(&mut self, what: &str) -> Pulled<T> {
        self.peek_token()?;
        let mut text = String::new();
        while let Some(byte @ (b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) = self.peek()? {
            if text.len() > 40 {
                break;
            }
            text.push(char::from(byte));
            self.take()?;
        }
        let number = text.parse::<i128>().ok().and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.wrong(format!("\"{what}\" is not a number that it can be")))
    }

    /// A string, its escapes resolved. Bytes that are no UTF-8 stay as they are.
    pub fn string(&mut self, out: &mut Vec<u8>) -> Pulled<()> {
        out.clear();
        self.expect(b'"', "a text")?;
        loop {
            // Most of a string is plain, and lies in the buffer.
            let plain = self.buffer[self.at..self.filled]
                .iter()
                .take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f))
                .count();
            if plain > 0 && self.kept.is_none() {
                out.extend_from_slice(&self.buffer[self.at..self.at + plain]);
                self.at += plain;
            }
            if out.len() > STRING_BYTES_MAX {
                return Err(self.wrong("a text is longer than any can be"));
            }
            match self.take()? {
                Some(b'"') => return Ok(()),
                Some(b'\\') => self.escaped(out)?,
                Some(0..=0x1f) => return Err(self.wrong("a control character stands in a text")),
                Some(byte) => out.push(byte),
                None => return Err(self.wrong("the file ends inside of a text")),
            }
        }
    }

    fn escaped(&mut self, out: &mut Vec<u8>) -> Pulled<()> {
        let byte = match self.take()? {
            Some(byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let c = self.unicode()?;
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(self.wrong("an escape in a text is none of JSON's")),
        };
        out.push(byte);
        Ok(())
    }

    /// After `\u`; half a pair is U+FFFD, as the peer's library has it.
    fn unicode(&mut self) -> Pulled<char> {
        let high = self.four_digits()?;
        if let Some(c) = char::from_u32(high) {
            return Ok(c);
        }
        if high >= 0xDC00 || self.peek()? != Some(b'\\') {
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        self.take()?;
        if self.take()? != Some(b'u') {
            return Err(self.wrong("half of a pair of escapes is missing"));
        }
        let low = self.four_digits()?;
        let both = low.checked_sub(0xDC00).filter(|low| *low < 0x400);
        let both = both.and_then(|low| char::from_u32(0x10000 + ((high - 0xD800) << 10) + low));
        Ok(both.unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_digits(&mut self) -> Pulled<u32> {
        let mut number = 0;
        for _ in 0..4 {
            let digit = self.take()?.and_then(|byte| char::from(byte).to_digit(16));
            number = number << 4 | digit.ok_or_else(|| self.wrong("an escape in a text is none of JSON's"))?;
        }
        Ok(number)
    }

    /// Passes over a value of any kind.
    pub fn skip(&mut self) -> Pulled<()> {
        let mut ends: Vec<u8> = Vec::new();
        let mut text = Vec::new();
        loop {
            // A value, or the beginning of one.
            match self.peek_token()? {
                Some(b'{') => {
                    self.object()?;
                    ends.push(b'}');
                }
                Some(b'[') => {
                    self.array()?;
                    ends.push(b']');
                }
                Some(b'"') => self.string(&mut text)?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(b'-' | b'0'..=b'9') => {
                    while let Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') = self.peek()? {
                        self.take()?;
                    }
                }
                Some(_) => return Err(self.wrong("this is no value")),
                None => return Err(self.wrong("the file ends too early")),
            }
            if ends.len() > SKIPPED_LEVELS_MAX {
                return Err(self.wrong("a value has more levels than any can have"));
            }
            // To the next value, leaving what ends here.
            loop {
                let more = match ends.last() {
                    None => return Ok(()),
                    Some(b'}') => self.key(&mut text)?,
                    Some(_) => self.element()?,
                };
                if more {
                    break;
                }
                ends.pop();
            }
        }
    }

    /// A value of any kind, as it stands there.
    pub fn raw(&mut self) -> Pulled<Vec<u8>> {
        self.peek_token()?;
        self.kept = Some(Vec::new());
        let read = self.skip();
        let kept = self.kept.take().unwrap_or_default();
        read.map(|()| kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte at a time: every boundary of the buffer is met.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            out[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    fn with<T>(text: &str, read: impl Fn(&mut Pull<'_>) -> Pulled<T>) -> Pulled<T> {
        let at_once = read(&mut Pull::new(&mut text.as_bytes()));
        let slowly = read(&mut Pull::new(&mut Slow(text.as_bytes())));
        assert_eq!(at_once.is_ok(), slowly.is_ok(), "{text}");
        at_once
    }

    #[test]
    fn values_are_read_in_turn() {
        let text = r#" { "a" : [ 1 , -2 ] , "b":{"x":[{}, [], null]},"c":"\u00e9\ud83d\ude00\"\/\n","d":18446744073709551615} "#;
        with(text, |pull| {
            let mut key = Vec::new();
            pull.object()?;
            assert!(pull.key(&mut key)? && key == b"a");
            pull.array()?;
            assert!(pull.element()?);
            assert_eq!(pull.integer::<u8>("n")?, 1);
            assert!(pull.element()?);
            assert_eq!(pull.integer::<i64>("n")?, -2);
            assert!(!pull.element()?);
            assert!(pull.key(&mut key)? && key == b"b");
            assert_eq!(pull.raw()?, br#"{"x":[{}, [], null]}"#);
            assert!(pull.key(&mut key)? && key == b"c");
            pull.string(&mut key)?;
            assert_eq!(key, "é😀\"/\n".as_bytes());
            assert!(pull.key(&mut key)? && key == b"d");
            assert_eq!(pull.integer::<u64>("n")?, u64::MAX);
            assert!(!pull.key(&mut key)?);
            pull.end()
        })
        .unwrap();
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        for (text, why) in [
            ("", "ends too early"),
            ("{", "ends too early"),
            ("{\"a\":[1,}", "no value"),
            ("{\"a\"", "ends too early"),
            ("{\"a\" 1}", "a colon"),
            ("{\"a\":1 \"b\":2}", "a comma"),
            ("{,}", "a text"),
            ("[1,]x", "no value"),
            ("\"\\x\"", "escape"),
            ("\"\\u12g4\"", "escape"),
            ("\"ab", "inside of a text"),
            ("\"a\nb\"", "control character"),
            ("tru", "no value"),
            ("{} x", "follows"),
        ] {
            let error = with(text, |pull| pull.skip().and_then(|()| pull.end())).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("byte="), "{text}: {error}");
        }
        let deep = "[".repeat(SKIPPED_LEVELS_MAX + 1);
        assert!(with(&deep, |pull| pull.skip()).unwrap_err().to_string().contains("levels"));
        let error = with("\n\n  {\"a\": 300}", |pull| {
            pull.object()?;
            pull.key(&mut Vec::new())?;
            pull.integer::<u8>("a")
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("line=3") && error.contains("\"a\""), "{error}");
    }
}
