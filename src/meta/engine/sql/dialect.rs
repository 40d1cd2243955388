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
