//! Listings answer what is true within their age, cost what they save, and stay within bounds.

use super::*;
use crate::base::{AttrPatch, Mode};
use crate::meta::Caller;
use crate::meta::engine::Change;
use crate::meta::engine::counting::CountingEngine;
use crate::meta::engine::mem::MemEngine;
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::rename::RenameMode;
use crate::object::mem::MemStore;
use crate::util::clock::SystemClock;
use crate::vfs::Vfs;
use crate::vfs::dirs::DirItem;
use crate::vfs::tests::client_believing;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const BELIEF: Duration = Duration::from_secs(1);

async fn client(engine: &Arc<CountingEngine>, belief: Duration) -> Arc<Vfs> {
    client_believing(engine.clone(), Arc::new(MemStore::new()), Arc::new(SystemClock), belief).await
}

fn engine() -> Arc<CountingEngine> {
    Arc::new(CountingEngine::new(Arc::new(MemEngine::default())))
}

fn name(number: usize) -> Name {
    Name::stored(format!("f{number}").into_bytes())
}

async fn create(vfs: &Vfs, number: usize, mode: Mode) -> Ino {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let made = vfs.create(&Caller::root(), Ino::ROOT, &name(number), mode, 0, flags).await;
    let (entry, opened) = made.expect("made");
    vfs.release(entry.ino, opened.handle).await.expect("closed");
    entry.ino
}

async fn look(vfs: &Vfs, number: usize) -> Option<Found> {
    let found = vfs.lookup(&Caller::root(), Ino::ROOT, &name(number)).await;
    // Listings are read in tasks of their own.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    found.ok()
}

async fn list(vfs: &Vfs) -> Vec<DirItem> {
    let handle = vfs.opendir(&Caller::root(), Ino::ROOT).await.expect("opened").handle;
    let mut items = Vec::new();
    loop {
        let offset = items.last().map_or(0, |item: &DirItem| item.next);
        let page = vfs.readdir(Ino::ROOT, handle, offset, true).await.expect("listed");
        if page.is_empty() {
            break;
        }
        items.extend(page);
    }
    vfs.releasedir(handle).await.expect("closed");
    items.retain(|item| item.name.as_bytes().starts_with(b"f"));
    items
}

/// Whether a lookup asks the metadata.
async fn asks(vfs: &Vfs, engine: &CountingEngine, number: usize) -> bool {
    engine.take();
    look(vfs, number).await.expect("there");
    engine.take().total() > 0
}

#[tokio::test(start_paused = true)]
async fn going_through_a_directory_by_name_takes_few_trips() {
    const FILES: usize = 300;
    for (belief, at_most) in [(BELIEF, WORTH_FIRST as u64 + 1), (Duration::ZERO, FILES as u64)] {
        let engine = engine();
        let (writer, reader) = (client(&engine, belief).await, client(&engine, belief).await);
        let mut inodes = Vec::new();
        for number in 0..FILES {
            inodes.push(create(&writer, number, 0o600).await);
        }
        engine.take();
        for (number, ino) in inodes.iter().enumerate() {
            let found = look(&reader, number).await.expect("there");
            assert_eq!(found.entry.ino, *ino);
        }
        assert_eq!(engine.take().total(), at_most, "{belief:?}");
        for (number, ino) in inodes.iter().enumerate() {
            let (found, attr) = (look(&reader, number).await.expect("there"), reader.meta().getattr(*ino).await);
            assert_eq!(Some(found.entry.attr), attr.ok());
        }
    }
}

