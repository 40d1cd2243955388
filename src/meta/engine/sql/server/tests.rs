//! The suite of engines on MariaDB and PostgreSQL, and what is particular to a server.

use super::*;
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::testing::{next_mysql, next_postgres, program, skip};
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;

fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| program(name).is_none());
    missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
}

async fn opened(options: ServerOptions) -> Opened {
    let engine = ServerEngine::open(&options).await.expect("the server of the tests");
    engine.prepare().await.expect("tables");
    let mut script = engine.0.script();
    script.raw(&format!("DELETE FROM {}", engine.0.table("counter")));
    engine.0.driver.run(script.text, "remove the first counters").await.expect("removed");
    Opened { engine: Arc::new(engine), derives_link_parents: true, keep: Box::new(()) }
}

mod mysql {
    use super::*;

    async fn open() -> Option<Opened> {
        if !installed(&Mariadb::PROGRAMS) {
            return None;
        }
        Some(opened(next_mysql()).await)
    }

    engine_suite!(open);
}

mod postgres {
    use super::*;

    async fn open() -> Option<Opened> {
        if !installed(&Postgres::PROGRAMS) {
            return None;
        }
        Some(opened(next_postgres()).await)
    }

    engine_suite!(open);
}
