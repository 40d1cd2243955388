//! Tests of bringing back what lies in the trash.

use super::*;
use crate::meta::Rules;
use crate::meta::check::check;
use crate::meta::ops::create::NewNode;
use crate::meta::testing::{Store, plain_rules};
use crate::tools::Progress;
use crate::util::clock::SystemClock;
use crate::util::task::stop_signal;
use std::sync::Arc;

/// `t/x`, `t/u/y` and `f` lie in the trash; the answer is their hour.
async fn trashed() -> (Arc<Meta>, Ino) {
    let meta = Store::new().await.client(Arc::new(SystemClock)).await;
    meta.set_rules(Rules { trash_days: 1, ..plain_rules() });
    meta.format(b"{}").await.unwrap();
    let root = Caller::root();
    let make = async |parent, name: &str, kind| {
        let node = NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: None };
        meta.create(&root, parent, &Name::entry(name.as_bytes()).unwrap(), &node).await.unwrap().ino
    };
    let t = make(Ino::ROOT, "t", Kind::Directory).await;
    make(t, "x", Kind::File).await;
    let u = make(t, "u", Kind::Directory).await;
    make(u, "y", Kind::File).await;
    make(Ino::ROOT, "f-with-dashes", Kind::File).await;
    for name in ["t", "f-with-dashes"] {
        let name = Name::entry(name.as_bytes()).unwrap();
        meta.remove_tree(&root, Ino::ROOT, &name, false, 4, &|_| {}).await.unwrap();
    }
    let hours = meta.list_names(Ino::TRASH, None, 10).await.unwrap();
    let text = hours.entries[0].0.to_string();
    let found = hour(&meta, &text).await.unwrap();
    assert_eq!(found, hours.entries[0].1.ino);
    (meta, found)
}

async fn restore(meta: &Meta, hour: Ino, put_back: bool) -> Report {
    let (_stopper, stop) = stop_signal();
    let watch = Watch { progress: Arc::new(Progress::default()), stop };
    let mut report = Report::default();
    run(meta, &[hour], put_back, 4, &watch, &mut report).await.unwrap();
    report
}

async fn exists(meta: &Meta, path: &str) -> bool {
    meta.resolve(&Caller::root(), Ino::ROOT, path.as_bytes()).await.is_ok()
}

#[tokio::test]
async fn trees_are_put_together_and_then_put_back() {
    let (meta, hour) = trashed().await;
    let report = restore(&meta, hour, false).await;
    assert_eq!(report, Report { rebuilt: 3, waiting: 2, ..Report::default() });
    assert!(!exists(&meta, "t").await);
    assert_eq!(meta.list_names(hour, None, 10).await.unwrap().entries.len(), 2);
    let report = restore(&meta, hour, true).await;
    assert_eq!(report, Report { restored: 2, ..Report::default() });
    for path in ["t/x", "t/u/y", "f-with-dashes"] {
        assert!(exists(&meta, path).await, "{path}");
    }
    let report = check(&**meta.engine()).await.unwrap();
    let broken: Vec<_> = report.findings.iter().filter(|f| !crate::meta::repair::is_statistic(f)).collect();
    assert!(broken.is_empty(), "{report}");
}

#[tokio::test]
async fn nothing_is_overwritten() {
    let (meta, hour) = trashed().await;
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
    let name = Name::entry(b"f-with-dashes").unwrap();
    let new = meta.create(&Caller::root(), Ino::ROOT, &name, &node).await.unwrap().ino;
    let report = restore(&meta, hour, true).await;
    assert_eq!(report, Report { rebuilt: 3, restored: 1, conflicts: 1, ..Report::default() });
    assert_eq!(meta.lookup(&Caller::root(), Ino::ROOT, &name).await.unwrap().ino, new);
}

#[tokio::test]
async fn hours_are_names_of_the_trash() {
    let (meta, _) = trashed().await;
    for name in ["1999-01-01-00", "x"] {
        assert_eq!(hour(&meta, name).await.unwrap_err().errno(), Errno::ENOENT);
    }
}
