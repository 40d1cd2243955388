//! Clients that all want the same at the same moment, each with an engine of its own as mounts have, and with usage
//! gathered as they gather it: nobody gets a fault, what only one can have goes to one, and the numbers are those of
//! what is there.

use super::{Shell, clean, client, name, node};
use crate::base::{ChunkIndex, Errno, Ino, Kind, Outcome, Slice, SliceId, Stop, Timestamp};
use crate::meta::engine::{Engine, Scan};
use crate::meta::ops::rename::RenameMode::{Exchange, NoReplace, Replace};
use crate::meta::record::{Counter, DirStat, Key, Record};
use crate::meta::testing::{Store, rows};
use crate::meta::{Caller, Meta};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

const ROOT: Ino = Ino::ROOT;
const FIRST: ChunkIndex = ChunkIndex(0);
const CREATORS: usize = 32;
const FILES_EACH: usize = 3;
const CLIENTS: usize = 8;
const STEPS: u64 = 40;
/// Few enough that everybody is in everybody's way.
const NAMES: [&str; 5] = ["n0", "n1", "n2", "n3", "n4"];

async fn clients(count: usize) -> Vec<Arc<Meta>> {
    let store = Store::new().await;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(client(store.gathering_engine().await, false).await);
    }
    clients
}

/// What clients do at once, and what each got.
async fn at_once<T, W>(clients: &[Arc<Meta>], what: impl Fn(usize, Arc<Meta>) -> W) -> Vec<T>
where
    T: Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(tokio::sync::Barrier::new(clients.len()));
    let begin = |(number, meta): (usize, &Arc<Meta>)| {
        let (start, work) = (start.clone(), what(number, meta.clone()));
        tokio::spawn(async move {
            start.wait().await;
            work.await
        })
    };
    let tasks: Vec<_> = clients.iter().enumerate().map(begin).collect();
    futures::future::join_all(tasks).await.into_iter().map(|ended| ended.expect("no task gives up")).collect()
}

/// An answer; a fault is none.
fn answer<T>(outcome: Outcome<T>) -> Result<T, Errno> {
    outcome.map_err(|stop| match stop {
        Stop::Errno(errno) => errno,
        Stop::Fault(fault) => panic!("an answer was due, not a fault: {fault}"),
    })
}

/// What was done by the one who got it; all others were told `lost`.
fn winner<T: std::fmt::Debug>(answers: Vec<Result<T, Errno>>, lost: Errno) -> (usize, T) {
    let told = format!("{answers:?}");
    let mut won = Vec::new();
    for (number, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(value) => won.push((number, value)),
            Err(errno) => assert_eq!(errno, lost, "{told}"),
        }
    }
    assert_eq!(won.len(), 1, "{told}");
    won.pop().expect("one")
}

async fn found(meta: &Meta, dir: Ino, text: &str) -> Option<Ino> {
    match answer(Shell(meta).look(dir, text).await) {
        Ok(entry) => Some(entry.ino),
        Err(errno) => {
            assert_eq!(errno, Errno::ENOENT);
            None
        }
    }
}

/// Clients store what they have gathered, and the tree is sound.
async fn end(clients: &[Arc<Meta>]) {
    for meta in clients {
        meta.engine().sync().await.expect("synced");
    }
    clean(&clients[0]).await;
}

