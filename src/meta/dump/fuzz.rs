//! Harnesses for the two forms of dumps: whatever is loaded is a volume that dumps again, and whatever is refused has a
//! reason and leaves nothing.

use super::{Course, DumpOptions, Loaded, binary, binary_load, json, json_load};
use crate::base::{Fault, Ino, Outcome};
use crate::meta::engine::Engine;
use crate::meta::engine::mem::MemEngine;
use crate::meta::outside;
use crate::meta::record::Key;
use crate::util::task::stop_signal;
use bytes::Bytes;
use std::sync::Arc;

fn admit(document: &[u8]) -> Result<Bytes, Fault> {
    Ok(Bytes::copy_from_slice(document))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}

async fn judge(engine: &dyn Engine, loaded: Outcome<Loaded>, course: &Course) {
    let setting = outside(engine.read(&[Key::Setting]).await).expect("memory can be read");
    match loaded {
        Ok(_) => {
            assert!(setting[0].is_some(), "a volume without a format document was loaded");
            let options = DumpOptions { setting: b"{}".to_vec(), top: Ino::ROOT, skip_trash: false, threads: 1 };
            // A binary dump may hold a directory inside of itself; nothing else is refused.
            if let Err(stop) = json::dump(engine, &options, &mut Vec::new(), course).await {
                crate::fuzzing::sentence(&stop);
            }
            binary::dump(engine, &options, &mut Vec::new(), course).await.expect("records can be dumped");
        }
        Err(stop) => {
            crate::fuzzing::sentence(&stop);
            assert!(setting[0].is_none(), "half a volume was left");
        }
    }
}

fn course() -> (Course, crate::util::task::Stopper) {
    let (stopper, stop) = stop_signal();
    (Course { tell: Arc::new(|_, _| ()), stop }, stopper)
}

pub fn json(mut data: &[u8]) {
    block_on(async {
        let (engine, (course, _stopper)): (Arc<dyn Engine>, _) = (Arc::new(MemEngine::default()), course());
        let loaded = json_load::load(&engine, &mut data, &admit, 2, &course).await;
        judge(&*engine, loaded, &course).await;
    });
}

pub fn binary(mut data: &[u8]) {
    block_on(async {
        let (engine, (course, _stopper)): (Arc<dyn Engine>, _) = (Arc::new(MemEngine::default()), course());
        let loaded = binary_load::load(&engine, &mut data, &admit, 2, &course).await;
        judge(&*engine, loaded, &course).await;
    });
}

pub fn json_dumps() -> Vec<Vec<u8>> {
    let golden = include_bytes!("golden/golden.json");
    let small = br#"{"Setting":{"a":[1,{"b":null}]},"Counters":{"nextInodes":9},"DelFiles":[{"inode":5,"length":6,"expire":7}],
        "Quotas":{"2":{"maxSpace":1}},"FSTree":{"attr":{"inode":1,"type":"directory","mode":511},"entries":{
        "a":{"attr":{"inode":2,"type":"directory","mode":1},"xattrs":[{"name":"u","value":"%FF"}],"entries":{}},
        "b":{"attr":{"inode":3,"type":"regular","length":9,"mode":1},"chunks":[{"index":0,"slices":[{"id":4,"size":9,"len":9}]}]},
        "c":{"attr":{"inode":3,"type":"regular","length":9,"mode":1}},"d":{"attr":{"inode":4,"type":"symlink"},"symlink":"\u00e9"}}}}"#;
    vec![golden.to_vec(), small.to_vec()]
}

pub fn binary_dumps() -> Vec<Vec<u8>> {
    vec![include_bytes!("golden/golden.bin").to_vec(), include_bytes!("golden/golden-redis.bin").to_vec()]
}
