//! Scripts: several statements that are sent as one text, in one trip. Values stand in the text as literals that are
//! made of digits and hexadecimal digits alone, so nothing of a value is ever read as SQL.

use crate::meta::engine::sql::dialect::ServerDialect;

/// A value for a `?` of a statement.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    Owned(Vec<u8>),
    /// UTF-8, for columns of text.
    Text(&'a [u8]),
    Null,
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

/// A text under construction, with the number of statements in it.
pub struct Script {
    pub text: String,
    statements: usize,
    dialect: &'static ServerDialect,
}

impl Script {
    pub fn new(dialect: &'static ServerDialect) -> Script {
        Script { text: String::with_capacity(1024), statements: 0, dialect }
    }

    /// Ends a statement; answers its number, which is that of its answer.
    fn end(&mut self) -> usize {
        self.text.push_str(";\n");
        self.statements += 1;
        self.statements - 1
    }

    /// Statements without values, separated as the dialect separates them.
    pub fn raw(&mut self, statements: &str) -> usize {
        self.text.push_str(statements);
        self.statements += statements.matches("; ").count();
        self.end()
    }

    /// A statement of `texts` with its values.
    pub fn add(&mut self, template: &str, values: &[Value<'_>]) -> usize {
        self.fill(template, values);
        self.end()
    }

    /// An insert of several rows: its list of parameters is repeated for each.
    pub fn add_rows(&mut self, insert: &str, rows: &[Vec<Value<'_>>]) -> usize {
        let (head, rest) = insert.split_once("VALUES (").expect("an insert names its values");
        let (parameters, tail) = rest.split_once(')').expect("and ends them");
        self.fill(head, &[]);
        let mut before = "VALUES (";
        for row in rows {
            self.text.push_str(before);
            self.fill(parameters, row);
            before = "), (";
        }
        self.text.push(')');
        self.fill(tail, &[]);
        self.end()
    }

    /// The transaction fails unless the query (without its `SELECT`) finds a row.
    pub fn require(&mut self, query: &str) {
        (self.dialect.require)(query, &mut self.text);
        self.end();
    }

    /// The transaction fails if the query finds a row.
    pub fn refuse(&mut self, query: &str) {
        (self.dialect.refuse)(query, &mut self.text);
        self.end();
    }

    fn fill(&mut self, template: &str, values: &[Value<'_>]) {
        let mut values = values.iter();
        let mut parts = template.split('?');
        self.text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let value = values.next().expect("a value for each parameter");
            literal(self.dialect, value, &mut self.text);
            self.text.push_str(part);
        }
        assert!(values.next().is_none(), "a parameter for each value: {template}");
    }

    /// A part of a statement with its values.
    pub fn part(&self, template: &str, values: &[Value<'_>]) -> String {
        let mut part = Script::new(self.dialect);
        part.fill(template, values);
        part.text
    }
}

fn literal(dialect: &ServerDialect, value: &Value<'_>, out: &mut String) {
    match value {
        Value::Null => out.push_str("NULL"),
        Value::Int(number) => {
            use std::fmt::Write;
            // The smallest number is no literal of some databases: it would be the negative of one that is too large.
            let written = match *number {
                i64::MIN => write!(out, "({} - 1)", i64::MIN + 1),
                number => write!(out, "{number}"),
            };
            written.expect("a text takes what is written");
        }
        Value::Bytes(bytes) => (dialect.bytes)(bytes, out),
        Value::Owned(bytes) => (dialect.bytes)(bytes, out),
        Value::Text(bytes) => (dialect.text)(bytes, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::engine::sql::dialect::{MYSQL, POSTGRES};

    #[test]
    fn values_are_digits() {
        let values =
            [Value::Int(-5), Value::Bytes(b"';--\\\0"), Value::Text(b"\"'"), Value::Null, Value::Int(i64::MIN)];
        let mut script = Script::new(&POSTGRES);
        assert_eq!(script.add("A ? ? ? ? ?", &values), 0);
        assert_eq!(
            script.text,
            "A -5 '\\x273b2d2d5c00'::bytea convert_from('\\x2227'::bytea, 'UTF8') NULL (-9223372036854775807 - 1);\n"
        );
        let mut script = Script::new(&POSTGRES);
        let rows = [[1, 2], [3, 4]].map(|row| row.map(Value::Int).to_vec());
        script.add_rows("INSERT INTO t (a, b) VALUES (?, ?) ON CONFLICT (a) DO NOTHING", &rows);
        assert_eq!(script.text, "INSERT INTO t (a, b) VALUES (1, 2), (3, 4) ON CONFLICT (a) DO NOTHING;\n");
        let mut script = Script::new(&MYSQL);
        script.raw(MYSQL.begin);
        assert_eq!(script.add("A ? ? ? ? ?", &values), 2);
        assert!(script.text.ends_with("A -5 x'273b2d2d5c00' _utf8mb4 x'2227' NULL (-9223372036854775807 - 1);\n"));
    }
}
