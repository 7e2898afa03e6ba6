"""Runs a real VS Code: a server, a browser, and access to the extension host."""

from __future__ import annotations

import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.e2e import editors_setup
from tests.e2e.editors_setup import VSCode

HERE = Path(__file__).resolve().parent
EXTENSION = editors_setup.EXTENSION
PATIENCE_S = 60.0
OPENINGS = 3
"""Maximum attempts to open a workspace. VS Code may open a workspace file without its folders."""
TIDY = """
    const run = vscode.commands.executeCommand;
    await run("workbench.action.closeQuickOpen");
    while (vscode.window.tabGroups.all.some((group) => group.tabs.length))
        await run("workbench.action.revertAndCloseActiveEditor");
    await run("notifications.clearAll");
"""
THEMES = {
    "light": "Default Light Modern",
    "dark": "Default Dark Modern",
    "high-contrast": "Default High Contrast",
    "high-contrast-light": "Default High Contrast Light",
}
"""Theme names, keyed by the CSS class that VS Code sets in webviews."""
CONTEXT = "main:has(h1):not(:has(form))"
REPORT = "main:has(form)"
"""CSS selectors for the contents of the context view and the cost report."""
STATUS_ITEM = "token-sidecar.token-sidecar.status"

SETTINGS = {
    "security.workspace.trust.enabled": False,
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "workbench.reduceMotion": "on",
    "editor.cursorBlinking": "solid",
    "window.autoDetectColorScheme": True,
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
    "extensions.autoUpdate": False,
    "extensions.ignoreRecommendations": True,
    "update.mode": "none",
    "git.enabled": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "files.autoSave": "off",
    "editor.acceptSuggestionOnEnter": "off",
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
}


@functools.cache
def build_vsix() -> Path:
    """Build the extension with `npm run package`."""
    vscode = editors_setup.ensure_vscode()
    editors_setup.ensure_extension_packages(vscode)
    editors_setup.npm(["run", "--silent", "package"], EXTENSION, vscode.node)
    (vsix,) = EXTENSION.glob("*.vsix")
    return vsix


def build_probe(folder: Path) -> Path:
    """Build the test extension. A .vsix file is a zip archive that contains an extension in a
    folder.
    """
    vsix = folder / "probe.vsix"
    with zipfile.ZipFile(vsix, "w") as archive:
        for file in (HERE / "probe").iterdir():
            archive.write(file, f"extension/{file.name}")
    return vsix


def build_sample(folder: Path) -> Path:
    """Build the sample extension with the commands in its header."""
    sample = EXTENSION / "sample"
    bundle = _bundle(sample / "extension.ts", folder / "sample.js")
    vsix = folder / "sample.vsix"
    with zipfile.ZipFile(vsix, "w") as archive:
        archive.write(sample / "package.json", "extension/package.json")
        archive.write(bundle, "extension/extension.js")
    return vsix


def build_page(folder: Path) -> Path:
    """Build a JavaScript bundle that exports `LivePage`."""
    return _bundle(EXTENSION / "src/page.ts", folder / "page.js")


def _bundle(source: Path, bundle: Path) -> Path:
    vscode = editors_setup.ensure_vscode()
    esbuild = ["exec", "--offline", "--", "esbuild", str(source), f"--outfile={bundle}"]
    options = ["--bundle", "--platform=node", "--format=cjs", "--external:vscode"]
    texts = "--loader:.client.js=text"
    editors_setup.npm([*esbuild, *options, texts], EXTENSION, vscode.node)
    return bundle


