"""Claim (plugins): Whose code runs, and who can reach a run: plugins come from the person, those that crash are named and take
nothing with them, and ranks listen where they were told to."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402

fixtures = pathlib.Path(os.environ["DITTO_BUILD_DIR"]) / "tests/fixture_plugins"


def folder(*names):
    """A folder of its own with some of the libraries that are wrong on purpose."""
    path = t.work / "-".join(names)
    path.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(fixtures / f"{name}.so", path)
    return path


def cache(name):
    return {"XDG_CACHE_HOME": str(t.work / name), "DITTO_MARK": str(t.work / f"{name}.mark")}


def opened(name):
    path = t.work / f"{name}.mark"
    return path.stat().st_size if path.exists() else 0


def naming(kernels, **plugins):
    """A recipe with one more set of kernels."""
    return t.write_recipe(f"{kernels}.toml", t.recipe(run=dict(steps=2), plugins=dict(kernels=["cpu", kernels]) | plugins))


# --- where plugins come from ------------------------------------------------------------------------------------------


def test_a_recipe_that_says_where_plugins_are_is_refused_and_nothing_there_is_opened():
    env = cache("recipe")
    parts = ["plugins.path", "--plugin-path", "DITTO_PLUGIN_PATH"]
    path = naming("marks", path=[str(folder("marks"))])
    for command in (["config", "check", path], ["config", "show", path], ["train", path, "--local-ranks", 2],
                    ["train", path], ["bench", "step", path], ["bench", "loader", path], ["forward", path, "--in", "x", "--out", "y"],
                    ["checkpoint", "import", "x", "--format", "diffusers", "--recipe", path, "--out", "y"]):
        t.refused(2, parts + ["marks.toml:"], *command, env=env)
    t.refused(2, parts, "config", "check", naming("marks"), *t.sets({"plugins.path": [str(folder("marks"))]}), env=env)
    t.equal(opened("recipe"), 0, "libraries opened")
    # An empty list, which recipes of before hold, says nothing.
    t.run("config", "check", naming("cpu", path=[]))


def test_plugins_come_from_the_command_line_and_the_environment():
    env, where = cache("person"), folder("marks")
    path = naming("marks")
    t.refused(3, ["no kernels 'marks'"], "config", "check", path, env=env)
    for given in ([], ["--local-ranks", 2]):
        t.train(path, "person", "--plugin-path", where, *given, env=env)
    run = t.work / "person"
    t.run("config", "check", path, env=env | {"DITTO_PLUGIN_PATH": str(where)})
    t.run("sample", run, "--out", "person-samples", "--seeds", 1, "--plugin-path", where, env=env)
    t.run("checkpoint", "export", run, "--format", "facebook-dit", "--out", "person.safetensors", "--plugin-path", where, env=env)
    t.check("kernels" in t.run("plugins", "list", "--plugin-path", where).stdout, "the list lacks it")
    t.refused(3, ["no kernels 'marks'"], "sample", run, "--out", "person-samples", env=env)


def test_libraries_that_others_could_have_written_are_refused():
    where = folder("good")
    library = where / "good.so"
    t.run("plugins", "verify", library)
    library.chmod(0o757)
    t.refused(3, ["good.so", "everybody may write it", "chmod o-w"], "plugins", "verify", library)
    library.chmod(0o755)
    where.chmod(0o777)
    t.refused(3, ["is one that everybody may write", "chmod o-w"], "plugins", "verify", library)
    where.chmod(0o1777)  # sticky: nobody can replace what is not theirs
    t.run("plugins", "verify", library)
    where.chmod(0o755)
    if os.geteuid() != 0:
        return
    os.chown(library, 4321, -1)
    t.refused(3, ["it belongs to user 4321"], "plugins", "verify", library)
    os.chown(library, 0, -1)
    os.chown(where, 4321, -1)
    t.refused(3, ["its folder", "belongs to user 4321"], "plugins", "verify", library)


# --- plugins that do not come back ------------------------------------------------------------------------------------


def test_a_plugin_that_does_not_come_back_while_it_is_opened_is_named_and_takes_nothing_with_it():
    env = cache("crash") | {"DITTO_PLUGIN_TIMEOUT_S": "3"}
    wrong = {"crashes_opened": ["signal 11 (Segmentation fault)", "static constructors"],
             "aborts_opened": ["signal 6 (Aborted)", "no licence"],
             "exits_opened": ["ended the process with exit code 0", "entry function"],
             "loops_opened": ["did not come back within DITTO_PLUGIN_TIMEOUT_S = 3 s"],
             "crashes_declaring": ["signal 11", "while it declared its options"]}
    for name, parts in wrong.items():
        where = folder(name)
        parts = [f"kernels '{name}'", f"{name}.so", "in a process of its own"] + parts
        t.refused(3, parts, "plugins", "verify", where / f"{name}.so", env=env)
        done = t.refused(3, parts, "train", naming(name), "--plugin-path", where, *t.sets({"run.output": "crash-run"}), env=env)
        t.check("\x1b" not in done.all, "its words reached the terminal")
    t.check(not (t.work / "crash-run").exists(), "a run's folder was made")


def test_a_plugin_that_crashes_or_exits_while_it_is_made_is_named():
    env = cache("made")
    for name, code, word in (("crashes_made", -signal.SIGSEGV, "signal 11 (Segmentation fault)"), ("exits_made", 3, "exit()")):
        done = t.run("train", naming(name), "--plugin-path", folder(name), *t.sets({"run.output": str(t.work / name)}),
                     code=code, env=env)
        t.check("error: " in done.stderr and word in done.stderr and f"kernels '{name}', being made" in done.stderr,
                done.stderr)


def test_a_library_is_tried_once_and_an_unwritable_cache_costs_no_more_than_time():
    path, where = naming("marks"), folder("marks")
    env = cache("once")
    for number in range(3):
        t.run("config", "check", path, "--plugin-path", where, env=env)
        t.equal(opened("once"), number + 2, "times opened")  # the first time in another process, too
    again = t.work / "again"
    again.mkdir()
    shutil.copy(fixtures / "marks.so", again)
    with open(again / "marks.so", "ab") as library:
        library.write(b"another build")
    t.run("config", "check", path, "--plugin-path", again, env=env)
    t.equal(opened("once"), 6, "times opened, one built again")
    (t.work / "a-file").write_text("")
    for number, place in enumerate((t.work / "a-file", "/proc/no/such")):
        t.run("config", "check", path, "--plugin-path", where, env=env | {"XDG_CACHE_HOME": str(place)})
        t.equal(opened("once"), 8 + 2 * number, "times opened without a cache")


def test_processes_that_start_at_once_share_the_cache():
    env = t.environment | cache("race")
    words = [t.ditto, "config", "check", naming("marks"), "--plugin-path", folder("marks")]
    processes = [subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        said = process.communicate(timeout=t.patient(120))[1]
        t.equal(process.returncode, 0, f"exit code: {said}")
    t.check(4 <= opened("race") <= 8, f"opened {opened('race')} times")
    t.run("config", "check", words[3], *words[4:], env=cache("race"))
    left = [path.name for path in (t.work / "race/ditto/plugins").iterdir() if "." in path.name]
    t.equal(left, [], "unfinished files in the cache")


# --- who can reach a run ----------------------------------------------------------------------------------------------


def listening(pid):
    """The addresses at which a process listens for TCP."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] != "0A" or words[9] not in inodes:
                continue
            raw = bytes.fromhex(words[1].split(":")[0])
            raw = b"".join(raw[i:i + 4][::-1] for i in range(0, len(raw), 4))
            found.add(socket.inet_ntop(family, raw))
    return found


