"""The command line: parse, call, render, exit code. No logic, and nothing imported before it is needed.

`watchdog --help` and `watchdog status` must answer at once, so each command imports what it uses.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from watchdog.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, SettingsError, WatchdogError

if TYPE_CHECKING:
    from watchdog.settings import Settings

app = typer.Typer(
    name="watchdog",
    help="Supervise a training run, see it die, bring it back from a verified checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_PLUGIN_CODES = "Exit codes, as monitoring plugins have them: 0 ok, 1 warning, 2 critical, 3 unknown."
_RECLAIM_CODES = (
    "Exit codes: 0 so much is free (dry run: all steps are permitted), 1 less came back, 2 usage, 3 a run is alive or "
    "this user is not permitted, 4 another reclaim is at work."
)
_PRUNE_CODES = (
    "Exit codes: 0 done or nothing to do, 1 something was not deleted or no checkpoint is there, 2 usage, "
    "4 a supervisor or a run has the job."
)
_RELAUNCH_CODES = (
    "Exit codes: 0 it has restored its checkpoint (dry run: it would be launched), 1 not within --wait, it died at "
    "once, or nobody to ask, 2 command line, or no such verified step in the folder, 3 hold, finished, or a step that "
    "cannot be verified now (dry run: it would not be launched), 4 held, 5 stopped."
)
_EXIT_CODES = "Exit codes: 0 finished or answered, 1 failure of our own, 2 configuration, 3 hold, 4 held, 5 stopped."

# typer brings a click of its own; importing the other one as well would cost 20 ms for the sake of this name.
USAGE_ERROR: Any = typer.BadParameter.__base__

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The configuration file, instead of a search.")]
JobOption = Annotated[str | None, typer.Option("--job", help="Which of several jobs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines.")]


def _settings(config: Path | None, job: str | None, command: list[str] | None = None, **overrides: Any) -> Settings:
    from watchdog.settings import load

    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise SettingsError("the current folder was removed; go to one that exists") from None
    return load(
        config=config,
        job=job,
        command=command or (),
        overrides=overrides,
        environ=os.environ,
        home=Path.home(),
        cwd=here,
    )


def _existing(config: Path | None, job: str | None, *, acts: bool = False) -> Settings:
    """The settings of a job that is asked about, or acted upon: without a name, the only one there is will do."""
    from watchdog.places import require_known, which_job

    settings = _settings(config, job)
    if job is not None:
        require_known(settings)

    def busy(names: list[str]) -> list[str]:
        from watchdog.jobseen import is_busy

        return [name for name in names if is_busy(_settings(config, name))]

    meant = which_job(settings, None if acts else busy) if job is None else None
    return settings if meant is None else _settings(config, meant)


def _host_or_job(config: Path | None, job: str | None) -> Settings:
    """As `_existing`; where several jobs could be meant the host alone is looked at, and that is said."""
    from watchdog.places import WhichJobError

    try:
        return _existing(config, job)
    except WhichJobError as error:
        print(f"{error}; without it only the host is looked at, and which of them are on hold", file=sys.stderr)
        return _settings(config, job)


def _others(config: Path | None, job: str | None, settings: Settings) -> list[Settings]:
    """Where no job was named: the others of this state folder."""
    from watchdog.places import known_jobs

    if job is not None or settings.config_file is not None:
        return []
    names = [name for name in known_jobs(settings) if name != settings.job.name]
    return [_settings(config, name) for name in names]


def _show(lines: list[str], hang: int = 12) -> None:
    """For people: long lines are broken on a terminal, under the words behind the label."""
    from watchdog.wrapping import width_of, wrapped

    print("\n".join(wrapped(lines, width_of(sys.stdout), hang)))


def _typed() -> list[str]:
    """What a person typed, as others are shown it: a detached supervisor was started by `python -c`."""
    return ["watchdog", *(argument for argument in sys.argv[1:] if argument != "--detached")]


def _leave(code: int) -> NoReturn:
    raise typer.Exit(code)


@app.command(epilog=_EXIT_CODES, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str] | None, typer.Argument(help="The trainer's command, after --.")] = None,
    config: ConfigOption = None,
    job: JobOption = None,
    new: Annotated[bool, typer.Option("--new", help="Archive what there is of the job, and begin again.")] = False,
    on_hold: Annotated[str, typer.Option("--on-hold", help="exit (3) or wait for: watchdog relaunch.")] = "exit",
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background; see watchdog logs.")] = False,
    detached: Annotated[bool, typer.Option("--detached", hidden=True)] = False,
) -> None:
    """Supervise a job until it is finished. Without a configuration: the built-in default job."""
    if on_hold not in ("exit", "wait"):
        raise SettingsError(f"--on-hold {on_hold}: must be exit or wait")
    if (not command and sys.argv[-1:] == ["--"]) or (command and not command[0].strip()):
        raise SettingsError("no command follows --: name the trainer's (is a variable empty?), or leave -- out")
    settings = _settings(config, job, command)
    if detach and not detached:
        from watchdog.running import detach as go

        _leave(go(settings, sys.argv[1:]))
    from watchdog.running import supervise

    _leave(supervise(settings, argv=_typed(), new=new, leave_on_hold=on_hold == "exit", quiet=detached))


@app.command()
def status(config: ConfigOption = None, job: JobOption = None, as_json: JsonOption = False) -> None:
    """What the job is doing, with or without a supervisor."""
    from watchdog.asking import status_of
    from watchdog.render import status_lines, status_record

    view = status_of(_existing(config, job))
    if as_json:
        print(json.dumps(status_record(view), indent=1, allow_nan=False))
    else:
        _show(status_lines(view))


@app.command(epilog=_RELAUNCH_CODES)
def relaunch(
    config: ConfigOption = None,
    job: JobOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan with every gate, and do nothing.")] = False,
    step: Annotated[
        int | None, typer.Option("--from", metavar="STEP", help="Go back to this verified step.", min=0)
    ] = None,
    why: Annotated[str, typer.Option("--why", help="Why you go back, for the record.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="With a new budget, also where nothing is held; no gate opens.")
    ] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to follow it.", min=0, max=604800)] = 600.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask, and do not follow it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan of a dry run, for machines.")] = False,
) -> None:
    """Lift a hold, or end the living run (it saves), and start it again from its verified checkpoint."""
    from watchdog.core.relaunchplan import Wish
    from watchdog.rehearsing import dry_run as planned
    from watchdog.relaunching import relaunch as go
    from watchdog.render_relaunch import plan_lines, plan_record

    if as_json and not dry_run:
        raise SettingsError("--json: it is the plan of a dry run; add --dry-run")
    if why and step is None:
        raise SettingsError(f"--why {why[:100]!r}: it is the reason to go back, and goes with --from STEP")
    if not math.isfinite(wait):
        raise SettingsError(f"--wait {wait}: must be a number of seconds")
    settings = _existing(config, job, acts=True)
    wish = Wish(step=step, afresh=force)
    if not dry_run:
        wait_s = None if no_wait else wait
        _leave(go(settings, _typed(), wish, why=why, wait_s=wait_s, say=lambda words: print(words, flush=True)))
    plan = planned(settings, wish)
    if as_json:
        print(json.dumps(plan_record(plan.view, wish, plan.plan, plan.exit_code), indent=1, allow_nan=False))
    else:
        _show(plan_lines(plan.view, plan.plan))
    _leave(plan.exit_code)


@app.command()
def stop(
    config: ConfigOption = None,
    job: JobOption = None,
    now: Annotated[bool, typer.Option("--now", help="Without saving.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show who would be asked and ended, and what is kept.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan of a dry run, for machines.")] = False,
) -> None:
    """End the run (it saves first) and its supervisor; the job goes on with the next `watchdog run`."""
    if as_json and not dry_run:
        raise SettingsError("--json: it is the plan of a dry run; add --dry-run")
    if dry_run:
        from watchdog.rehearsing import dry_stop
        from watchdog.render_relaunch import stop_lines, stop_record

        view, plan, code = dry_stop(_existing(config, job, acts=True), now=now)
        if as_json:
            print(json.dumps(stop_record(view, plan, code, now=now), indent=1, allow_nan=False))
        else:
            _show(stop_lines(view, plan))
        _leave(code)
    from watchdog.asking import stop_job

    _leave(stop_job(_existing(config, job, acts=True), now=now, argv=_typed()))


@app.command()
def logs(
    config: ConfigOption = None,
    job: JobOption = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows.")] = False,
    output: Annotated[bool, typer.Option("--output", help="The trainer's output instead of our own words.")] = False,
) -> None:
    """What the supervisor said, or with --output what the trainer of the last run said."""
    from watchdog.showing import show_log

    show_log(_existing(config, job), output=output, follow=follow)


@app.command(epilog=_PLUGIN_CODES)
def diagnose(
    config: ConfigOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
    listing: Annotated[bool, typer.Option("--list", help="The checks there are.")] = False,
    explain: Annotated[str | None, typer.Option("--explain", help="All about one check.")] = None,
    check: Annotated[list[str] | None, typer.Option("--check", help="Only this check; may be repeated.")] = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Measure idle GPUs as well (seconds).")] = True,
    everything: Annotated[bool, typer.Option("--all", help="Also what is in order.")] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for a driver or disk.", min=1, max=600)] = 10.0,
) -> None:
    """Look at the host once, and say what is wrong with which evidence, and the next step."""
    from watchdog import render_diagnose

    if listing:
        print(render_diagnose.listing())
        return
    from watchdog.diagnosing import chosen, diagnose_job

    checks = chosen(([explain] if explain else []) + (check or []))
    settings = _host_or_job(config, job)
    if explain:
        from watchdog.joblimits import limits_of

        print("\n\n".join(render_diagnose.explanation(each, limits_of(settings, os.environ)) for each in checks))
        return
    if not math.isfinite(wait):
        raise SettingsError(f"--wait {wait}: must be a number of seconds")
    others = _others(config, job, settings)
    diagnosis = diagnose_job(settings, checks=checks, probe=probe, wait_s=wait, others=others)
    from watchdog.places import job_options

    options = job_options(settings)
    if as_json:
        print(json.dumps(render_diagnose.to_json(diagnosis, options), indent=1, allow_nan=False))
    else:
        colour = render_diagnose.wants_colour(sys.stdout, os.environ)
        told = render_diagnose.human(diagnosis, colour=colour, everything=everything or bool(check), options=options)
        _show(told.split("\n"), hang=10)
    _leave(diagnosis.exit_code)


@app.command(epilog=_PLUGIN_CODES)
def probe(
    config: ConfigOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
    device: Annotated[str | None, typer.Option("--device", help="A UUID, its beginning, an index, or cpu.")] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Remember it as this device's baseline.")] = True,
) -> None:
    """Measure the job's GPUs, or the CPU where there is none, with a matrix product; never beside a living run."""
    from watchdog.diagnosing import probe_job
    from watchdog.measuring import report_lines, report_record
    from watchdog.places import job_options

    settings = _host_or_job(config, job)
    report = probe_job(settings, device=device, store=store)
    if as_json:
        print(json.dumps(report_record(report), indent=1, allow_nan=False))
    else:
        print("\n".join(report_lines(report, job_options(settings))))
    _leave(report.exit_code)


