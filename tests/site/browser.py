"""Looks at pages in a headless browser: broken pictures, and what is wider than its screen."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
WAIT_S = 240
# Each page is shown in a frame of a screen's width, which its own rules for narrow screens see.
LOOK = """<!doctype html><title>look</title><script>
const scrolls = el => ["auto", "scroll", "hidden"].includes(getComputedStyle(el).overflowX);
function isCut(el, width) {
  const box = el.getBoundingClientRect();
  if (box.width === 0 || box.right <= width + 1) return false;
  for (let up = el.parentElement; up; up = up.parentElement)
    if (up.localName !== "body" && up.localName !== "html" && scrolls(up)
        && up.getBoundingClientRect().right <= width + 1) return false;
  return true;
}
async function break_rules(shown, axe) {
  const script = shown.createElement("script");
  script.textContent = axe;
  shown.head.append(script);
  const { violations } = await shown.defaultView.axe.run();
  return violations.map(of => `${of.id}: ${of.help}: ${of.nodes[0].html.slice(0, 100)}`);
}
async function look(page, width, axe) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  const loaded = new Promise(done => { frame.onload = done; });
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const shown = frame.contentDocument;
  const faults = [...shown.images].filter(one => !one.complete || one.naturalWidth === 0)
    .map(one => `broken picture ${one.getAttribute("src")}`);
  const root = shown.documentElement;
  if (root.scrollWidth > width) faults.push(`${root.scrollWidth} px wide`);
  const cut = [...shown.querySelectorAll("article *, main *")].find(el => isCut(el, width));
  if (cut) faults.push(`<${cut.localName}> is cut: ${cut.textContent.trim().slice(0, 60)}`);
  if (axe) faults.push(...await break_rules(shown, axe));
  frame.remove();
  return faults.map(fault => `${page} at ${width} px: ${fault}`);
}
onload = async () => {
  const { pages, widths, axe } = await (await fetch("/asked.json")).json();
  const found = [];
  let seen = 0;
  for (const page of pages) for (const width of widths) {
    found.push(...await look(page, width, axe));
    seen += 1;
  }
  await fetch("/found.json", { method: "POST", body: JSON.stringify({ seen, found }) });
};
</script><body></body>"""


class _Pages(SimpleHTTPRequestHandler):
    def __init__(
        self, *args: Any, asked: str, found: list[Any], done: threading.Event, **rest: Any
    ):
        self.asked, self.found, self.done = asked, found, done
        super().__init__(*args, **rest)

    def do_GET(self) -> None:
        made = {"/look.html": ("text/html", LOOK), "/asked.json": ("application/json", self.asked)}
        if self.path not in made:
            super().do_GET()
            return
        kind, text = made[self.path]
        self._answer(kind, text.encode())

    def do_POST(self) -> None:
        self.found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer("text/plain", b"")
        self.done.set()

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def faults_of(
    folder: Path,
    pages: Sequence[str],
    *,
    widths: Sequence[int],
    own: Path,
    axe: str = "",
    dark: bool = False,
) -> list[str]:
    """What is wrong with pages of a folder on screens of these widths.

    Args:
        folder: it is served.
        pages: paths in it.
        widths: in pixels.
        own: a folder for the browser itself.
        axe: the text of axe.min.js, whose rules for accessibility are then held to, too.
        dark: whether the reader prefers dark pages.

    Raises:
        TimeoutError: the browser has not answered in time.
    """
    found: list[Any] = []
    done = threading.Event()
    paths = [f"/{page}" for page in pages]
    asked = json.dumps({"pages": paths, "widths": list(widths), "axe": axe})
    handler = partial(_Pages, directory=str(folder), asked=asked, found=found, done=done)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        url = f"http://127.0.0.1:{server.server_address[1]}/look.html"
        running = subprocess.Popen(
            [BROWSER, *options, "--window-size=1400,900", f"--user-data-dir={own}", url],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            if not done.wait(WAIT_S):
                raise TimeoutError(f"{BROWSER} has not looked at {len(pages)} pages in {WAIT_S} s")
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            server.shutdown()
    assert found[0]["seen"] == len(pages) * len(widths)
    return list(found[0]["found"])
