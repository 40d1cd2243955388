//! Object checksums from end to end: what one client stores in S3 the other checks, and a byte that became another one
//! on the way is an error and never data (`spec/data.md` section 6).

use crate::harness::{Engine, SLUICE, Store, Volume, Weed, ready};
use crate::peer::peer;
use crate::proxy::{HttpProxy, Trouble};
use std::fs;
use std::time::{Duration, Instant};

/// One block each, which is asked for as a whole: parts of objects are not checked.
fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(100_000).collect()
}

#[test]
fn a_byte_that_changes_on_the_way_is_noticed_by_both() {
    const NAMES: [&str; 2] = ["ours", "theirs"];
    if !ready(&["weed", "juicefs"]) {
        return;
    }
    let proxy = HttpProxy::to(Weed::shared().s3_port, 1);
    let mut volume = Volume::unformatted(Engine::Sqlite);
    volume.s3_port = Some(proxy.port);
    volume.run_format(SLUICE, Store::S3, &["--trash-days", "0"]);
    let programs = || [SLUICE.into(), peer()];
    for (program, name) in programs().into_iter().zip(NAMES) {
        let mount = volume.mount_with(program, &[]);
        fs::write(mount.path(name), content(name)).expect("written");
        mount.umount();
    }
    for program in programs() {
        let mount = volume.mount_with(&program, &["--io-retries", "1"]);
        let told = |name: &str| format!("{name} through {}", program.display());
        proxy.set(&[Trouble::Flip], 1.0);
        for name in NAMES {
            let before = proxy.spoilt();
            let read = fs::read(mount.path(name));
            assert_eq!(read.map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)), "{}", told(name));
            assert!(proxy.spoilt() > before, "nothing was asked for: {}", told(name));
        }
        proxy.set(&[], 0.0);
        for name in NAMES {
            let begun = Instant::now();
            let read = loop {
                match fs::read(mount.path(name)) {
                    Ok(read) => break read,
                    Err(e) => assert!(begun.elapsed() < Duration::from_secs(20), "{e}: {}", told(name)),
                }
                std::thread::sleep(Duration::from_millis(200));
            };
            assert!(read == content(name), "{}", told(name));
        }
        mount.umount();
    }
}
