"""Which mappings of a process grew: what explains a step of its VmRSS. Standard library only."""
import pathlib

KIB = 1 << 10


def resident(pid):
    """{(first address, name): resident bytes} of a process; names of files without their folders,
    "anonymous 299084 KiB" where there is none (its size at the time)."""
    out, key = {}, None
    with open(f"/proc/{pid}/smaps") as stream:
        for line in stream:
            words = line.split()
            if "-" in words[0]:
                begin, end = (int(part, 16) for part in words[0].split("-"))
                name = pathlib.Path(words[5]).name if len(words) > 5 else \
                    f"anonymous {(end - begin) // KIB} KiB"
                key = (begin, name)
            elif words[0] == "Rss:":
                out[key] = int(words[1]) * KIB
    return out


def moved(before, after, least=64 * KIB):
    """{name: bytes} of the mappings whose resident bytes differ by `least` or more."""
    out = {}
    for key in before.keys() | after.keys():
        change = after.get(key, 0) - before.get(key, 0)
        if abs(change) >= least:
            out[key[1]] = out.get(key[1], 0) + change
    return out


class Follower:
    """Says at which times the sum moved by more than `step` bytes, and by which mappings."""

    def __init__(self, step=1 << 20):
        self.step, self.last, self.steps = step, None, []

    def look(self, pid, seconds):
        try:
            now = resident(pid)
        except OSError:
            return  # it has ended
        if self.last is None:
            self.last = now
        elif abs(sum(now.values()) - sum(self.last.values())) > self.step:
            self.steps.append((seconds, moved(self.last, now)))
            self.last = now
