#!/bin/bash
# The first mount, on a fresh Debian 12 machine with rustup's stable toolchain, as root: installs what is missing,
# builds, formats a volume on SQLite over a local directory, mounts it, copies a source tree and a large file in,
# mounts anew, reads everything back against checksums, shows status and a few figures, and cleans up.
# SLUICE_PROFILE=dev builds faster and runs slower.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${SLUICE_CACHE:-$HOME/.cache/sluicefs}/target}

need=()
for pair in gcc:gcc g++:g++ git:git fusermount3:fuse3; do
    command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
if [ ${#need[@]} -gt 0 ]; then
    echo "== installing ${need[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${need[@]}" >/dev/null
fi
[ -e /dev/fuse ] || mknod /dev/fuse c 10 229

echo "== building (the first time takes some minutes)"
profile=${SLUICE_PROFILE:-release}
cargo build --profile "$profile" --bin sluice
sluice=$CARGO_TARGET_DIR/${profile/dev/debug}/sluice

work=$(mktemp -d)
mnt=$work/mnt
cleanup() {
    if mountpoint -q "$mnt"; then "$sluice" umount "$mnt" || umount -l "$mnt"; fi
    rm -rf "$work"
}
trap cleanup EXIT
meta=sqlite3://$work/meta.db
mount_it() { "$sluice" mount -d --log "$work/log" --cache-dir "$work/cache" "$meta" "$mnt"; }
seconds() { local start=$EPOCHREALTIME; "$@"; awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'; }

echo "== a volume on SQLite over $work/objects"
"$sluice" format --storage file --bucket "$work/objects/" "$meta" first
mkdir "$mnt"
mount_it

echo "== copying a source tree and a file of 512 MiB in"
mkdir "$work/tree"
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$work/tree"
head -c 512M /dev/urandom >"$work/large"
tree_in=$(seconds cp -a "$work/tree" "$mnt/tree")
large_in=$(seconds cp "$work/large" "$mnt/large")

echo "== mounting anew and reading everything back"
"$sluice" umount "$mnt"
mount_it
(cd "$work" && find tree large -type f -print0 | sort -z | xargs -0 sha256sum >"$work/sums")
check() { (cd "$mnt" && sha256sum --quiet -c "$work/sums"); }
read_back=$(seconds check)
diff -r "$work/tree" "$mnt/tree"

"$sluice" status "$meta"
files=$(wc -l <"$work/sums")
echo "== $files files read back with equal checksums"
printf '   source tree in   %8s s\n   512 MiB in       %8s s  (%s MiB/s)\n   all read back    %8s s\n' \
    "$tree_in" "$large_in" "$(awk -v s="$large_in" 'BEGIN { printf "%.0f", 512 / s }')" "$read_back"
df -h "$mnt"
"$sluice" umount "$mnt"
echo "== done; $work is removed"
