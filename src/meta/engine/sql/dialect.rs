//! How the SQL of one database differs from another's, as data: quoting, placeholders, column types, and the tail of
//! an insert that meets an existing row. Statements are written once, in `texts.rs`, in a neutral form.

use super::schema::Type;

/// What an insert does to the row that is already there.
pub enum OnConflict<'a> {
    /// These columns take the values of the insert.
    Replace(&'a [&'a str]),
    /// Nothing: the row stays.
    Keep,
}

/// One database's way of saying things.
pub struct Dialect {
    /// Around table and column names.
    pub quote: char,
    /// The n-th parameter (from 1).
    pub parameter: fn(n: usize) -> String,
    pub column_type: fn(Type) -> &'static str,
    /// Follows the type of a column that numbers its rows itself.
    pub serial: &'static str,
    /// The end of an insert whose row may exist; `keys` are the columns of the unique index.
    pub on_conflict: fn(keys: &[&str], action: OnConflict<'_>) -> String,
    /// A column of bytes with a parameter's bytes after it.
    pub appended: fn(column: &str) -> String,
}

/// What only the servers need: their statements are sent as whole scripts, with the values in their text (see
/// `server::script`), and rows are locked.
pub struct ServerDialect {
    pub of: Dialect,
    /// Bytes as a literal.
    pub bytes: fn(&[u8], &mut String),
    /// Bytes that are UTF-8 text, as a literal.
    pub text: fn(&[u8], &mut String),
    /// Begins a transaction that changes something: each of its statements sees what was committed before it.
    pub begin: &'static str,
    /// Begins one that reads: all of its statements see the same moment.
    pub begin_snapshot: &'static str,
    /// A statement that fails unless a query, given without its `SELECT`, finds a row.
    pub require: fn(query: &str, out: &mut String),
    /// A statement that fails if such a query finds one.
    pub refuse: fn(query: &str, out: &mut String),
    /// Behind a query: its rows stay as they are until the transaction ends.
    pub shared: &'static str,
    /// Behind a query: and they are about to be changed.
    pub exclusive: &'static str,
    /// The larger of two numbers.
    pub greatest: &'static str,
    /// What an insert that became an update was about to store.
    pub inserted: fn(column: &str) -> String,
    /// How an insert that became an update names what is there.
    pub present: fn(table: &str, column: &str) -> String,
    /// A column of bytes from a byte on, counted from 1.
    pub tail: fn(column: &str, from: usize) -> String,
    /// A name compared byte by byte, whatever the collation of its column.
    pub exactly: fn(column: &str, literal: &str) -> String,
}

pub const SQLITE: Dialect = Dialect {
    quote: '`',
    parameter: |n| format!("?{n}"),
    column_type: |of| match of {
        Type::Int | Type::Big | Type::Serial | Type::IntSerial => "INTEGER",
        Type::Name | Type::Text => "TEXT",
        Type::Binary(_) | Type::Blob => "BLOB",
    },
    serial: "PRIMARY KEY AUTOINCREMENT",
    on_conflict: |keys, action| {
        let keys = keys.join(", ");
        match action {
            OnConflict::Keep => format!("ON CONFLICT ({keys}) DO NOTHING"),
            OnConflict::Replace(columns) => {
                let sets: Vec<String> = columns.iter().map(|c| format!("{c} = excluded.{c}")).collect();
                format!("ON CONFLICT ({keys}) DO UPDATE SET {}", sets.join(", "))
            }
        }
    },
    // The operator makes text of what it joins; the cast keeps the column's class, which typed drivers mind.
    appended: |column| format!("CAST({column} || ? AS BLOB)"),
};

fn hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len());
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