/// Two clients on one directory. Each sees what it has changed itself at once, what the other one has within the belief
/// that is left to the answer, and never goes back.
#[tokio::test(start_paused = true)]
async fn answers_are_as_old_as_they_say_at_most() {
    const NAMES: usize = 24;
    let seed = std::env::var("SLUICE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("SLUICE_TEST_SEED={seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let engine = engine();
    let clients = [client(&engine, BELIEF).await, client(&engine, BELIEF).await];
    // What the directory was since when, and who changed it. A mode is a version: each is used once for an inode.
    type State = BTreeMap<usize, (Ino, Mode)>;
    let mut states: Vec<(Instant, State)> = vec![(Instant::now(), State::new())];
    // The last state in which each has given a name to a node, or taken it.
    let mut own = [[0; NAMES]; 2];
    // What each was told of a node.
    let mut told: [HashMap<Ino, Mode>; 2] = Default::default();
    let (mut from_listing, mut old, mut known) = (0, 0, 0);
    for _ in 0..4000 {
        if random.random_bool(0.3) {
            tokio::time::advance(Duration::from_millis(random.random_range(1..60))).await;
        }
        let (who, number) = (random.random_range(0..2), random.random_range(0..NAMES));
        let vfs = &clients[who];
        let mut now = states.last().expect("the first one").1.clone();
        if random.random_bool(0.03) {
            match now.get(&number).copied() {
                None => {
                    let ino = create(vfs, number, 1).await;
                    now.insert(number, (ino, 1));
                    own[who][number] = states.len();
                }
                Some((ino, mode)) if random.random_bool(0.3) => {
                    // Onto itself would be no change, and a kernel does not even ask for it.
                    let to = (number + random.random_range(1..NAMES)) % NAMES;
                    let (root, to_name) = (Caller::root(), name(to));
                    let how = RenameMode::Replace;
                    let moved = vfs.rename(&root, Ino::ROOT, &name(number), Ino::ROOT, &to_name, how).await;
                    moved.expect("moved");
                    now.remove(&number);
                    now.insert(to, (ino, mode));
                    (own[who][number], own[who][to]) = (states.len(), states.len());
                }
                Some((ino, mode)) if random.random_bool(0.7) => {
                    let set = SetAttr { mode: Some(mode + 1), ..SetAttr::default() };
                    vfs.setattr(&Caller::root(), ino, None, None, &set).await.expect("changed");
                    now.insert(number, (ino, mode + 1));
                    // A change of the node, under whatever name it is known to this client.
                    told[who].insert(ino, mode + 1);
                }
                Some(_) => {
                    vfs.unlink(&Caller::root(), Ino::ROOT, &name(number)).await.expect("removed");
                    now.remove(&number);
                    own[who][number] = states.len();
                }
            }
            states.push((Instant::now(), now));
            continue;
        }
        if random.random_bool(0.02)
            && let Some((ino, mode)) = now.get(&number)
        {
            assert_eq!(vfs.getattr(*ino).await.expect("there").mode, *mode);
            told[who].insert(*ino, *mode);
            continue;
        }
        if random.random_bool(0.01) {
            for item in list(vfs).await {
                let attr = item.attr.expect("there");
                let before = told[who].insert(item.ino, attr.mode);
                assert!(before.is_none_or(|before| before <= attr.mode), "listed as before");
            }
            continue;
        }
        // What a kernel asks for that has been told of the node, and believes its entry still.
        if random.random_bool(0.3)
            && let Some((ino, _)) = now.get(&number)
            && let Some(before) = told[who].get(ino).copied()
        {
            engine.take();
            let (attr, age) = vfs.getattr_for_kernel(*ino).await.expect("there");
            let asked = engine.take().total() > 0;
            assert!(age < BELIEF && (!asked || age.is_zero()));
            known += usize::from(!asked);
            let since = Instant::now() - age;
            let first = states.partition_point(|(at, _)| *at < since).saturating_sub(1);
            let mut modes = states[first..].iter().flat_map(|(_, state)| state.values());
            assert!(modes.any(|node| *node == (*ino, attr.mode)), "{ino} was {:o} {age:?} ago", attr.mode);
            assert!(before <= attr.mode, "went back from {before:?} to {}", attr.mode);
            told[who].insert(*ino, attr.mode);
            continue;
        }
        engine.take();
        let found = look(vfs, number).await;
        let asked = engine.take().total() > 0;
        let age = found.map_or(Duration::ZERO, |found| found.age);
        assert!(age < BELIEF);
        from_listing += usize::from(!asked);
        let found = found.map(|found| (found.entry.ino, found.entry.attr.mode));
        // The states that there were within the age of the answer, and since the client's own last change.
        let since = Instant::now() - age;
        let first = match asked {
            true => states.len() - 1,
            false => states.partition_point(|(at, _)| *at < since).saturating_sub(1).max(own[who][number]),
        };
        let allowed = |state: &State| state.get(&number).copied() == found;
        let from_now = states[first..].iter().rposition(|(_, state)| allowed(state));
        assert!(from_now.is_some(), "f{number} is {found:?} after {age:?}: {:?}", &states[first..]);
        old += usize::from(from_now != Some(states.len() - 1 - first));
        if let Some((ino, mode)) = found {
            let before = told[who].insert(ino, mode);
            assert!(before.is_none_or(|before| before <= mode), "went back from {before:?} to {mode}");
        }
    }
    // Else nothing was tried.
    assert!(from_listing > 100, "{from_listing} answers from listings");
    assert!(known > 100, "{known} answers from what is known");
    println!("{from_listing} answers from listings, {old} of them older than the last change");
}

/// What a program does with each file of a directory that it has made, or that it lists: `stat` asks for nothing, reading
/// takes one trip, removing one commit.
#[tokio::test(start_paused = true)]
async fn work_on_what_is_known_takes_no_more_trips_than_it_must() {
    let engine = engine();
    let vfs = client(&engine, BELIEF).await;
    let root = Caller::root();
    let mut inodes = Vec::new();
    for number in 0..50 {
        inodes.push(create(&vfs, number, 0o600).await);
    }
    tokio::time::advance(BELIEF / 2).await;
    engine.take();
    for ino in &inodes {
        vfs.getattr_for_kernel(*ino).await.expect("there");
    }
    assert_eq!(engine.take().total(), 0, "stat of what was just made");
    for ino in &inodes {
        let opened = vfs.open(&root, *ino, libc::O_RDONLY).await.expect("opened");
        vfs.read(*ino, opened.handle, 0, 10).await.expect("read");
        vfs.release(*ino, opened.handle).await.expect("closed");
    }
    assert_eq!(engine.take().total(), 50, "open, read, close");
    tokio::time::advance(Duration::from_secs(60)).await;
    list(&vfs).await;
    tokio::time::advance(BELIEF / 2).await;
    engine.take();
    for number in 0..50 {
        vfs.unlink(&root, Ino::ROOT, &name(number)).await.expect("removed");
    }
    let trips = engine.take();
    assert_eq!((trips.commit, trips.load + trips.scan), (50, 0), "unlink of what was listed");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_is_not_used_makes_the_next_one_dearer() {
    let engine = engine();
    let (writer, reader) = (client(&engine, BELIEF).await, client(&engine, BELIEF).await);
    for number in 0..2000 {
        create(&writer, number, 0o600).await;
    }
    for round in 0..3 {
        let mut asked = 0;
        // Always the same ones: each listing answers at most a few times.
        while asks(&reader, &engine, asked % 4).await {
            asked += 1;
        }
        assert_eq!(asked, WORTH_FIRST << round);
        tokio::time::advance(BELIEF).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_directory_is_left_alone() {
    let ahead = Ahead::new(BELIEF);
    let dir = Ino(9);
    let begins = |times: usize| (0..times).find_map(|_| ahead.looked_up(dir));
    let begun = begins(WORTH_FIRST).expect("worth it");
    assert!(begins(1000).is_none(), "it is being read");
    ahead.put(dir, begun, Read::TooMuch);
    tokio::time::advance(TOO_LARGE_FOR - Duration::from_millis(1)).await;
    assert!(begins(1000).is_none(), "it is left alone");
    ahead.tidy();
    assert!(begins(1000).is_none(), "it is left alone");
    tokio::time::advance(Duration::from_millis(1)).await;
    let begun = begins(WORTH_FIRST).expect("worth another try");
    // Another one was begun meanwhile: this one comes too late.
    ahead.listed(dir);
    let again = begins(WORTH_FIRST).expect("worth it");
    let node = Entry { ino: Ino(10), attr: crate::meta::ops::lookup::stub(crate::base::Kind::File) };
    let nodes = || Read::All(HashMap::from([(name(1), node)]));
    let known = Known::default();
    tokio::time::advance(Duration::from_millis(1)).await;
    ahead.put(dir, begun, nodes());
    assert_eq!(ahead.find(dir, &name(1), &known), None);
    let again = Begun { at: Instant::now(), ..again };
    ahead.put(dir, again, nodes());
    assert_eq!(ahead.find(dir, &name(1), &known).map(|found| found.entry), Some(node));
    assert_eq!(ahead.find(dir, &name(2), &known), None);
    let touch = |ino| Change::Patch(ino, AttrPatch::new().touch(crate::base::Timestamp::default()));
    known.committed(&[touch(Ino(11))], Instant::now(), true);
    assert!(ahead.find(dir, &name(1), &known).is_some());
    known.committed(&[touch(node.ino)], Instant::now(), true);
    assert_eq!(ahead.find(dir, &name(1), &known), None, "this client has changed it");
    let known = Known::default();
    ahead.asked(node.ino);
    assert_eq!(ahead.find(dir, &name(1), &known), None, "it was asked for since");
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_bounded() {
    let ahead = Ahead::new(BELIEF);
    let node = Entry { ino: Ino(10), attr: crate::meta::ops::lookup::stub(crate::base::Kind::File) };
    let nodes: HashMap<Name, Entry> = (0..LISTING_MAX / 4).map(|number| (name(number), node)).collect();
    for dir in 0..2 * DIRS_MAX as u64 {
        for _ in 0..WORTH_FIRST {
            if let Some(begun) = ahead.looked_up(Ino(dir)) {
                ahead.put(Ino(dir), begun, Read::All(nodes.clone()));
            }
        }
        ahead.asked(Ino(dir));
    }
    for ino in 0..3 * ENTRIES_MAX as u64 {
        ahead.asked(Ino(ino));
    }
    {
        let state = ahead.state.lock();
        assert!(state.dirs.len() <= DIRS_MAX && state.asked.len() <= 2 * ENTRIES_MAX);
        assert!(state.dirs.values().map(|dir| dir.listing.len()).sum::<usize>() <= ENTRIES_MAX);
    }
    tokio::time::advance(TOO_LARGE_FOR).await;
    ahead.tidy();
    let state = ahead.state.lock();
    assert!(state.dirs.is_empty() && state.asked.len() == 0);
}
