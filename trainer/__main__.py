"""`python -P -m trainer`: enter the run, parse, call, turn what went wrong into an exit code.

The contract is joined, and the first beat made, before torch is imported: an import that hangs on a slow disk is then
a phase with a deadline of its own, and a rank of a run that is over leaves before it costs anything.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from trainer.arguments import build_parser
from trainer.console import Console
from trainer.errors import EXIT_FAILURE, Drained, TrainerError, is_memory_shortage
from watchdog import contract
from watchdog.contract import Run

Command = Callable[[argparse.Namespace, Run, Console], int]
EXIT_INTERRUPTED = 130
# How long torch's OpenMP threads spin at a barrier before they sleep. With libgomp's own 300,000 turns, a step on two
# cores grows from 0.10 to 0.87 s as soon as one other process wants a core; with 5,000, from 0.107 to 0.28 s.
SPIN_COUNT = "5000"


def share_the_cores() -> None:
    """Before torch is imported, which reads it then. What the user has set stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def complain(line: str) -> None:
    """An error, on standard error; a full disk or a closed terminal does not make it another one."""
    Console(fd=2).say(line)


def _command(name: str) -> Command:
    if name == "prepare":
        from trainer.prepare import prepare

        return prepare
    if name == "train":
        from trainer.job import train

        return train
    if name == "validate":
        from trainer.validate import validate

        return validate
    from trainer.listing import presets

    return presets


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code. What is no TrainerError is recorded for the supervisor and raised as itself."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    try:
        run = contract.join()
    except contract.WrongRunError as error:
        complain(f"error     {error}")
        return contract.EXIT_WRONG_RUN
    except (contract.ContractError, OSError) as error:
        complain(f"error     the run that the environment names cannot be entered: {error}")
        return EXIT_FAILURE
    try:
        run.beat("import", status=arguments.command)
        share_the_cores()
        return _command(arguments.command)(arguments, run, console)
    except Drained as reason:
        run.beat("drain")
        console.say(f"drained   {reason}")
        return reason.exit_code
    except TrainerError as error:
        run.fail(error)
        complain(f"error     {error}")
        return error.exit_code
    except contract.WrongRunError as error:
        run.fail(error)
        complain(f"error     {error}")
        return contract.EXIT_WRONG_RUN
    except KeyboardInterrupt:
        console.say("stopped   at once, as asked; what was saved stays")
        return EXIT_INTERRUPTED
    except BaseException as error:
        run.fail(error)
        if is_memory_shortage(error):
            complain(f"error     the host's memory did not suffice: {error}; the checkpoints are not to blame")
        raise


if __name__ == "__main__":
    sys.exit(main())