pub const POSTGRES: ServerDialect = ServerDialect {
    of: Dialect {
        quote: '"',
        parameter: |_| "?".to_owned(),
        column_type: |of| match of {
            Type::Int => "INTEGER",
            Type::Big => "BIGINT",
            Type::Serial => "BIGSERIAL",
            Type::IntSerial => "SERIAL",
            Type::Name => "VARCHAR(255)",
            Type::Text => "TEXT",
            Type::Binary(_) | Type::Blob => "BYTEA",
        },
        serial: "PRIMARY KEY",
        on_conflict: SQLITE.on_conflict,
        appended: |column| format!("{column} || ?"),
    },
    bytes: |bytes, out| {
        out.push_str("'\\x");
        hex(bytes, out);
        out.push_str("'::bytea");
    },
    text: |bytes, out| {
        out.push_str("convert_from('\\x");
        hex(bytes, out);
        out.push_str("'::bytea, 'UTF8')");
    },
    begin: "BEGIN ISOLATION LEVEL READ COMMITTED",
    begin_snapshot: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    // The division is what fails; a row that is not found cannot.
    require: |query, out| {
        *out += "SELECT 1 / COUNT(*) FROM (SELECT 1 FROM ";
        *out += query;
        *out += ") AS required";
    },
    refuse: |query, out| {
        *out += "SELECT 1 / (CASE COUNT(*) WHEN 0 THEN 1 ELSE 0 END) FROM (SELECT 1 FROM ";
        *out += query;
        *out += ") AS refused";
    },
    shared: " FOR SHARE",
    exclusive: " FOR UPDATE",
    greatest: "GREATEST",
    inserted: |column| format!("excluded.{column}"),
    present: |table, column| format!("{table}.{column}"),
    tail: |column, from| format!("SUBSTRING({column} FROM {from})"),
    exactly: |column, literal| format!("{column} = {literal}"),
};

pub const MYSQL: ServerDialect = ServerDialect {
    of: Dialect {
        quote: '`',
        parameter: |_| "?".to_owned(),
        column_type: |of| match of {
            Type::Int => "INT",
            Type::Big | Type::Serial => "BIGINT(20)",
            Type::IntSerial => "INT",
            Type::Name => "VARCHAR(255)",
            Type::Text => "TEXT",
            Type::Binary(255) => "VARBINARY(255)",
            Type::Binary(_) => "VARBINARY(4096)",
            Type::Blob => "BLOB",
        },
        serial: "PRIMARY KEY AUTO_INCREMENT",
        on_conflict: |keys, action| match action {
            // What is there is stored once more, which changes nothing.
            OnConflict::Keep => format!("ON DUPLICATE KEY UPDATE {key} = {key}", key = keys[0]),
            OnConflict::Replace(columns) => {
                let sets: Vec<String> = columns.iter().map(|c| format!("{c} = VALUES({c})")).collect();
                format!("ON DUPLICATE KEY UPDATE {}", sets.join(", "))
            }
        },
        appended: |column| format!("CONCAT({column}, ?)"),
    },
    bytes: |bytes, out| {
        out.push_str("x'");
        hex(bytes, out);
        out.push('\'');
    },
    text: |bytes, out| {
        out.push_str("_utf8mb4 x'");
        hex(bytes, out);
        out.push('\'');
    },
    begin: "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
    begin_snapshot: "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    // A subquery of two rows is what fails.
    require: |query, out| {
        *out += "SELECT IF(COUNT(*) > 0, 1, (SELECT 1 UNION ALL SELECT 2)) FROM (SELECT 1 FROM ";
        *out += query;
        *out += ") AS required";
    },
    refuse: |query, out| {
        *out += "SELECT IF(COUNT(*) = 0, 1, (SELECT 1 UNION ALL SELECT 2)) FROM (SELECT 1 FROM ";
        *out += query;
        *out += ") AS refused";
    },
    shared: " LOCK IN SHARE MODE",
    exclusive: " FOR UPDATE",
    greatest: "GREATEST",
    inserted: |column| format!("VALUES({column})"),
    present: |_, column| column.to_owned(),
    tail: |column, from| format!("SUBSTRING({column}, {from})"),
    exactly: |column, literal| format!("{column} = {literal} AND BINARY {column} = BINARY {literal}"),
};
