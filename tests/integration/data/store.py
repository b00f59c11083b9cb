"""Shards on an HTTP server: the same training as from the disk, also where the server fails, stalls and closes.

Claim (data): Shards on an HTTP server that fails, stalls and closes give the losses of the disk, bit for bit; a sample that
never comes is named, and the others are kept; what is signed for S3 follows no redirection.
"""

import contextlib
import hashlib
import hmac
import http.server
import json
import pathlib
import re
import shutil
import struct
import sys
import tarfile
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import support as t  # noqa: E402


t.environment |= {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Files of `server.folder` by ranges. `server.fault` says of each request what goes wrong, given its number, path, first byte;
    an address is one that it sends the client to."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.server.folder / urllib.parse.unquote(self.path).lstrip("/")
        with server.lock:
            number, server.count = server.count, server.count + 1
            server.requests.append((self.path, dict(self.headers)))
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        fault = server.fault(number, self.path, first)
        if isinstance(fault, int):
            return self.send_error(fault)
        if fault and fault.startswith("http"):
            self.send_response(307)
            self.send_header("Location", fault)
            self.send_header("Content-Length", "5")
            self.end_headers()
            return self.wfile.write(b"moved")
        part = data[first:last + 1]
        if fault == "stall":
            time.sleep(2.5)
        self.send_response(200 if fault == "no ranges" else 206)
        body = data if fault == "no ranges" else part
        if fault != "no ranges":
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{number if fault == "changes" else 0}"')
        self.end_headers()
        if fault == "close":
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # a client that went away
        pass


@contextlib.contextmanager
def serving(folder, fault=lambda number, path, first: None):
    server = Server(("127.0.0.1", 0), Handler)
    server.folder, server.fault, server.lock, server.count, server.requests = folder, fault, threading.Lock(), 0, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def pictures():
    """A prepared set of 120 digits, made once."""
    out = t.work / "set"
    if out.exists():
        return out
    for member, data in members(t.digits / "train-000000.tar"):
        key, extension = member.split(".")
        if extension == "png":
            picture = data
        elif int(key) < 120:
            path = t.work / "photos" / data.decode().strip() / f"{key}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture)
    t.run("data", "prepare", t.work / "photos", "--out", out)
    return out


def members(path):
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]


def recipe(name, **data):
    return t.write_recipe(f"{name}.toml", t.recipe(run=dict(name=name, steps=4), loader=dict(shuffle=False), data=dict(
        shards=[], validation_shards=[], size=[8, 8], store_timeout_s=1.0, store_retries=3) | data))


def test_a_server_gives_the_losses_of_the_disk():
    t.train(recipe("disk", path=str(pictures())), "disk")
    with serving(t.work) as server:
        t.train(recipe("served", path=f"{server.url}/set"), "served")
        t.train(recipe("listed", shards=[f"{server.url}/set/train-{{000000..000000}}.tar"]), "listed")
    t.same_metrics("disk", "served")
    t.same_metrics("disk", "listed")


def test_classes_are_asked_for_where_the_recipe_leaves_them_open():
    t.train(recipe("disk", path=str(pictures())), "known")
    with serving(t.work) as server:
        t.train(recipe("said", path=f"{server.url}/set"), "said")
        t.check("/set/classes.json" not in [path for path, _ in server.requests], "classes.json was asked for")
        for name, place in (("asked", dict(path=f"{server.url}/set")), ("asked-listed", dict(shards=[f"{server.url}/set/train-000000.tar"]))):
            t.train(recipe(name, classes=0, **place), name)
            t.same_metrics("known", name)
        t.check("/set/classes.json" in [path for path, _ in server.requests], "nobody asked for classes.json")
    with serving(t.work, lambda number, path, first: 403 if path.endswith("classes.json") else None) as server:
        t.refused(4, ["/set/classes.json", "the server answers 403"], "train", recipe("hidden", path=f"{server.url}/set", classes=0))


def test_folders_of_other_classes_are_not_mixed():
    """Labels are numbers: that one folder's 3 is another's 4 only the names tell."""
    names = json.loads((pictures() / "classes.json").read_text())
    for folder, theirs in (("same", names), ("other", names[::-1])):
        shutil.copytree(pictures(), t.work / folder)
        (t.work / folder / "classes.json").write_text(json.dumps(theirs))
    with serving(t.work) as server:
        def both(folder, held_out=False, **data):
            shards = [f"{server.url}/{one}/train-000000.tar" for one in ("set", folder)]
            return recipe("both", shards=shards[:1] if held_out else shards, validation_shards=shards[1:] if held_out else [], **data)

        for data in (dict(classes=0), dict(classes=len(names)), dict(classes=len(names), held_out=True)):
            t.refused(4, [f"{server.url}/other/classes.json", "names other classes than", f"{server.url}/set/classes.json"], "train",
                      both("other", **data), *t.sets({"run.output": str(t.work / "mixed")}))
        for data in (dict(classes=0), dict(classes=len(names))):
            t.train(both("same", **data), f"same-{data['classes']}", run__steps=1)
    # Who may not list a store hears 403 of what is not there.
    with serving(t.work, lambda number, path, first: 403 if path == "/other/classes.json" else None) as server:
        t.train(both("other", classes=0), "hidden-open", run__steps=1)
        t.train(both("other", classes=len(names)), "hidden-said", run__steps=1)


