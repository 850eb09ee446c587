"""Open every page of the built documentation in a headless Chromium; fail if one writes to the console.

    python tools/browse.py [--site site] [--screenshots folder] [--chromium chromium] [--only gallery]

Chromium must be installed, as by `apt-get install chromium`. It asks nothing of the network but this machine's own server.
"""

import argparse
import functools
import http.server
import re
import subprocess
import tempfile
import threading
from pathlib import Path

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --window-size=1280,1600 --virtual-time-budget=4000 --enable-logging=stderr --v=0"
).split()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve files and say nothing of what is found; remember what is not."""

    missing: list[str] = []  # noqa: RUF012, one list for all requests

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def log_error(self, format: str, *args: object) -> None:
        """Remember the address."""
        self.missing.append(self.path)


def spoken(chromium: str, address: str, screenshot: Path | None) -> list[str]:
    """Open a page, and return what it wrote to the console."""
    with tempfile.TemporaryDirectory() as profile:
        picture = [f"--screenshot={screenshot}"] if screenshot else ["--dump-dom"]
        command = [chromium, *FLAGS, *picture, f"--user-data-dir={profile}", address]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr
    return re.findall(r"CONSOLE[^\]]*\] (.*)", told)


def main() -> None:
    """Open them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=Path("site"))
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--only", default="", help="pages whose path contains this")
    options = parser.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=options.site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pages = sorted(path.parent.relative_to(options.site).as_posix() for path in options.site.rglob("index.html"))
    pages = [page for page in pages if options.only in page]
    if not pages:
        raise SystemExit(f"{options.site} has no pages: build them with `make docs`")
    wrong = 0
    for page in pages:
        screenshot = None
        if options.screenshots:
            options.screenshots.mkdir(parents=True, exist_ok=True)
            screenshot = options.screenshots.resolve() / f"{page.replace('/', '-').replace('.', 'home')}.png"
        Quiet.missing.clear()
        found = spoken(options.chromium, f"http://127.0.0.1:{server.server_port}/{page}/", screenshot)
        found += [f"not found: {address}" for address in Quiet.missing]
        wrong += bool(found)
        print(f"{page}: {'; '.join(found) or 'nothing on the console'}", flush=True)
    print(f"{len(pages)} pages, {wrong} with something on the console")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
