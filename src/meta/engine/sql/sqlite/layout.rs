//! The schema in a database file: completing what is there, and removing it. Both run inside a write transaction.

use super::fault::Failed;
use super::read::Reading;
use crate::meta::engine::sql::dialect::SQLITE;
use crate::meta::engine::sql::schema::{FIRST_COUNTERS, LEGACY_SESSIONS, TABLES};
use rusqlite::Params;

impl Reading<'_> {
    /// Makes the tables, columns, indexes and first counters that are missing; what is there stays.
    pub fn complete_layout(&self) -> Result<(), Failed> {
        for table in TABLES {
            let name = format!("{}{}", self.prefix, table.name);
            let columns = self.names("SELECT name FROM pragma_table_info(?1)", [&name])?;
            if columns.is_empty() {
                self.conn.execute(&table.create(&SQLITE, self.prefix), ())?;
            } else {
                // Volumes of older clients lack the columns that came later, all of which may be added in place.
                for column in table.columns.iter().filter(|c| !columns.iter().any(|name| name == c.name)) {
                    let (name, column) = (SQLITE.quoted(&name), column.definition(&SQLITE));
                    self.conn.execute(&format!("ALTER TABLE {name} ADD COLUMN {column}"), ())?;
                }
            }
            let indexes =
                self.names("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = ?1", [&name])?;
            for index in table.indexes {
                if !indexes.contains(&index.name(self.prefix, table.name)) {
                    self.conn.execute(&index.create(&SQLITE, self.prefix, table.name), ())?;
                }
            }
        }
        for counter in FIRST_COUNTERS {
            self.conn.execute(&self.texts.first_counter, *counter)?;
        }
        Ok(())
    }

    /// Drops the tables of this volume; another volume in the same file, under another prefix, stays.
    pub fn erase_layout(&self) -> Result<(), Failed> {
        for table in TABLES.iter().map(|t| t.name).chain([LEGACY_SESSIONS]) {
            let name = SQLITE.quoted(&format!("{}{table}", self.prefix));
            self.conn.execute(&format!("DROP TABLE IF EXISTS {name}"), ())?;
        }
        Ok(())
    }

    fn names(&self, text: &str, params: impl Params) -> Result<Vec<String>, Failed> {
        let mut statement = self.conn.prepare(text)?;
        let names = statement.query_map(params, |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(names)
    }
}
