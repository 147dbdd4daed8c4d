"""What the figures of a run belong to: processor, memory, versions, date."""
import datetime
import json
import os
import platform
import subprocess
import time


def read(path, key):
    with open(path) as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith(key)), "")


def commit(folder):
    found = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def describe():
    flags = read("/proc/cpuinfo", "flags").split()
    return {
        "processor": read("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "vector_units": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags],
        "memory_gib": round(int(read("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "huge_pages": open("/sys/kernel/mm/transparent_hugepage/enabled").read().split("[")[1].split("]")[0],
        "kernel": platform.release(),
    }


def busy_share(seconds):
    """The share of all cores that was not idle meanwhile."""
    def ticks():
        with open("/proc/stat") as file:
            values = [int(value) for value in file.readline().split()[1:9]]
        return sum(values), values[3] + values[4]
    total, idle = ticks()
    time.sleep(seconds)
    later, later_idle = ticks()
    return 1 - (later_idle - idle) / max(1, later - total)


def wait_until_quiet(most_s=30):
    """Waits, at most so long, until others use less than 15 % of the machine."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and busy_share(1.0) > 0.15:
        time.sleep(1.0)


def save(path, command, record):
    """Writes a record with machine, date and command, in place of what was there."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    whole = {"command": command, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
             "commit": commit(root), "machine": describe(), **record}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".part", "w") as file:
        json.dump(whole, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)
