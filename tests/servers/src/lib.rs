//! Real servers for tests: metadata engines on loopback, each in a temporary directory of its own, none of which outlives
//! the test process, however that ends.
//!
//! A server is either a test's own (a value that ends it when dropped) or shared by all tests of a process (`shared`),
//! which hands out a database, schema or key prefix of its own to each test. [`program`] tells whether a server is
//! installed at all; [`skip`] announces a test that cannot run without.

mod certificates;
pub mod etcd;
pub mod mariadb;
pub mod postgres;
mod process;
pub mod redis;

pub use certificates::Certificates;
pub use process::{Kept, free_port, program, skip};

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(programs: &[&str]) -> bool {
        let missing = programs.iter().find(|name| program(name).is_none());
        missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
    }

    #[test]
    fn a_mariadb_serves_and_its_databases_are_apart() {
        if installed(&mariadb::Mariadb::PROGRAMS) {
            let server = mariadb::Mariadb::start();
            let (one, two) = (server.next_database(), server.next_database());
            server.execute(&format!("CREATE TABLE {one}.t (a INT); CREATE TABLE {two}.t (a INT)"));
        }
    }

    #[test]
    fn a_postgres_keeps_its_data_over_a_crash() {
        if installed(&postgres::Postgres::PROGRAMS) {
            let mut server = postgres::Postgres::start_with(&[]);
            let name = server.next_database();
            server.execute(&name, "CREATE TABLE t (a INT); INSERT INTO t VALUES (5)");
            server.restart();
            assert_eq!(server.execute(&name, "SELECT a FROM t").trim(), "5");
        }
    }

    #[test]
    fn a_cluster_of_redis_moves_slots() {
        if installed(&redis::Redis::PROGRAMS) {
            let cluster = redis::Cluster::start(2, 1);
            cluster.nodes[0].run(&["SET", "{3}key", "value"]);
            cluster.move_slot(1584, 0, 1, std::time::Duration::ZERO);
            assert_eq!(cluster.nodes[1].run(&["GET", "{3}key"]), "value");
        }
    }

    #[test]
    fn sentinels_know_the_master() {
        if installed(&redis::Redis::PROGRAMS) {
            let watched = redis::Watched::start(&[]);
            assert_eq!(watched.master(), 0);
            assert!(watched.servers[1].run(&["ROLE"]).starts_with("slave"));
        }
    }

    #[test]
    fn a_cluster_of_etcd_has_three_nodes() {
        if installed(&etcd::Etcd::PROGRAMS) {
            let mut etcd = etcd::Etcd::start(3);
            etcd.kill_node(1);
            etcd.start_node(1);
            assert_eq!(etcd.addresses().split(',').count(), 3);
        }
    }
}
