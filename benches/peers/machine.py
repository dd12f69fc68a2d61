"""Runs a program and measures what it and the others on the machine used meanwhile."""

import os
import pathlib
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    pass


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def busy_seconds():
    """Processor time of everything on the machine, and what the hypervisor took from it."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def used(usage, seconds, began, busy):
    """What a process used that `usage` is of, and the others on the machine since `began`, when
    `busy_seconds` was `busy`."""
    took = time.monotonic() - began
    own = usage.ru_utime + usage.ru_stime
    return {
        "seconds": took if seconds is None else seconds,
        "rss_mib": usage.ru_maxrss / 1024,
        "foreign": max(0.0, (busy_seconds() - busy - own) / (took * os.cpu_count())),
    }


def run(command, environment=None, timeout=1800, until_output=False):
    """Runs `command`. Returns its output, and a dict with `rss_mib` (the most memory it held), `seconds`
    (to its first output with `until_output`, when it is ended), and `foreign`: the share of all
    processors that others had."""
    environment = {**os.environ, **(environment or {})}
    with tempfile.TemporaryFile() as errors:
        busy, began = busy_seconds(), time.monotonic()
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        timer = _kill_after(child, timeout)
        output = child.stdout.read(1) if until_output else b""
        first = time.monotonic() - began
        if until_output and output:
            child.kill()
        output += child.stdout.read()
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        ended_here = until_output and output
        if not ended_here and (child.returncode or until_output):
            errors.seek(0)
            tail = errors.read().decode(errors="replace")[-3000:]
            what = f"status {child.returncode}" if child.returncode else "no output"
            raise Failed(f"{' '.join(map(str, command))}: {what}\n{tail}")
    return output.decode(errors="replace"), used(usage, first if until_output else None, began, busy)


def _kill_after(child, timeout):
    timer = threading.Timer(timeout, child.kill)
    timer.daemon = True
    timer.start()
    return timer
