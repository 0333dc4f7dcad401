"""The program that writes one death certificate and ends; it reads the request from standard input.

A process of its own, because the supervisor must neither load a database driver nor wait for a master that hangs. Exit
code 0: the agent is certified, or needs no certificate.

A schema that a newer program has made meanwhile is accepted, also when it refuses older programs: agents of this version
that are still running write such certificates, too, but not before the end of the lease.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster_agents.launch.launch_order import CertificateRequest


async def certify(order: CertificateRequest, report: Callable[[str], object]) -> int:
    """Write the certificate. Returns 0 when it is written or not needed, and the exit code of the error otherwise."""
    from jobmaster.model.errors import JobMasterError
    from jobmaster.wiring import open_master

    try:
        master = await open_master(order.settings, application_name="jobmaster-certificate", newer_schema=True)
        try:
            await master.members.end_agent(order.agent_id, dead=True, reason=order.reason, process_ended=True)
        finally:
            await master.close()
    except JobMasterError as error:
        report(f"error: no death certificate could be written: {error}\n")
        return error.exit_code
    return 0


def main() -> int:
    """Entry of the program."""
    gc.disable()  # the process lives for a moment; most of its objects are imported modules
    import msgspec

    from jobmaster_agents.launch.launch_order import CertificateRequest

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=CertificateRequest)
    code = asyncio.run(certify(order, sys.stderr.write))
    gc.freeze()  # nor is anything collected at the end of the interpreter
    return code


if __name__ == "__main__":
    sys.exit(main())