def test_failures_that_pass_change_nothing():
    def fault(number, path, first):
        return {3: 503, 5: "close", 6: 429}.get(number % 8) if path.endswith(".tar") and number != 20 else \
            "stall" if number == 20 else None

    with serving(t.work, fault) as server:
        done = t.train(recipe("failing", path=f"{server.url}/set"), "failing")
        t.check(server.count > 70, f"{server.count} requests")
    t.check("left out" not in done.all, done.all)
    t.same_metrics("disk", "failing")


def test_a_sample_that_never_comes_is_named_and_the_others_are_kept():
    path = pictures() / "train-000000.tar"
    index = (pictures() / "train-000000.tar.idx").read_bytes()
    starts = struct.unpack(f"<{len(index) // 8}Q", index)
    bad = 17
    # On the disk the same picture, damaged.
    shutil.copytree(pictures(), t.work / "damaged")
    data = bytearray(path.read_bytes())
    at = data.index(b"\x89PNG", starts[bad])
    t.check(at < starts[bad + 1], "the sample has no PNG")
    data[at:at + 8] = bytes(8)
    (t.work / "damaged" / path.name).write_bytes(data)
    t.train(recipe("damaged", path=str(t.work / "damaged")), "damaged-run")
    with serving(t.work, lambda number, name, first: 503 if first == starts[bad] else None) as server:
        done = t.train(recipe("holed", path=f"{server.url}/set"), "holed")
    left_out = [line for line in done.all.splitlines() if "left out" in line]
    t.equal(len(left_out), 1, "samples left out: " + done.all)
    for part in (f"sample {bad}", f"{server.url}/set/train-000000.tar", "the server answers 503, tried 4 times", "data.store_retries"):
        t.check(part in left_out[0], f"no \"{part}\" in: {left_out[0]}")
    t.same_metrics("damaged-run", "holed")


def test_what_does_not_pass_ends_the_start_with_its_address():
    def refused(parts, fault=lambda *_: None, shards=None):
        with serving(t.work, fault) as server:
            data = {"shards": [server.url + shards]} if shards else {"path": f"{server.url}/set"}
            began = time.monotonic()
            t.refused(4, parts, "train", recipe("refused", store_retries=1, **data))
            t.check(time.monotonic() - began < 20, "it took over 20 s")

    pictures()
    refused(["/nowhere.tar", "the server answers 404", "check the address"], shards="/nowhere.tar")
    refused(["the server answers 403"], lambda *_: 403)
    refused(["the server answers 503, tried 2 times"], lambda *_: 503)
    refused(["it serves no ranges"], lambda *_: "no ranges")
    refused(["changed while it was read"], lambda number, path, first: "changes" if path.endswith(".tar") else None,
            shards="/set/train-000000.tar")
    t.refused(4, ["127.0.0.1:9", "tried 2 times"], "train", recipe("refused", shards=["http://127.0.0.1:9/a.tar"], store_retries=1))


def test_requests_are_signed_as_s3_asks():
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a secret", "AWS_SESSION_TOKEN": "a token"}
    t.refused(2, ["AWS_ACCESS_KEY_ID"], "train", recipe("unsigned", path="http://127.0.0.1:9/set", store_region="eu-west-1"),
              env={name: "" for name in keys})
    pictures()
    with serving(t.work) as server:
        t.train(recipe("signed", path=f"{server.url}/set", store_region="eu-west-1"), "signed", env=keys, run__steps=1)
        for path, headers in server.requests:
            headers = {name.lower(): value for name, value in headers.items()}
            credential, signed, signature = re.fullmatch(
                r"AWS4-HMAC-SHA256 Credential=([^,]+), SignedHeaders=([^,]+), Signature=(\w+)", headers["authorization"]).groups()
            date = headers["x-amz-date"]
            scope = f"{date[:8]}/eu-west-1/s3/aws4_request"
            t.equal(credential, f"{keys['AWS_ACCESS_KEY_ID']}/{scope}", "credential")
            content = headers.get("x-amz-content-sha256", hashlib.sha256(b"").hexdigest())
            canonical = "\n".join(["GET", path, "", *(f"{name}:{headers[name]}" for name in signed.split(";")), "", signed, content])
            to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
            key = ("AWS4" + keys["AWS_SECRET_ACCESS_KEY"]).encode()
            for part in (*scope.split("/"),):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            t.equal(signature, hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest(), "signature")
            t.check({"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"} <= set(signed.split(";")), f"signed: {signed}")


def test_signed_requests_follow_no_redirection():
    pictures()
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a secret", "AWS_SESSION_TOKEN": "a token"}
    with serving(t.work) as other, serving(t.work, lambda number, path, first: other.url + path) as server:
        moved = recipe("moved", path=f"{server.url}/set")
        t.train(moved, "moved", run__steps=1)
        followed = len(other.requests)
        t.check(followed > 0, "an unsigned request does not follow a redirection")
        t.refused(4, ["the server answers 307, a redirection to " + other.url, "data.store_region"], "train", moved,
                  *t.sets({"data.store_region": "eu-west-1", "run.output": str(t.work / "moved-signed")}), env=keys)
        t.equal(len(other.requests), followed, "requests at the second server")
        t.check("x-amz-security-token" in str(server.requests[-1]).lower(), "the first server was asked without a token")


if __name__ == "__main__":
    t.main(globals())