def test_ranks_listen_at_the_address_they_were_given_alone():
    path = t.write_recipe("listen.toml", t.recipe(run=dict(steps=1000000)))
    for host, gloo in ("127.0.0.1", {}), ("localhost", {}), ("127.0.0.2", {}), ("127.0.0.1", {"GLOO_SOCKET_IFNAME": "lo"}):
        output = t.work / f"listen-{host}-{len(gloo)}"
        ranks = []
        port = t.free_port()
        for rank in range(2):
            env = t.environment | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": str(port)} | gloo
            words = [t.ditto, "train", path, "--set", f"run.output={output}"]
            ranks.append(subprocess.Popen(words, cwd=t.work, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
        try:
            t.wait_for(lambda: t.lines_in(output.name) > 1 or any(rank.poll() is not None for rank in ranks), "a step", 120)
            for number, rank in enumerate(ranks):
                t.check(rank.poll() is None, f"rank {number} ended: {rank.poll()}")
                addresses = listening(rank.pid)  # of ranks that share memory the first one alone has some: the store's
                t.check(addresses or (number > 0 and not gloo), f"rank {number} listens nowhere")
                t.check(all(a == "::1" or a.startswith("127.") for a in addresses), f"{host}: rank {number} listens at {addresses}")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def test_an_address_that_is_not_this_machines_is_refused_with_what_to_do():
    path = t.write_recipe("elsewhere.toml", t.recipe())
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": str(t.free_port())}
    done = t.run("train", path, *t.sets({"run.output": "elsewhere"}), code=6, env=env)
    t.check("192.0.2.1" in done.stderr and "MASTER_ADDR" in done.stderr and "0.0.0.0" in done.stderr, done.stderr)


if __name__ == "__main__":
    t.main(globals())
