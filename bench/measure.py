"""Runs one command and measures what it used; the standard library only.

What is measured, and how exactly:
  peak_rss      wait4's ru_maxrss, the kernel's own maximum; where that is not above
                our own size (a child inherits its parent's size at exec as a floor),
                VmHWM of /proc/PID/status as sampled (a maximum too, so only growth in
                the last sample interval can be missed).
  peak_private  largest sampled RssAnon + RssShmem + VmSwap: what no page cache explains.
  read_bytes    /proc/PID/io of the ended, not yet reaped process: exact. It counts
                bytes fetched from the block device for this process (io_uring too).
  cgroup        limit, peak and OOM kills of a memory cgroup, v1 or v2.
"""
import mmap
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time

# Sampling takes about 0.1 ms of a CPU: seldom while speed is measured, often for peaks.
SELDOM_S, OFTEN_S = 0.1, 0.005
SMAPS_EVERY = 10  # smaps_rollup walks page tables: once in this many samples


def evict(path):
    """Drops a file's pages from the page cache. Someone who maps it keeps them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def warm(path):
    """Reads a file once, so that its pages are in the page cache."""
    with open(path, "rb", buffering=0) as stream:
        buffer = bytearray(8 << 20)
        while stream.readinto(buffer):
            pass


def disk_bandwidth(path):
    """Bytes a second of large direct reads of the file, or None where O_DIRECT is
    refused. In a process of its own, whose buffers then do not count as ours."""
    done = subprocess.run([sys.executable, __file__, "disk", str(path)],
                          capture_output=True, text=True, check=True)
    return float(done.stdout) or None


def _direct_reads(path, count=1 << 30, block=4 << 20, depth=8):
    """Bytes a second of O_DIRECT reads: `depth` threads, `block` bytes a read, at most
    about `count` bytes, evenly over the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    blocks = os.fstat(descriptor).st_size // block
    if blocks == 0:
        os.close(descriptor)
        return None
    step = max(1, blocks * block // count)
    offsets = [i * block for i in range(0, blocks, step)]
    # A small file is read again and again: a twentieth of a second is no measurement.
    offsets *= max(1, count // 2 // (len(offsets) * block))
    lock, done = threading.Lock(), [0]
    ready = threading.Barrier(depth + 1)

    def work():
        buffer = mmap.mmap(-1, block)  # page-aligned, as O_DIRECT wants
        buffer.write(bytes(block))     # and backed by memory before the clock starts
        ready.wait()
        while True:
            with lock:
                if not offsets:
                    return
                offset = offsets.pop()
            got = os.preadv(descriptor, [buffer], offset)
            with lock:
                done[0] += got

    threads = [threading.Thread(target=work) for _ in range(depth)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    os.close(descriptor)
    return done[0] / seconds


class Cgroup:
    """A memory cgroup of its own, for one command; needs root.

    v1: the memory hierarchy; v2: the unified one where it has the controller."""

    def __init__(self, limit):
        self.limit = limit
        name = f"headrace-bench-{os.getpid()}-{time.monotonic_ns()}"
        for root, version in (("/sys/fs/cgroup/memory", 1), ("/sys/fs/cgroup", 2)):
            path = pathlib.Path(root) / name
            probe = "memory.limit_in_bytes" if version == 1 else "memory.max"
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / probe).exists():
                self.path, self.version = path, version
                (path / probe).write_text(str(limit))
                if version == 2 and (path / "memory.swap.max").exists():
                    (path / "memory.swap.max").write_text("0")
                return
            path.rmdir()
        raise RuntimeError("no writable memory cgroup (v1 or v2); run as root")

    def join(self):
        """Called in the child, before exec."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def facts(self):
        """{limit, peak, oom_kills}; peak counts page cache too, up to the limit."""
        peak = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        events = "memory.oom_control" if self.version == 1 else "memory.events"
        kills = 0
        for line in (self.path / events).read_text().splitlines():
            if line.startswith("oom_kill "):
                kills = int(line.split()[1])
        try:
            highest = int((self.path / peak).read_text())
        except OSError:
            highest = None  # v2 before Linux 5.19
        return {"limit": self.limit, "peak": highest, "oom_kills": kills}

    def close(self):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def proc_fields(path, wanted):
    """{field: bytes} of a /proc file with lines "Name:  123 kB"."""
    out = {}
    try:
        with open(path) as stream:
            for line in stream:
                name, _, rest = line.partition(":")
                if name in wanted:
                    out[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return out


class Sampler(threading.Thread):
    """Follows one process until told to stop."""

    def __init__(self, pid, every_s):
        super().__init__(daemon=True)
        self.pid, self.every_s, self.stopped = pid, every_s, threading.Event()
        self.peak_rss = self.peak_private = self.peak_pss = self.peak_page_tables = 0

    def run(self):
        count = 0
        while not self.stopped.is_set():
            status = proc_fields(f"/proc/{self.pid}/status",
                                 ("VmHWM", "RssAnon", "RssShmem", "VmSwap", "VmPTE"))
            self.peak_rss = max(self.peak_rss, status.get("VmHWM", 0))
            private = sum(status.get(k, 0) for k in ("RssAnon", "RssShmem", "VmSwap"))
            self.peak_private = max(self.peak_private, private)
            self.peak_page_tables = max(self.peak_page_tables, status.get("VmPTE", 0))
            if count % SMAPS_EVERY == 0:
                rollup = proc_fields(f"/proc/{self.pid}/smaps_rollup", ("Pss",))
                self.peak_pss = max(self.peak_pss, rollup.get("Pss", 0))
            count += 1
            self.stopped.wait(self.every_s)


def _io(pid):
    out = {}
    try:
        with open(f"/proc/{pid}/io") as stream:
            for line in stream:
                name, _, value = line.partition(":")
                out[name] = int(value)
    except OSError:
        pass
    return out


def run(command, limit=None, timeout_s=None, cpus=None, every_s=SELDOM_S,
        on_start=None):
    """Runs a command; returns a dict of what it gave and used.

    limit: bytes of a memory cgroup. cpus: a list as taskset takes it ("0", "0,1").
    on_start: called with the process's id once it is there.
    The dict: rc (negative: the signal), timed_out, wall_s, first_output_s (seconds to
    the first byte of stdout, or None), cpu_s, stdout, stderr (text), peak_rss,
    peak_private, peak_pss, peak_page_tables, read_bytes, major_faults, cgroup, load1.
    """
    if cpus:
        command = ["taskset", "-c", cpus, *command]
    group = Cgroup(limit) if limit else None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    load = os.getloadavg()[0]
    begin = time.monotonic()
    child = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=group.join if group else None, start_new_session=True)
    sampler = Sampler(child.pid, every_s)
    sampler.start()
    if on_start:
        on_start(child.pid)
    out, err, first = [], [], []

    def drain(stream, chunks, note_first):
        while chunk := os.read(stream.fileno(), 65536):
            if note_first and not first:
                first.append(time.monotonic() - begin)
            chunks.append(chunk)

    readers = [threading.Thread(target=drain, args=(child.stdout, out, True)),
               threading.Thread(target=drain, args=(child.stderr, err, False))]
    for reader in readers:
        reader.start()
    timed_out = [False]

    def give_up():
        timed_out[0] = True
        os.killpg(child.pid, signal.SIGKILL)

    alarm = threading.Timer(timeout_s, give_up) if timeout_s else None
    if alarm:
        alarm.start()
    # WNOWAIT leaves the ended process in /proc, whose io file then is final.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    wall = time.monotonic() - begin
    if alarm:
        alarm.cancel()
    counters = _io(child.pid)
    sampler.stopped.set()
    sampler.join()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    for reader in readers:
        reader.join()
    child.stdout.close()
    child.stderr.close()
    exact = usage.ru_maxrss * 1024
    facts = group.facts() if group else None
    if group:
        group.close()
    return {
        "command": [str(word) for word in command], "rc": child.returncode,
        "timed_out": timed_out[0], "wall_s": wall,
        "first_output_s": first[0] if first else None,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "stdout": b"".join(out).decode("utf-8", "replace"),
        "stderr": b"".join(err).decode("utf-8", "replace"),
        "peak_rss": exact if exact > own else sampler.peak_rss,
        "peak_private": sampler.peak_private, "peak_pss": sampler.peak_pss,
        "peak_page_tables": sampler.peak_page_tables,
        "read_bytes": counters.get("read_bytes"), "major_faults": usage.ru_majflt,
        "cgroup": facts, "load1": load,
    }


def spread(values):
    """{median, least, most, n} of the numbers in `values` that are not None."""
    numbers = [v for v in values if v is not None]
    if not numbers:
        return {"median": None, "least": None, "most": None, "n": 0}
    return {"median": statistics.median(numbers), "least": min(numbers),
            "most": max(numbers), "n": len(numbers)}


def alternate(first, second, repetitions):
    """Calls the two functions A B A B ...; returns both lists of results. Drift of the
    machine then falls on both alike."""
    a, b = [], []
    for _ in range(repetitions):
        a.append(first())
        b.append(second())
    return a, b


def machine():
    """What the numbers were measured on."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines()
                  if line.startswith("model name")), "unknown")
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines()
                  if line.startswith("flags")), [])
    memory = proc_fields("/proc/meminfo", ("MemTotal", "SwapTotal"))
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": os.uname().release,
            "memory_bytes": memory.get("MemTotal"), "swap_bytes": memory.get("SwapTotal"),
            "avx512_vnni": "avx512_vnni" in flags}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "disk":
        sys.exit("usage: measure.py disk FILE")
    print(_direct_reads(sys.argv[2]) or 0.0)
