//! Black-box tests of real mounts: the `sluice` binary on real engines and stores, used through the kernel.
//!
//! They need root, /dev/fuse and some programs (`tools/test.sh` installs them). What is missing is announced and its
//! tests are skipped, unless `SLUICE_TEST_ALL=1` is set, as CI does: then a missing piece is a failure.

/// Tests that run on each engine over each store, as four tests named `name::engine_store`.
macro_rules! on_all_volumes {
    ($($(#[$doc:meta])* $name:ident needs [$($program:literal),*] => $run:path;)*) => {
        $($(#[$doc])* mod $name {
            use $crate::harness::{Engine, Store, Volume, ready};

            fn run(engine: Engine, store: Store) {
                let mut programs: Vec<&str> = [&[$($program),*], engine.programs()].concat();
                if store == Store::S3 {
                    programs.push("weed");
                }
                if ready(&programs) {
                    $run(&Volume::format(engine, store, &[]));
                }
            }

            #[test]
            fn sqlite_file() {
                run(Engine::Sqlite, Store::File);
            }

            #[test]
            fn redis_file() {
                run(Engine::Redis, Store::File);
            }

            #[test]
            fn sqlite_s3() {
                run(Engine::Sqlite, Store::S3);
            }

            #[test]
            fn redis_s3() {
                run(Engine::Redis, Store::S3);
            }
        })*
    };
}

/// Tests of our mount beside the peer's, each on every engine, the volumes formatted with the options named.
macro_rules! on_every_engine {
    ($($name:ident: $format:expr;)*) => {
        $(mod $name {
            use super::*;

            fn run(engine: Engine) {
                if prepared(engine.programs()) {
                    super::$name(&Volume::format(engine, Store::File, &$format));
                }
            }

            #[test]
            fn redis() {
                run(Engine::Redis);
            }

            #[test]
            fn sqlite() {
                run(Engine::Sqlite);
            }

            #[test]
            fn mariadb() {
                run(Engine::Mariadb);
            }

            #[test]
            fn postgres() {
                run(Engine::Postgres);
            }

            #[test]
            fn etcd() {
                run(Engine::Etcd);
            }

            #[test]
            fn redis_cluster() {
                run(Engine::RedisCluster);
            }
        })*
    };
}

mod both;
mod both_trees;
mod cells;
mod checksums;
mod dumps;
mod exerciser;
mod failover;
mod faults;
mod harness;
mod kill;
mod life;
mod peer;
mod posix;
mod proxy;
mod recount;
mod several;
mod tools;
mod traps;
mod work;
