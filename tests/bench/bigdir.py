#!/usr/bin/env python3
"""A directory of millions of entries through a mount: how soon its first names are there, and what a listing costs.

    bigdir.py --sluice target/release/sluice --meta sqlite3:///tmp/big.db --bucket /tmp/big-objects --entries 2000000

The volume at META is made and filled (`sluice load` of a dump that is written here) unless it is there. Then, each time
with a fresh mount: the first hundred names of a readdir, `ls -f`, and `ls -l`. Fails when the first names take longer
than a second or the client ever holds 512 MiB.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

FIRST_NAMES = 100
FIRST_SECONDS_MAX = 1.0
CLIENT_MIB_MAX = 512


def dump(path, entries, bucket):
    """Writes a dump of a volume with one directory of so many files."""
    setting = {
        "Name": "big", "UUID": "11111111-2222-4333-8444-555555555555", "Storage": "file", "Bucket": bucket + "/",
        "BlockSize": 4096, "Compression": "none", "TrashDays": 0, "MetaVersion": 1, "DirStats": True,
    }
    attr = '{{"attr":{{"inode":{},"type":"{}","mode":{},"uid":0,"gid":0,"atime":1,"mtime":1,"ctime":1,"nlink":1,"length":0}}'
    with open(path, "w") as out:
        out.write('{"Setting":%s,"Counters":{"nextInodes":%d,"nextChunk":1},' % (json.dumps(setting), entries + 3))
        out.write('"FSTree":' + attr.format(1, "directory", 511) + ',"entries":{"all":' + attr.format(2, "directory", 511))
        out.write(',"entries":{')
        for number in range(entries):
            separator = "," if number else ""
            out.write('%s"a file of some length %08d":%s}' % (separator, number, attr.format(number + 3, "regular", 420)))
        out.write("}}}}}\n")


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Mount:
    def __init__(self, sluice, meta):
        self.dir = tempfile.mkdtemp(prefix="bigdir-")
        command = [sluice, "mount", meta, self.dir, "--no-usage-report", "--cache-dir", "memory"]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while not os.path.ismount(self.dir):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                sys.exit("the mount does not come up: " + self.log.read().decode(errors="replace"))
            time.sleep(0.05)

    def peak_mib(self):
        """The most that any process of the mount ever held."""
        pids = [self.process.pid]
        for pid in pids:
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                pids.extend(int(child) for child in children.read().split())
        peaks = []
        for pid in pids:
            with open(f"/proc/{pid}/status") as status:
                peaks += [int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM")]
        return max(peaks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        run("umount", self.dir)
        self.process.wait(30)
        os.rmdir(self.dir)


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("length", ctypes.c_uint16), ("kind", ctypes.c_uint8),
                ("name", ctypes.c_char * 256)]


def first_names(path, count):
    """As a program that reads no further: no more of the directory is asked for than readdir(3) itself asks."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype, libc.readdir.restype = ctypes.c_void_p, ctypes.POINTER(Dirent)
    stream = libc.opendir(path.encode())
    if not stream:
        raise OSError(ctypes.get_errno(), path)
    names = [libc.readdir(ctypes.c_void_p(stream)).contents.name for _ in range(count)]
    libc.closedir(ctypes.c_void_p(stream))
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--meta", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--entries", type=int, default=2_000_000)
    args = parser.parse_args()
    there = subprocess.run([args.sluice, "status", args.meta], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if there.returncode != 0:
        os.makedirs(args.bucket, exist_ok=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            dump(file.name, args.entries, args.bucket)
            began = time.monotonic()
            run(args.sluice, "load", args.meta, file.name)
            print(f"loaded {args.entries} entries in {time.monotonic() - began:.0f} s", flush=True)
    wrong = []
    with Mount(args.sluice, args.meta) as mount:
        began = time.monotonic()
        names = first_names(mount.dir + "/all", FIRST_NAMES)
        seconds = time.monotonic() - began
        print(f"first {len(set(names))} names: {seconds:.3f} s", flush=True)
        if seconds > FIRST_SECONDS_MAX:
            wrong.append("the first names take too long")
    for command in (["ls", "-f"], ["ls", "-l"]):
        with Mount(args.sluice, args.meta) as mount:
            began = time.monotonic()
            listed = subprocess.run([*command, mount.dir + "/all"], check=True, stdout=subprocess.PIPE).stdout
            seconds, lines, peak = time.monotonic() - began, listed.count(b"a file of some"), mount.peak_mib()
            print(f"{' '.join(command)}: {lines} lines in {seconds:.1f} s, client at most {peak} MiB", flush=True)
            if lines != args.entries:
                wrong.append(f"{' '.join(command)} lists {lines} entries")
            if peak >= CLIENT_MIB_MAX:
                wrong.append(f"{' '.join(command)} takes {peak} MiB of the client")
    sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
