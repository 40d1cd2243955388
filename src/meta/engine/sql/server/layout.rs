//! The schema in a database: completing what is there, removing it, and the numbers of rules, which their table hands
//! out.

use super::driver::Cells;
use super::load::rows;
use super::script::Value;
use super::{ServerKind, Shared, read_error, write_error};
use crate::base::FaultKind;
use crate::meta::engine::sql::rows::Columns;
use crate::meta::engine::sql::schema::{FIRST_COUNTERS, LEGACY_SESSIONS, TABLES};
use crate::meta::engine::{EngineError, EngineResult};
use std::collections::HashSet;

impl Shared {
    /// Makes the tables, columns, indexes and first counters that are missing; what is there stays. Databases may commit
    /// each statement of this kind by itself, so it goes on where an earlier try has stopped.
    pub(super) async fn complete_layout(&self) -> EngineResult<()> {
        let (columns, indexes) = self.present().await?;
        let of = &self.dialect.of;
        let mut script = self.script();
        for table in TABLES {
            let name = format!("{}{}", self.prefix, table.name);
            if !columns.iter().any(|(of, _)| *of == name) {
                script.raw(&self.create_table(table));
            } else {
                for column in table.columns.iter().filter(|c| !columns.contains(&(name.clone(), c.name.to_owned()))) {
                    let definition = column.definition(of);
                    script.raw(&format!("ALTER TABLE {} ADD COLUMN {definition}", of.quoted(&name)));
                }
            }
            for index in table.indexes {
                let index_name = index.name(&self.prefix, table.name);
                if !indexes.contains(&index_name) {
                    script.raw(&index.create(of, &self.prefix, table.name));
                }
            }
        }
        for (name, value) in FIRST_COUNTERS {
            script.add(&self.texts.first_counter, &[Value::Text(name.as_bytes()), Value::Int(*value)]);
        }
        match self.driver.run(script.text, "make tables").await {
            // Another client was faster with one of them.
            Err(super::Failed::Conflict) => Err(EngineError::Conflict),
            ran => ran.map(drop).map_err(|failed| write_error(failed, "make tables")),
        }
    }

    fn create_table(&self, table: &crate::meta::engine::sql::schema::Table) -> String {
        let create = table.create(&self.dialect.of, &self.prefix);
        match (self.kind, table.name) {
            // Names are bytes. The usual collations would take `user.K` for `user.k`; clients that know nothing of it
            // find every name that they ask for.
            (ServerKind::Mysql, "xattr") => {
                create.replacen("VARCHAR(255)", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", 1)
            }
            _ => create,
        }
    }

    /// (table, column) and index names of this volume's tables.
    async fn present(&self) -> EngineResult<(HashSet<(String, String)>, HashSet<String>)> {
        let mut script = self.script();
        let prefix = self.prefix.as_bytes();
        let (columns, indexes) = match self.kind {
            ServerKind::Mysql => (
                script.add(
                    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() \
                     AND LEFT(table_name, ?) = ?",
                    &[Value::Int(prefix.len() as i64), Value::Text(prefix)],
                ),
                script.add(
                    "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() \
                     AND LEFT(table_name, ?) = ?",
                    &[Value::Int(prefix.len() as i64), Value::Text(prefix)],
                ),
            ),
            ServerKind::Postgres => (
                script.add(
                    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = \
                     current_schema() AND LEFT(table_name, ?) = ?",
                    &[Value::Int(prefix.len() as i64), Value::Text(prefix)],
                ),
                script.add(
                    "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND LEFT(tablename, ?) = ?",
                    &[Value::Int(prefix.len() as i64), Value::Text(prefix)],
                ),
            ),
        };
        let answers = self.driver.read(script.text, "read schema").await;
        let answers = answers.map_err(|failed| read_error(failed, "read schema"))?;
        let text = |row: &Cells, column| Some(String::from_utf8_lossy(row.bytes(column)?).into_owned());
        let columns = rows(&answers, columns).iter().filter_map(|row| Some((text(row, 0)?, text(row, 1)?)));
        let indexes = rows(&answers, indexes).iter().filter_map(|row| text(row, 0));
        Ok((columns.collect(), indexes.collect()))
    }

    /// Drops the tables of this volume; others in the same database, under another prefix, stay.
    pub(super) async fn erase_layout(&self) -> EngineResult<()> {
        let mut script = self.script();
        for table in TABLES.iter().map(|table| table.name).chain([LEGACY_SESSIONS]) {
            script.raw(&format!("DROP TABLE IF EXISTS {}", self.table(table)));
        }
        let ran = self.driver.run(script.text, "remove tables").await;
        ran.map(drop).map_err(|failed| write_error(failed, "remove tables"))
    }

    /// Numbers for new rules; answers the last one.
    pub(super) async fn allocate_rules(&self, count: u64) -> EngineResult<i64> {
        let mut script = self.script();
        let table = self.table("acl");
        let last = match self.kind {
            ServerKind::Postgres => {
                // The sequence of the column goes on for everybody, whatever becomes of this.
                let sequence = format!("'{table}', 'id'");
                let sequence = format!("pg_get_serial_sequence({sequence})");
                script.raw(&format!(
                    "SELECT MAX(taken) FROM (SELECT nextval({sequence}) AS taken FROM generate_series(1, {count})) AS ids"
                ))
            }
            ServerKind::Mysql => {
                // Rows are numbered as they are stored. They have a number then, and need not stay.
                let rows = vec!["(NULL)"; usize::try_from(count).unwrap_or(1)].join(", ");
                script.raw("START TRANSACTION");
                script.raw(&format!("INSERT INTO {table} (owner) VALUES {rows}"));
                let last = script.raw(&format!("SELECT LAST_INSERT_ID() + {count} - 1"));
                script.raw("ROLLBACK");
                last
            }
        };
        let answers = self.driver.run(script.text, "number rules").await;
        let answers = answers.map_err(|failed| write_error(failed, "number rules"))?;
        match rows(&answers, last).first().and_then(|row| row.int(0)) {
            Some(last) => Ok(last),
            None => Err(self.fault(FaultKind::Internal, "number rules").source("an answer of another shape").into()),
        }
    }
}
