"""What kernel lines mean: real lines, and what looks like them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.classify.kernel_lines import MARKERS, classify
from watchdog.core.kernel import KernelKind

MEANT = [
    ("NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python, GPU has fallen off the bus.", "xid", 79, "0000:01:00.0"),
    ("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", "xid", 79, "0000:05:00.0"),
    (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, "
        "SM 0): Illegal Instruction Parameter",
        "xid",
        13,
        "0000:cb:00.0",
    ),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid", 14, "0000:03:00.0"),
    (
        "NVRM: Xid (PCI:00000000:B9:00.0): 119, pid=7, name=a, Timeout after 6s of waiting for RPC response",
        "xid",
        119,
        "0000:b9:00.0",
    ),
    ("NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1", "xid", 154, "0018:01:00.0"),
    (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        "xid",
        79,
        "0000:b3:00.0",
    ),
    ("NVRM: API mismatch: the client has the version 535.54.03, but\nNVRM: this kernel", "driver-mismatch", None, ""),
    (
        "NVRM: API mismatch: the client 'kwin_wayland' (pid 1005)\nNVRM: has the version 595.84, but this kernel",
        "driver-mismatch",
        None,
        "kwin_wayland",
    ),
    ("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75", "dxg-bridge", 75, ""),
    ("misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -110", "dxg-bridge", 110, ""),
    ("misc dxg: dxgk: dxgvmb_send_create_process: create_process returned 0 handle", "dxg-bridge", None, ""),
    ("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12", "dxg-residency", 12, ""),
    (
        "Out of memory: Killed process 15784 (python3) total-vm:11964kB, anon-rss:4288kB, file-rss:3028kB",
        "oom-kill",
        15784,
        "python3",
    ),
    (
        "Memory cgroup out of memory: Killed process 63214 (uwsgi) total-vm:3149468kB, anon-rss:164992kB, UID:0 "
        "pgtables:1372kB oom_score_adj:986",
        "oom-kill",
        63214,
        "uwsgi",
    ),
    (
        "Out of memory: Killed process 15925 ((resolved)) total-vm:168424kB, anon-rss:4064kB",
        "oom-kill",
        15925,
        "(resolved)",
    ),
    ("Killed process 4242 (python) total-vm:9000kB, anon-rss:1kB", "oom-kill", 4242, "python"),
    ("Killed process 9876 (python), UID 0, total-vm:9000kB, anon-rss:1kB", "oom-kill", 9876, "python"),
    (
        "blk_update_request: I/O error, dev sda, sector 263176 op 0x1:(WRITE) flags 0x0 phys_seg 1",
        "io-error",
        None,
        "sda",
    ),
    (
        "I/O error, dev nvme0n1, sector 131209936 op 0x0:(READ) flags 0x80700 phys_seg 25 prio class 0",
        "io-error",
        None,
        "nvme0n1",
    ),
    ("print_req_error: I/O error, dev sdb, sector 0", "io-error", None, "sdb"),
    ("end_request: I/O error, dev vda, sector 12", "io-error", None, "vda"),
    ("blk_update_request: critical medium error, dev sda, sector 5117604744 op 0x0:(READ)", "io-error", None, "sda"),
    ("critical target error, dev sdb, sector 629659920 op 0x1:(WRITE) flags 0x800", "io-error", None, "sdb"),
    ("Buffer I/O error on dev sdb1, logical block 0, lost sync page write", "io-error", None, "sdb1"),
    ("Buffer I/O error on device nvme0n1p1, logical block 1066386", "io-error", None, "nvme0n1p1"),
    ("EXT4-fs error (device sda1): ext4_journal_check_start:83: Detected aborted journal", "io-error", None, "sda1"),
    ("EXT4-fs error (device dm-4) in ext4_setattr:4562: Journal has aborted", "io-error", None, "dm-4"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "read-only", None, "sda1"),
    ("EXT4-fs (loop1): Remounting filesystem read-only", "read-only", None, "loop1"),
    (
        'XFS (sda1): metadata I/O error in "xfs_buf_ioend+0x1/0x2 [xfs]" at daddr 0x1478 len 8 error 5',
        "io-error",
        None,
        "sda1",
    ),
    (
        'XFS (dm-7): metadata I/O error: block 0x280000010 ("xlog_bread_noalign") error 5 numblks 8',
        "io-error",
        None,
        "dm-7",
    ),
    ("XFS (sdb6): log I/O error -5", "io-error", None, "sdb6"),
    ("XFS (sdb6): Filesystem has been shut down due to log error (0x2).", "io-error", None, "sdb6"),
    ("XFS (xvdb): Log I/O Error Detected.  Shutting down filesystem", "io-error", None, "xvdb"),
    ("BTRFS info (device dm-0 state EA): forced readonly", "read-only", None, "dm-0"),
    ("BTRFS info (device sda3: state E): forced readonly", "read-only", None, "sda3"),
    ("BTRFS info (device sda3): forced readonly", "read-only", None, "sda3"),
    ("BTRFS error (device sdc: state EA): commit failed, forced readonly", "read-only", None, "sdc"),
    (
        "BTRFS: error (device sda3) in btrfs_commit_transaction:2487: errno=-5 IO failure (Error while",
        "io-error",
        None,
        "sda3",
    ),
    ("BTRFS error (device sdb1): bdev /dev/sdb1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0", "io-error", None, "sdb1"),
    (
        "BTRFS warning (device sda1): csum failed root 5 ino 257 off 0 csum 0x1 expected csum 0x2",
        "io-error",
        None,
        "sda1",
    ),
    ("INFO: task python:123 blocked for more than 120 seconds.", "hung-task", 123, "python"),
    ("INFO: task kworker/1:2:10762 blocked for more than 1228 seconds.", "hung-task", 10762, "kworker/1:2"),
]

MEANINGLESS = [
    "",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "NVRM: GPU at PCI:0000:01:00: GPU-3f1c0a52-7d11-4c1e-9a43-0c5e6f7a8b90",
    "NVRM: GPU 0000:0d:00.0: GPU has fallen off the bus.",  # stands beside its Xid 79
    "NVRM: Xid (PCI:0000:01:00): none",
    "NVRM: Xid (PCI:zz): 79, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted",
    "python[123]: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",  # a program that talks of one
    'audit: type=1400 comm="NVRM: Xid (PCI:0000:01:00): 79"',
    "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
    "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",
    "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
    "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -22",
    "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -129",
    "misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -512",  # whoever asked was ended
    "misc dxg: dxgk: dxgkio_reserve_gpu_va: Ioctl failed: -75",
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x,task_memcg=/x,"
    "task=python,pid=123,uid=0",
    "oom_reaper: reaped process 123 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "Out of memory: Kill process 123 (python) score 900 or sacrifice child",
    "Tasks in /docker/abc are going to be killed due to memory.oom.group set",
    "[   123]     0   123  (Killed process 1 (init) total-vm:1kB",  # a name in the table of tasks
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ)",
    "I/O error, dev loop0, sector 0 op 0x0:(READ)",
    "Buffer I/O error on dev loop1, logical block 0, lost sync page write",
    "Buffer I/O error on dev fd0, logical block 0, async page read",
    "EXT4-fs error (device loop0): ext4_find_entry:1463: inode #2: comm ls: reading directory lblock 0",
    "critical target error, dev sdb, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 0",
    "I/O error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x0 phys_seg 0 prio class 0",
    "operation not supported error, dev nvme0n1, sector 5 op 0x9:(WRITE_ZEROES) flags 0x800",
    "EXT4-fs (sdc): mounted filesystem with ordered data mode. Opts: discard,errors=remount-ro,data=ordered.",
    "EXT4-fs (sda1): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 ro. Quota mode: none.",
    "EXT4-fs warning (device sda1): ext4_dx_add_entry:2516: Directory index full!",
    "XFS (vda1): Ending clean mount",
    "XFS (sda1): User initiated shutdown (0x1) detected at fs_ioc_shutdown.  Shutting down filesystem.",
    "BTRFS info (device sda3): using free-space-tree",
    "BTRFS: error (device sda3) in btrfs_free_extent:3116: errno=-28 No space left",
    "INFO: task python:123 is blocked on a mutex likely owned by task python:124.",
    "INFO: rcu_sched self-detected stall on CPU",
    "INFO: lockdep is turned off.",
]


@pytest.mark.parametrize(("message", "kind", "number", "subject"), MEANT, ids=[each[0][:60] for each in MEANT])
def test_real_lines(message: str, kind: str, number: int | None, subject: str) -> None:
    line = classify(7.5, message)
    assert line is not None
    assert (line.kind.value, line.number, line.subject, line.at_s) == (kind, number, subject, 7.5)
    assert line.text.startswith(message.partition("\n")[0][:100])


@pytest.mark.parametrize("message", MEANINGLESS)
def test_near_misses(message: str) -> None:
    assert classify(0.0, message) is None


@pytest.mark.parametrize("message", [message for message, *_ in MEANT])
def test_what_means_something_passes_the_cheap_test(message: str) -> None:
    """The reader asks for these before it takes a record apart."""
    assert any(marker in message.encode() for marker in MARKERS)


@pytest.mark.parametrize("message", [message for message, *_ in MEANT])
def test_only_the_beginning_of_a_line_counts(message: str) -> None:
    """A name that a user chose, or a text with a line break in it, stands further back."""
    assert classify(0.0, f"x {message}") is None
    assert classify(0.0, f"comm: x\n{message}") is None


def test_each_kind_has_a_line() -> None:
    assert {kind for _, kind, *_ in MEANT} == {kind.value for kind in KernelKind}


def test_the_text_is_short_and_harmless_on_a_terminal() -> None:
    line = classify(0.0, "Out of memory: Killed process 5 (a\x1b[2Jb\u202e) total-vm:1kB," + "x" * 5000)
    assert line is not None
    assert len(line.text) == 300
    assert line.text.isprintable()
    assert line.subject == r"a\x1b[2Jb\u202e"


PIECES = st.sampled_from([message for message, *_ in MEANT] + [marker.decode() for marker in MARKERS])


@given(st.text() | st.builds(lambda a, cut, b: a[:cut] + b, PIECES, st.integers(0, 120), st.text() | PIECES))
def test_no_text_makes_it_raise(message: str) -> None:
    line = classify(1.0, message)
    if line is not None:
        assert len(line.text) <= 300
        assert line.text.isprintable()


@given(st.binary())
def test_no_bytes_make_it_raise(data: bytes) -> None:
    classify(1.0, "NVRM: Xid (PCI:0000:01:00): " + data.decode("utf-8", errors="surrogateescape"))


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "-1", ""])
def test_no_number_makes_it_raise(number: str) -> None:
    assert classify(1.0, f"NVRM: Xid (PCI:0000:01:00): {number}, x") is None
    assert classify(1.0, f"Out of memory: Killed process {number} (a) total-vm:1kB") is None
