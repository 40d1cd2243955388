//! SQL engines: a volume as rows of the tables that JuiceFS makes (`spec/metadata.md` section 3).
//!
//! What all SQL databases share stands here: [`schema`] the tables, [`dialect`] how one database's SQL differs from
//! another's, [`texts`] the statements, [`records`] how records become column values. What one database needs of its
//! own (connections, transactions, guards, errors) is a module beside them: [`sqlite`].
//!
//! Three rules of the layout decide most of the code: references of slices are stored as they are, with a row for
//! every live slice; link parents are not stored but counted from the entries; counters of inodes and slices hold the
//! first number that is free, while the seam speaks of the last one used.

pub mod dialect;
pub mod records;
pub mod rows;
pub mod schema;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod server;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod texts;