async fn number(engine: &dyn Engine, counter: Counter) -> i64 {
    match engine.read(&[Key::Counter(counter)]).await.expect("read").pop().flatten() {
        Some(Record::Number(number)) => number,
        None => 0,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_create_in_one_directory() {
    let clients = clients(CREATORS).await;
    let first = clients[0].clone();
    let dir = Shell(&first).dir(ROOT, "d").await;
    first.engine().sync().await.expect("synced");
    let usage = |engine: Arc<dyn Engine>| async move {
        (number(&*engine, Counter::TotalInodes).await, number(&*engine, Counter::UsedSpace).await)
    };
    let before = usage(first.engine().clone()).await;
    let made = at_once(&clients, |number, meta| async move {
        let mut made = Vec::new();
        for file in 0..FILES_EACH {
            let text = format!("c{number}-{file}");
            let ino = answer(meta.create(&Caller::root(), dir, &name(&text), &node(Kind::File)).await).unwrap().ino;
            made.push((text, ino));
        }
        let text = format!("c{number}");
        let ino = answer(meta.create(&Caller::root(), dir, &name(&text), &node(Kind::Directory)).await).unwrap().ino;
        made.push((text, ino));
        meta.engine().sync().await.expect("synced");
        made
    });
    let made: BTreeMap<String, Ino> = made.await.into_iter().flatten().collect();
    let all = CREATORS * (FILES_EACH + 1);
    assert_eq!(made.values().collect::<BTreeSet<_>>().len(), all, "each has an inode of its own");
    let listed = rows(&first, Scan::Dentries(dir)).await.into_iter().map(|row| match row {
        (Key::Dentry(_, name), Record::Dentry(dentry)) => (String::from_utf8_lossy(name.as_bytes()).into(), dentry.ino),
        other => panic!("{other:?}"),
    });
    assert_eq!(listed.collect::<BTreeMap<String, Ino>>(), made);
    assert_eq!(Shell(&first).attr(dir).await.nlink, 2 + CREATORS as u32);
    let after = usage(first.engine().clone()).await;
    assert_eq!((after.0 - before.0, after.1 - before.1), (all as i64, 4096 * all as i64));
    let stat = first.engine().read(&[Key::DirStat(dir)]).await.expect("read").pop().flatten();
    let counted = DirStat { length: 0, space: 4096 * all as i64, inodes: all as i64 };
    assert_eq!(stat, Some(Record::DirStat(counted)));
    end(&clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_can_have_goes_to_one() {
    let clients = clients(CLIENTS).await;
    let meta = clients[0].clone();
    let sh = Shell(&meta);
    for round in 0..3 {
        let dir = sh.dir(ROOT, &format!("r{round}")).await;
        for (text, kind) in [("file", Kind::File), ("dir", Kind::Directory)] {
            let answers = at_once(&clients, move |_, meta| async move {
                answer(meta.create(&Caller::root(), dir, &name(text), &node(kind)).await)
            });
            let (_, made) = winner(answers.await, Errno::EEXIST);
            assert_eq!(found(&meta, dir, text).await, Some(made.ino));
        }
        let file = found(&meta, dir, "file").await.expect("it was made");
        let answers = at_once(&clients, move |_, meta| async move {
            answer(meta.link(&Caller::root(), file, dir, &name("link")).await)
        });
        winner(answers.await, Errno::EEXIST);
        assert_eq!(sh.attr(file).await.nlink, 2);

        // To one name from one each, then from one name to one each.
        let mut own = Vec::new();
        for number in 0..CLIENTS {
            own.push(sh.file(dir, &format!("own{number}")).await);
        }
        let answers = at_once(&clients, move |number, meta| async move {
            Shell(&meta).mv((dir, &format!("own{number}")), (dir, "target"), NoReplace).await
        });
        let (won, moved) = winner(answers.await, Errno::EEXIST);
        assert_eq!((moved, found(&meta, dir, "target").await), (own[won], Some(own[won])));
        for (number, ino) in own.iter().enumerate() {
            let kept = (number != won).then_some(*ino);
            assert_eq!(found(&meta, dir, &format!("own{number}")).await, kept);
        }
        let answers = at_once(&clients, move |number, meta| async move {
            Shell(&meta).mv((dir, "target"), (dir, &format!("to{number}")), Replace).await
        });
        let (won, _) = winner(answers.await, Errno::ENOENT);
        assert_eq!(found(&meta, dir, "target").await, None);
        assert_eq!(found(&meta, dir, &format!("to{won}")).await, Some(moved));

        let answers = at_once(&clients, move |_, meta| async move { Shell(&meta).rmdir(dir, "dir").await });
        winner(answers.await, Errno::ENOENT);
        let answers = at_once(&clients, move |_, meta| async move {
            answer(meta.unlink(&Caller::root(), dir, &name("file"), true).await)
        });
        let (_, removed) = winner(answers.await, Errno::ENOENT);
        assert_eq!((removed.ino, removed.attr.nlink, removed.freed), (file, 1, false));
        end(&clients).await;
    }
}

/// A directory that goes takes nothing along, and an exchange is nobody's loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_fit_an_order() {
    let clients = clients(CLIENTS).await;
    let meta = clients[0].clone();
    let sh = Shell(&meta);
    for round in 0..4 {
        let text = format!("d{round}");
        let dir = sh.dir(ROOT, &text).await;
        let answers = at_once(&clients, |number, meta| {
            let text = text.clone();
            async move {
                if number == 0 {
                    // At another moment each time.
                    for _ in 0..round {
                        meta.getattr(ROOT).await.expect("the root is there");
                    }
                    return Shell(&meta).rmdir(ROOT, &text).await;
                }
                let made = meta.create(&Caller::root(), dir, &name(&format!("f{number}")), &node(Kind::File)).await;
                answer(made).map(|made| made.ino)
            }
        });
        let mut answers = answers.await;
        let removed = answers.remove(0);
        let expected = match removed {
            Ok(_) => answers.iter().all(|made| *made == Err(Errno::ENOENT)),
            Err(errno) => errno == Errno::ENOTEMPTY && answers.iter().all(Result::is_ok),
        };
        assert!(expected, "rmdir {removed:?}, creates {answers:?}");
        assert_eq!(found(&meta, ROOT, &text).await.is_some(), removed.is_err());
    }

    // The last name goes while others come.
    for round in 0..3 {
        let text = format!("f{round}");
        let file = sh.file(ROOT, &text).await;
        let answers = at_once(&clients, |number, meta| {
            let text = text.clone();
            async move {
                if number == 0 {
                    return answer(meta.unlink(&Caller::root(), ROOT, &name(&text), true).await).map(|gone| gone.freed);
                }
                answer(meta.link(&Caller::root(), file, ROOT, &name(&format!("l{round}-{number}"))).await)
                    .map(|_| false)
            }
        });
        let mut answers = answers.await;
        let freed = answers.remove(0).expect("the name was there");
        let linked = answers.iter().filter(|link| link.is_ok()).count();
        assert!(answers.iter().all(|link| matches!(link, Ok(false) | Err(Errno::ENOENT))), "{answers:?}");
        assert_eq!(linked, if freed { 0 } else { CLIENTS - 1 }, "freed: {freed}, {answers:?}");
        if !freed {
            assert_eq!(sh.attr(file).await.nlink as usize, linked);
        }
    }

    let (a, b) = (sh.file(ROOT, "a").await, sh.file(ROOT, "b").await);
    let odd = &clients[1..];
    let answers = at_once(odd, move |_, meta| async move { Shell(&meta).mv((ROOT, "a"), (ROOT, "b"), Exchange).await });
    let moved: Vec<Ino> = answers.await.into_iter().map(|moved| moved.expect("both are there")).collect();
    let from_a = moved.iter().filter(|ino| **ino == a).count();
    assert_eq!((moved.len(), from_a), (odd.len(), odd.len().div_ceil(2)), "they take turns: {moved:?}");
    assert_eq!((found(&meta, ROOT, "a").await, found(&meta, ROOT, "b").await), (Some(b), Some(a)));
    end(&clients).await;
}

/// What a client has done, as it was told.
#[derive(Default)]
struct Told {
    /// Names that came and went. Whatever is done here replaces nothing, so this is what must be there.
    balance: BTreeMap<&'static str, i64>,
    /// The slices that were taken, by file.
    appended: BTreeMap<Ino, BTreeSet<u64>>,
    done: u64,
}

impl Told {
    fn count<T>(&mut self, came: Option<&'static str>, went: Option<&'static str>, outcome: Outcome<T>) {
        if answer(outcome).is_err() {
            return;
        }
        self.done += 1;
        came.into_iter().for_each(|text| *self.balance.entry(text).or_default() += 1);
        went.into_iter().for_each(|text| *self.balance.entry(text).or_default() -= 1);
    }
}

async fn step(meta: &Meta, dir: Ino, random: &mut StdRng, slice: u64, told: &mut Told) {
    let (root, old) = (Caller::root(), NAMES[random.random_range(0..NAMES.len())]);
    let new = NAMES[random.random_range(0..NAMES.len())];
    match random.random_range(0..14) {
        0 | 1 => told.count(Some(old), None, meta.create(&root, dir, &name(old), &node(Kind::File)).await),
        2 | 3 => told.count(Some(old), None, meta.create(&root, dir, &name(old), &node(Kind::Directory)).await),
        4 => told.count(None, Some(old), meta.unlink(&root, dir, &name(old), true).await),
        5 => told.count(None, Some(old), meta.rmdir(&root, dir, &name(old), true).await),
        6 | 7 if old != new => {
            let moved = meta.rename(&root, dir, &name(old), dir, &name(new), NoReplace).await;
            told.count(Some(new), Some(old), moved);
        }
        8 if old != new => told.count(None, None, meta.rename(&root, dir, &name(old), dir, &name(new), Exchange).await),
        _ => {
            let Ok(entry) = answer(Shell(meta).look(dir, old).await) else { return };
            if random.random_bool(0.4) {
                return told.count(Some(new), None, meta.link(&root, entry.ino, dir, &name(new)).await);
            }
            let part = Slice { pos: slice as u32 * 10, id: SliceId(slice), size: 10, off: 0, len: 10 };
            if answer(meta.append_slice(entry.ino, FIRST, part, Timestamp::new(1, 0)).await).is_ok() {
                told.done += 1;
                told.appended.entry(entry.ino).or_default().insert(slice);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_what_is_there() {
    let clients = clients(CLIENTS).await;
    let meta = clients[0].clone();
    let dir = Shell(&meta).dir(ROOT, "d").await;
    let told = at_once(&clients, move |number, meta| async move {
        let (mut random, mut told) = (StdRng::seed_from_u64(number as u64), Told::default());
        for round in 0..STEPS {
            step(&meta, dir, &mut random, number as u64 * STEPS + round + 1, &mut told).await;
        }
        told
    });
    let (mut balance, mut appended) = (BTreeMap::new(), BTreeMap::<Ino, BTreeSet<u64>>::new());
    let told = told.await;
    // A single client may be late for everything.
    assert!(told.iter().map(|told| told.done).sum::<u64>() > STEPS, "hardly anything was done");
    for told in told {
        told.balance.into_iter().for_each(|(text, count)| *balance.entry(text).or_insert(0) += count);
        told.appended.into_iter().for_each(|(ino, slices)| appended.entry(ino).or_default().extend(slices));
    }
    for text in NAMES {
        let there = found(&meta, dir, text).await;
        let count = balance.get(text).copied().unwrap_or(0);
        assert_eq!(count, i64::from(there.is_some()), "{text}: {there:?}, and {balance:?}");
        let Some(ino) = there else { continue };
        let slices = meta.read_chunk(ino, FIRST).await.expect("read");
        let stored: Vec<u64> = slices.iter().map(|slice| slice.id.0).collect();
        let once: BTreeSet<u64> = stored.iter().copied().collect();
        assert_eq!(once.len(), stored.len(), "{text} has a slice twice: {stored:?}");
        // Another name may lead to the same file.
        assert_eq!(once, appended.get(&ino).cloned().unwrap_or_default(), "{text}");
        let length = slices.iter().map(|slice| u64::from(slice.pos + slice.len)).max();
        let attr = Shell(&meta).attr(ino).await;
        assert!(attr.is_dir() || attr.length == length.unwrap_or(0), "{text} is {} long, not {length:?}", attr.length);
    }
    end(&clients).await;
}
