"""Claim (options): Help is as wide as the terminal, with no word cut; a mistyped option is answered with the one that was meant; and
what `ditto completion` writes completes commands, options, recipe keys and plugins in bash, zsh and fish."""

import os
import pathlib
import pty
import re
import select
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


def commands():
    """Every command, as completion knows them: ["train", "data prepare", …]."""
    script = t.run("completion", "fish").stdout
    return sorted({path for path in re.findall(r"'__ditto_at ditto ([a-z ]+)'", script)})


def help_of(command, columns):
    return t.run(*command.split(), "--help", env=t.environment | {"COLUMNS": str(columns)}).stdout


# --- help ----------------------------------------------------------------------------------------------------------------


def test_help_is_as_wide_as_the_terminal():
    every = ["", *commands()]
    t.check(len(every) > 30 and "data prepare" in every and "bench step" in every, every)
    for command in every:
        words = None
        for columns in (60, 80, 200) if t.slow else (60, 200):
            text = help_of(command, columns)
            long = [line for line in text.splitlines() if len(line.encode()) > columns]
            t.equal(long, [], f"lines of `ditto {command} --help` over {columns} columns")
            found = [word for word in text.split() if word != "\\"]  # that of a command that goes on in the next line
            t.equal(found, words or found, f"words of `ditto {command} --help` at {columns} columns")
            words = found
    t.check(any(line.endswith(" \\") for line in help_of("checkpoint export", 60).splitlines()), "a command cannot be copied")


def test_help_is_what_people_type():
    whole = t.run("--help").stdout
    for words in ([], ["help"], ["-h"]):
        t.equal(t.run(*words).stdout, whole, words)
    for command in ("train", "data prepare"):
        t.equal(t.run("help", *command.split()).stdout, t.run(*command.split(), "--help").stdout, command)
    version = t.run("--version").stdout
    t.check(re.match(r"ditto \d+\.\d+", version), version)
    for words in (["-V"], ["version"]):
        t.equal(t.run(*words).stdout, version, words)
    t.refused(2, ['there is no command "trian"', 'did you mean "train"?'], "help", "trian")
    t.refused(2, ['ditto train: has no command "on"'], "help", "train", "on")


def test_a_mistyped_option_is_answered_with_the_one_that_was_meant():
    path = t.write_recipe("tiny.toml", t.recipe(data=t.synthetic()))
    for meant, words in (("--local-ranks", ["--locl-ranks", 2]), ("--dry-run", ["--dryrun"]), ("--set run.steps=5", ["--steps", 5]),
                         ("--set run.steps=5", ["--steps=5"]), ("--set run.init_from=runs/x", ["--init-from", "runs/x"]),
                         ("--set lr_schedule.lr=0.1", ["--lr", 0.1]), ("--set model.depth=3", ["--model.depth", 3])):
        t.refused(2, ["ditto train: there is no option", f"did you mean {meant}", "ditto train --help"], "train", path, *words)
    for meant, words in (("--set run.batch=8", ["--batch-size", 8]), ("--set run.steps=9", ["--max-steps", 9]), ("--set model.depth=3", ["--depth", 3]),
                         ("--set optimizer.weight_decay=0.1", ["--weight-decay", 0.1]), ("--set lr_schedule.lr=-1", ["--lr", -1]),
                         ("--set lr_schedule.lr=0.1", ["--learning-rate", 0.1]), ("--set optimizer.plugin=lion", ["--optimizer", "lion"]),
                         ("--set sampler.plugin=euler", ["--sampler", "euler"]), ("--set ema.decay=0.9", ["--ema", 0.9]),
                         ("--set run.steps=3", ["--step", 3]), ("--set run.output=foo", ["--out", "foo"]), ("--set run.steps=5", ["--runn.steps=5"]),
                         ("--set or --stage? ", ["-s", "run.steps=3"])):
        t.refused(2, [f"did you mean {meant}"], "train", path, *words)
    t.refused(2, ["steps are counted, not epochs"], "train", path, "--epochs", 3)
    t.refused(2, ["did you mean --guidance?"], "sample", "runs/x", "--cfg", 3)
    t.refused(2, ["did you mean --out?"], "sample", "runs/x", "--output", "x")
    t.refused(2, ["did you mean --out or --overwrite?"], "sample", "runs/x", "-o", "x")
    # Nothing is meant that is near in no way, or that the same command would refuse.
    for words in (["train", path, "-n", 3], ["train", path, "--run=5"], ["train", path, "--nope.steps=5"], ["evaluate", "runs/x", "--steps", 5],
                  ["checkpoint", "export", "runs/x", "--steps", 5], ["sample", "runs/x", "--lr", 3], ["sample", "runs/x", "--depth", 3]):
        done = t.refused(2, ["there is no option"], *words)
        t.check("did you mean" not in done.stderr, words, done.stderr)
    (t.work / "bare.toml").write_text("[run]\nsteps = 1\n")
    t.refused(2, ['names no section for "lr"', "--set lr_schedule.lr=0.1"], "train", t.work / "bare.toml", "--set", "lr=0.1")
    # What an option asks for is its value, whatever it looks like.
    t.refused(2, ['there is no option "--ot"', "did you mean --out?"], "sample", "runs/x", "--ot", "x")
    t.refused(2, ['there is no option "-z"'], "doctor", "-z")
    t.refused(7, ["runs/x: there is no such folder"], "sample", "runs/x", "--prompts", "--dash")


