"""Enter a user namespace in which no other can be created, then become another program.

Root runs this file as a plain script before bubblewrap:

    python -I -S user_namespace.py PROGRAM ARGUMENTS...

All users keep their ids. Privileges over the machine stay outside: inside, even root has privileges
only over the namespace, and a program started there cannot create a namespace to gain its own.
"""

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000  # from <linux/sched.h>
ALL_NUMBERS = "0 0 4294967295"  # each user outside is the same user inside


def main() -> None:
    """Create the namespace, forbid others inside it, and become the program."""
    libc, process = ctypes.CDLL(None, use_errno=True), os.getpid()
    waiting, entered = os.pipe()
    outside = os.fork()
    if outside == 0:  # only a process outside may map users other than its own
        os.close(entered)
        if os.read(waiting, 1):
            for names in ("uid_map", "gid_map"):
                Path(f"/proc/{process}/{names}").write_text(ALL_NUMBERS)
        os._exit(0)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "a user namespace could not be made")
    os.write(entered, b"1")
    if os.waitpid(outside, 0)[1] != 0:
        raise OSError("the users could not be named in the user namespace")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # for this namespace only
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