class CodeServer:
    """A VS Code server in its own process group, with both extensions installed."""

    def __init__(self, folder: Path, vscode: VSCode, path: str | None = None) -> None:
        """Create a server without starting it.

        Args:
            path: PATH in the login shell. By default, the PATH of this process.
        """
        self.folder, self.vscode = folder, vscode
        self.path = path or f"{Path(sys.executable).parent}:$PATH"
        self.user = folder / "user"
        self.home = folder / "home"
        self.settings: dict[str, Any] = {}
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def install(self, *extensions: Path) -> None:
        """Install .vsix files."""
        named = [
            argument
            for extension in extensions
            for argument in ("--install-extension", str(extension))
        ]
        with (self.folder / "install.log").open("wb") as log:
            command = [*self._command(), *named]
            subprocess.run(command, check=True, env=self._environment(), stdout=log, stderr=log)

    def start(self, cwd: Path | None = None) -> None:
        """Start the server in this folder, and wait until it responds."""
        self.home.mkdir(exist_ok=True)
        # VS Code takes PATH from the login shell.
        line = f'export PATH="{self.path}"\n'
        for name in (".profile", ".bash_profile"):
            (self.home / name).write_text(line)
        (self.folder / "config.toml").touch()
        self.configure({})
        arguments = ["--bind-addr", f"127.0.0.1:{self.port}", "--auth", "none"]
        quiet = ["--disable-telemetry", "--disable-update-check"]
        with (self.folder / "code-server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command(), *arguments, *quiet],
                cwd=cwd,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._healthy, "code-server to answer")

    def configure(self, settings: dict[str, Any]) -> None:
        """Write settings in addition to the tests' defaults.

        Our extension's settings are written to the machine's settings file, because a remote window
        such as code-server's reads settings of scope `machine` only from there, and does not watch
        the user's file. Files are replaced atomically and only if they have changed, because
        VS Code rejects an incomplete file.
        """
        ours = {key: value for key, value in settings.items() if key.startswith("tokenSidecar.")}
        others = {key: value for key, value in settings.items() if key not in ours}
        for name, values in (("User", SETTINGS | others), ("Machine", ours)):
            file = self.user / name / "settings.json"
            text = json.dumps(values, indent=2)
            if file.is_file() and file.read_text() == text:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            written = file.with_suffix(".written")
            written.write_text(text)
            written.replace(file)

    def url(self, kind: str, path: Path) -> str:
        """Return the URL that opens a folder or a workspace file, depending on `kind`."""
        return f"http://127.0.0.1:{self.port}/?{kind}={quote(str(path))}"

    def stop(self) -> None:
        """Stop all processes of the server."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def _command(self) -> list[str]:
        entry = [str(self.vscode.node), str(self.vscode.entry)]
        folders = ["--extensions-dir", str(self.folder / "extensions")]
        return [*entry, *folders, "--user-data-dir", str(self.user)]

    def _environment(self) -> dict[str, str]:
        state = {
            "TOKEN_SIDECAR_STATE": str(self.folder / "state"),
            "TOKEN_SIDECAR_CONFIG": str(self.folder / "config.toml"),
        }
        return os.environ | {"HOME": str(self.home), "SHELL": "/bin/bash"} | state

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Browser:
    """A Chromium browser with one page. Playwright controls it from a Node process."""

    def __init__(self, vscode: VSCode, chromium: Path) -> None:
        self.vscode = vscode
        environment = os.environ | {"NODE_PATH": str(vscode.modules)}
        self.process = subprocess.Popen(
            [str(vscode.node), str(HERE / "driver.js"), str(chromium)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.window: Window | None = None
        self._answer()

    def run(self, code: str, *args: Any) -> Any:
        """Run JavaScript in the Node process, and return its result, decoded from JSON.

        The code can use `page` and `args`.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"code": code, "args": args}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the browser's driver exited"
        return _result(json.loads(line))

    def stop(self) -> None:
        """Close the browser, and stop all of its processes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


class Window:
    """A window of VS Code, consisting of a page and an extension host."""

    def __init__(self, server: CodeServer, browser: Browser, root: Path) -> None:
        self.server, self.browser, self.root = server, browser, root
        self.socket = root.parent / "probe.sock"

    def open(self, kind: str = "folder") -> None:
        """Open the folder or workspace file, and wait until the extension host responds."""
        self.browser.window = self
        folders = "return (vscode.workspace.workspaceFolders ?? []).length"
        for _ in range(OPENINGS):
            self.socket.unlink(missing_ok=True)
            self.browser.run("await page.goto(args[0])", self.server.url(kind, self.root))
            wait_for(self._answers, "the extension host to answer")
            if self.host(folders):
                return
        raise AssertionError("VS Code opened the workspace without its folders")

    def tidy(self) -> None:
        """Show this window, and close all editors, pickers and notifications."""
        self.server.configure({})
        if self.browser.window is not self:
            self.open()
        self.host(TIDY)
        self.page("await page.emulateMedia({colorScheme: 'dark'}); await page.mouse.move(400, 300)")

    def host(self, code: str, *args: Any) -> Any:
        """Run JavaScript in the extension host. The code can use `vscode`, `until` and `args`."""
        connection = _UnixConnection(self.socket)
        try:
            connection.request("POST", "/", json.dumps({"code": code, "args": args}))
            return _result(json.loads(connection.getresponse().read()))
        finally:
            connection.close()

    def page(self, code: str, *args: Any) -> Any:
        """Run JavaScript in the Node process. The code can use `page` and `args`."""
        return self.browser.run(code, *args)

    def show(self, name: str, text: str | None = None, *, status: str | None = None) -> Path:
        """Open a workspace file in the editor, and wait until its status starts with `status`.

        If `text` is given, write it to the file first.
        """
        path = (self.root if self.root.is_dir() else self.root.parent) / name
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        self.host("await vscode.window.showTextDocument(vscode.Uri.file(args[0]))", str(path))
        if status is not None:
            self.wait_status(status)
        return path

    def focus(self) -> None:
        """Move the keyboard focus to the editor."""
        self.page("await page.locator('.native-edit-context, textarea.inputarea').first().focus()")

    def status(self) -> str | None:
        """Return the status bar item's text, or None if the item is hidden."""
        # Read everything in one step, because the item may disappear between two steps.
        label = self.page(
            "return await page.evaluate((id) => "
            "document.querySelector(`[id='${id}'] a`)?.getAttribute('aria-label') ?? null, args[0])",
            STATUS_ITEM,
        )
        return None if label is None else str(label)

    def wait_status(self, text: str) -> str:
        """Wait until the status bar item's text is `text`, or starts with it."""
        seen: list[str | None] = []

        def shown() -> bool:
            seen.append(self.status())
            return (seen[-1] or "").startswith(text)

        def missed() -> str:
            return f"{text!r} in the status bar; shown: {seen[-1]!r}, messages: {self.messages()}"

        wait_for(shown, missed)
        return seen[-1] or ""

    def themes(self) -> Iterator[str]:
        """Switch to each theme, and yield its name once webviews use it."""
        change = "await vscode.workspace.getConfiguration().update(args[0], args[1], true)"
        classes = """
            for (const frame of page.frames())
                if (await frame.locator("main").count().catch(() => 0))
                    return await frame.evaluate(() => document.body.className).catch(() => "");
            return "";
        """
        self.host(change, "window.autoDetectColorScheme", False)
        for name, theme in THEMES.items():
            self.host(change, "workbench.colorTheme", theme)
            wait_for(lambda: f"vscode-{name}" in self.page(classes).split(), theme)  # noqa: B023
            yield name

    def frame_text(self, selector: str) -> str:
        """Return an element's text in a webview, or "" if the element is not displayed."""
        code = """
            for (const frame of page.frames()) {
                if (!(await frame.locator(args[0]).count().catch(() => 0))) continue;
                return await frame.locator(args[0]).innerText({ timeout: 500 }).catch(() => "");
            }
            return "";
        """
        return str(self.page(code, selector))

    def context(self) -> str:
        """Return the context view's text, or "" if the view is hidden."""
        return self.frame_text(CONTEXT)

    def sessions(self) -> list[str]:
        """Return the rows in the session tree."""
        rows = "page.locator('.pane', {has: page.locator('.title', {hasText: /^Sessions$/i})})"
        code = f"return await {rows}.locator('.monaco-list-row').allInnerTexts()"
        return [str(text).replace("\n", " ") for text in self.page(code)]

    def screenshot(self, name: str) -> None:
        """Save a picture of the page."""
        path = editors_setup.FOLDER / "screenshots" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page("await page.screenshot({path: args[0]})", str(path))

    def ask(self, method: str, **params: Any) -> Any:
        """Send a protocol request through the API for other extensions."""
        code = """
            const ours = vscode.extensions.getExtension("token-sidecar.token-sidecar");
            return await ours.exports.request(args[0], args[1]);
        """
        return self.host(code, method, params)

    def messages(self) -> list[str]:
        """Return the notifications on the page."""
        find = "page.locator('.notification-list-item-message').allInnerTexts()"
        return [str(text) for text in self.page(f"return await {find}")]

    def press_button(self, name: str) -> None:
        """Press a notification's button."""
        button = ".notifications-toasts .monaco-button"
        self.page(f"await page.locator('{button}', {{hasText: args[0]}}).first().click()", name)

    def server_pid(self) -> int | None:
        """Return the process id of the server that this window started."""
        host = int(self.host("return process.pid"))
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent == host and b"serve" in command:
                return int(folder.name)
        return None

    def _answers(self) -> bool:
        try:
            return bool(self.host("return true"))
        except (OSError, http.client.HTTPException):
            return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


def wait_for(test: Any, what: Any, seconds: float = PATIENCE_S) -> None:
    """Wait until `test()` is true.

    Raises:
        AssertionError: A timeout occurred. The message includes `what`.
    """
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end, f"timeout: {what() if callable(what) else what}"
        time.sleep(0.1)


def _result(reply: dict[str, Any]) -> Any:
    assert "error" not in reply, reply["error"]
    return reply["result"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
