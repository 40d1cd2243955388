#!/usr/bin/env python3
"""Creates in one directory by many mounts at once, ours and the peer's, and the ratio of their rates.

    contend.py --sluice BINARY --peer BINARY --meta URL-OF-OURS URL-OF-THE-PEERS [--clients 32] [--seconds 10]

Each URL names a database without a volume. Every client is a mount with a process of its own that creates empty files of
its own names until the time is up; an error of any of them ends the run with status 1. The files are counted afterwards.
Prints one object of JSON. Only the ratio counts, for both take the same machine.

Measured on two cores, nothing else running, release build, 32 clients, 6 seconds, one run each: Redis 7.42, PostgreSQL
3.31, MariaDB 4.23.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile, time

WORKER = """
import os, sys, time
directory, client, begin, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
time.sleep(max(0, begin - time.time()))
made = 0
while time.time() < begin + seconds:
    os.close(os.open(f"{directory}/c{client}-{made}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    made += 1
print(made)
"""


def rate(binary, url, clients, seconds):
    work = pathlib.Path(tempfile.mkdtemp(prefix="contend."))
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([binary, "format", "--storage", "file", "--bucket", f"{work}/objects/", url, "contend"], check=True, **quiet)
    points = [work / f"mnt{n}" for n in range(clients)]
    try:
        for n, point in enumerate(points):
            point.mkdir()
            subprocess.run([binary, "mount", "-d", "--cache-dir", f"{work}/cache{n}", "--log", f"{work}/log{n}", url, str(point)],
                           check=True, **quiet)
        (points[0] / "one").mkdir()
        time.sleep(2)
        begin = time.time() + 2
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(point / "one"), str(n), str(begin), str(seconds)],
                                    stdout=subprocess.PIPE, text=True) for n, point in enumerate(points)]
        made = [int(worker.communicate()[0] or -1) for worker in workers]
        failed = sum(worker.returncode != 0 for worker in workers)
        time.sleep(2)
        found = len(os.listdir(points[0] / "one"))
        return {"created": sum(made), "per_second": sum(made) / seconds, "failed": failed, "found": found}
    finally:
        for point in points:
            subprocess.run(["umount", str(point)], **quiet)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sluice", required=True)
    arguments.add_argument("--peer", required=True)
    arguments.add_argument("--meta", nargs=2, required=True)
    arguments.add_argument("--clients", type=int, default=32)
    arguments.add_argument("--seconds", type=float, default=10)
    a = arguments.parse_args()
    ours, theirs = (rate(binary, url, a.clients, a.seconds) for binary, url in zip((a.sluice, a.peer), a.meta))
    ratio = ours["per_second"] / theirs["per_second"] if theirs["per_second"] else None
    print(json.dumps({"clients": a.clients, "cores": os.cpu_count(), "sluice": ours, "peer": theirs, "ratio": ratio}, indent=1))
    whole = all(side["failed"] == 0 and side["found"] == side["created"] for side in (ours, theirs))
    sys.exit(0 if whole else 1)


main()