@app.command(epilog=_RECLAIM_CODES)
def reclaim(
    config: ConfigOption = None,
    job: JobOption = None,
    target: Annotated[str | None, typer.Option("--target", help="To be free, as 6GiB; else the job's need.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be asked of the kernel.")] = False,
    beside_run: Annotated[bool, typer.Option("--beside-run", help="Also while a run of the job is alive.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have the kernel give page cache back until so much memory is free, and say what came of it."""
    from watchdog.reclaiming import reclaim_by_hand

    settings = _host_or_job(config, job)
    report = reclaim_by_hand(settings, target=target, dry_run=dry_run, beside_run=beside_run)
    print(json.dumps(report.record, indent=1, allow_nan=False) if as_json else "\n".join(report.lines))
    _leave(report.exit_code)


@app.command(epilog=_PRUNE_CODES)
def prune(
    config: ConfigOption = None,
    job: JobOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and why.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the checkpoints that [retention] lets go, while nobody supervises the job; else say which."""
    from watchdog.pruning import prune_by_hand

    report = prune_by_hand(_existing(config, job, acts=not dry_run), dry_run=dry_run, argv=_typed())
    print(json.dumps(report.record, indent=1, allow_nan=False) if as_json else "\n".join(report.lines))
    _leave(report.exit_code)


@app.command()
def notify(
    test: Annotated[str, typer.Option("--test", metavar="EVENT", help="hold, recovery or blindness.")],
    config: ConfigOption = None,
    job: JobOption = None,
) -> None:
    """Send a test of one event by the command of [notify], and show what became of it (0 delivered, 1 failed)."""
    from watchdog.clock import SystemClock
    from watchdog.notifier import notify_by_hand

    lines, code = notify_by_hand(_existing(config, job), test, SystemClock())
    print("\n".join(lines))
    _leave(code)


@app.command()
def incidents(
    what: Annotated[str, typer.Argument(help="list, show ID, or export: all of them in full.")] = "list",
    number: Annotated[int | None, typer.Argument(metavar="[ID]", help="Which one, as the list names it.")] = None,
    config: ConfigOption = None,
    job: JobOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object a line.")] = False,
) -> None:
    """What ended, stalled or was held: why, what was done, the proof, and the time it cost. Secrets are masked."""
    from watchdog import render_incidents
    from watchdog.incidents import chosen_incidents, reader_of
    from watchdog.places import folders_of, job_options

    settings = _existing(config, job)
    reader = reader_of(folders_of(settings), settings.job.environment)
    found = chosen_incidents(reader, what, number)
    origin = reader.origin(settings.job.name)
    if as_json:
        for each in found:  # a line each: none of them where there is none
            print(json.dumps(render_incidents.record(each, origin), allow_nan=False))
    elif what == "list":
        print("\n".join(render_incidents.listing(found, job_options(settings))))
    elif found:
        reports = ["\n".join(render_incidents.report(each, origin)) for each in found]
        _show("\n\n".join(reports).split("\n"))
    else:
        print("\n".join(render_incidents.listing(found, job_options(settings))))


@app.command(epilog="Exit codes: 0 each ended as it should, 1 one did not or none could be made, 2 no such drill.")
def drill(
    faults: Annotated[list[str] | None, typer.Argument(metavar="[FAULT]...", help="Of --list; else all.")] = None,
    phase: Annotated[str | None, typer.Option("--phase", help="When it strikes, instead of the usual phase.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="The faults there are, and which this host can run.")] = False,
    trainer: Annotated[str, typer.Option(help="What is harmed: quick, or bundled (needs torch).")] = "quick",
    as_json: JsonOption = False,
) -> None:
    """Make faults on purpose in a throw-away job of its own, and say what the watchdog made of each."""
    from watchdog.drills import report

    if listing:
        print(json.dumps(report.listing_record(), indent=1) if as_json else "\n".join(report.listing()))
        return
    trained = report.trainer(trainer)
    pairs = report.chosen_of(faults or ["all"], phase, trained)
    _leave(report.perform(pairs, trained, as_json=as_json, say=report.say_on_terminal))


@app.command()
def init(path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("watchdog.toml")) -> None:
    """Write a configuration with every key, its default and its meaning."""
    from watchdog.errors import SettingsError
    from watchdog.settings import commented_template

    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(commented_template())
    except FileExistsError:
        raise SettingsError(f"{path} is there already and was not touched; name another: watchdog init PATH") from None
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}; everything in it is a default, change what you need")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gpuhost-watchdog {version('gpuhost-watchdog')}")
        raise typer.Exit(EXIT_OK)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Say it and leave.")
    ] = False,
) -> None:
    """Shared options."""


def _tell_program(why: str, asked_to_diagnose: bool) -> None:
    """Whoever asked a diagnosis for JSON gets JSON, also where there is no answer."""
    if asked_to_diagnose and "--json" in sys.argv[2:]:
        from watchdog.render_diagnose import failure

        print(json.dumps(failure(why)))


def main() -> NoReturn:
    """The console script. Every error of ours is told in a line, and `diagnose` fails with 3 as plugins do."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with it closed: nobody listens, and that is no failure
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for as long as we live)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name that is no text must not end an answer
    asked_to_diagnose = bool({"diagnose", "probe"}.intersection(sys.argv[1:2]))
    try:
        code = app(standalone_mode=False) or EXIT_OK
        sys.stdout.flush()
    except USAGE_ERROR as error:
        error.show()
        code = 3 if asked_to_diagnose else EXIT_USAGE
        _tell_program(error.format_message(), asked_to_diagnose)
    except (typer.Abort, KeyboardInterrupt):
        code = 3 if asked_to_diagnose else EXIT_FAILURE
    except BrokenPipeError:
        # Whoever read us has left (head, less): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILURE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            if not asked_to_diagnose:
                raise
            print(f"{sys.argv[1]} failed: {error}", file=sys.stderr)
            sys.exit(3)
        # The answer itself could not be written: a full disk behind a redirection, a closed terminal.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"the answer could not be written: {error.strerror}", file=sys.stderr)
        code = 3 if asked_to_diagnose else EXIT_FAILURE
    except WatchdogError as error:
        print(error, file=sys.stderr)
        code = 3 if asked_to_diagnose else error.exit_code
        _tell_program(str(error), asked_to_diagnose)
    except Exception as error:
        if not asked_to_diagnose:
            raise
        # A plugin that crashes must not look like one that warns.
        words = f"{sys.argv[1]} failed: {type(error).__name__}: {error}"
        print(words, file=sys.stderr)
        _tell_program(words, asked_to_diagnose)
        code = 3
    sys.exit(code)