# --- completion ----------------------------------------------------------------------------------------------------------

# What is typed, and what stands there once it is completed.
COMPLETED = [("ditto tra", "ditto train"), ("ditto train --local-r", "ditto train --local-ranks"), ("ditto data prep", "ditto data prepare"),
             ("ditto train r.toml --set run.init_f", "ditto train r.toml --set run.init_from="),
             ("ditto train r.toml --set run.seed=1 --set sampler.st", "ditto train r.toml --set run.seed=1 --set sampler.steps="),
             ("ditto train r.toml --set sampler.plugin=eul", "ditto train r.toml --set sampler.plugin=euler"),
             ("ditto checkpoint export x --weights em", "ditto checkpoint export x --weights ema"),
             ("ditto plugins show rectified_fl", "ditto plugins show rectified_flow"), ("ditto plugins list schedul", "ditto plugins list scheduler"),
             ("ditto help checkp", "ditto help checkpoint"), ("ditto help checkpoint veri", "ditto help checkpoint verify"),
             ("ditto train r.toml --set=run.init_f", "ditto train r.toml --set=run.init_from="),
             ("ditto train r.toml --set=sampler.plugin=eul", "ditto train r.toml --set=sampler.plugin=euler"),
             ("ditto train r.toml --set data.path=only-fi", "ditto train r.toml --set data.path=only-file.toml"),
             ("ditto checkpoint export x --weights=em", "ditto checkpoint export x --weights=ema"), ("ditto init x --fit str", "ditto init x --fit stretch"),
             ("ditto sample x --sampler eul", "ditto sample x --sampler euler"), ("ditto sample x --cache teac", "ditto sample x --cache teacache"),
             ("ditto sample x --progress pl", "ditto sample x --progress plain"), ("ditto train r.toml --trace ker", "ditto train r.toml --trace kernels"),
             ("ditto diff r.toml --with run.init_f", "ditto diff r.toml --with run.init_from="),
             ("ditto completion fi", "ditto completion fish"),
             ("ditto checkpoint inspect only-fi", "ditto checkpoint inspect only-file.toml")]


def until(terminal, mark):
    text, end = "", time.monotonic() + t.patient(30)
    while mark not in text:
        t.check(time.monotonic() < end, f"no {mark!r} in", text)
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text


def typed(shell, setup, line):
    """What stands in the line of an interactive shell after Tab: it is made a word of `echo`, by the keys of Emacs."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(t.work)
        os.environ.update({"TERM": "dumb", "PS1": "$ ", "PATH": f"{pathlib.Path(t.ditto).resolve().parent}:{os.environ['PATH']}"})
        os.execvp(shell[0], shell)
    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        until(terminal, "ready\r")
        os.write(terminal, line.encode() + b"\t")
        time.sleep(t.patient(0.7))
        os.write(terminal, b"\x01echo '[\x05]'\n")
        shown = until(terminal, "]\r\n")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return re.findall(r"\n\[(.*?) ?\]\r\n", shown)[-1]


def completes(shell, setup):
    if not shutil.which(shell[0]):
        raise t.NotRun(f"{shell[0]} is not installed")
    (t.work / "only-file.toml").write_text("")
    for line, whole in COMPLETED:
        t.equal(typed(shell, setup, line), whole, f"{line!r} and Tab in {shell[0]}")


def test_bash_completes():
    completes(["bash", "--norc", "--noprofile", "-i"], "source <(ditto completion bash)")


def test_bash_goes_on_where_nothing_is_completed():
    """In a shell that ends at the first failure, as `set -e` has it, a word that nothing completes is none."""
    done = t.subprocess.run(["bash", "-ec", 'source <("$0" completion bash); COMP_WORDS=(ditto train r.toml --set zzz) COMP_CWORD=4; _ditto; echo goes on',
                             t.ditto], capture_output=True, text=True, env=t.environment, timeout=t.patient(60))
    t.equal(done.stdout, "goes on\n", done.stderr)


def test_zsh_completes():
    completes(["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source <(ditto completion zsh)")


def test_fish_completes():
    if not shutil.which("fish"):
        raise t.NotRun("fish is not installed")
    (t.work / "only-file.toml").write_text("")
    (t.work / "ditto.fish").write_text(t.run("completion", "fish").stdout)
    for line, whole in COMPLETED:
        done = t.subprocess.run(["fish", "-c", "source ditto.fish; complete -C $argv[1]", line], capture_output=True, text=True, cwd=t.work,
                                env=t.environment | {"HOME": str(t.work)}, timeout=t.patient(60))
        offered = [one.split("\t")[0] for one in done.stdout.splitlines()]
        t.check(whole.split()[-1] in offered and all(one.startswith(line.split()[-1]) for one in offered), line, done.stdout, done.stderr)


def test_every_option_of_help_is_completed():
    script = t.run("completion", "bash").stdout
    for command in commands():
        flags = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", help_of(command, 200), re.M))
        row = re.search(rf"'ditto {command}'\)\n      if \[\[ \$cur == -\* \]\]; then offer=\"([^\"]*)\"", script)
        t.equal(set(row[1].split()), flags, f"options of {command}")
    unknown = t.run("completion", "ksh", code=2)
    t.check("bash" in unknown.stderr and "fish" in unknown.stderr, unknown.stderr)


t.main(globals())
