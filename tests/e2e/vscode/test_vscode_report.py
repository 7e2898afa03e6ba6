"""Tests the cost report in a real VS Code: numbers, options, themes and widths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sidecar.text.printable import HOW_RECORDED, compact_number, usd_text
from tests.e2e.page_audit import WIDTHS, assert_sound, audit
from tests.e2e.vscode.harness import REPORT, Window, build_page, wait_for

OpenWindow = Callable[..., Window]

USAGE = {"input_tokens": 12_345, "output_tokens": 678}
PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "'\" onclick='alert(1)' onload=alert(1) \"",
    "</table></main><a href=javascript:alert(1)>a</a>",
)
ADDED = "body :is(img, iframe, a:not([download]), [onerror], [onclick], [onload]), main script"
"""A CSS selector for elements that are in the report only if a malicious name injected them."""
TITLE = "h1:has-text('Cost of')"
_IN_REPORT = """
    for (const frame of page.frames()) {
        if (await frame.locator("h1:has-text('Cost of')").count().catch(() => 0)) {
            return await (async () => { BODY })().catch((error) => {
                if (!String(error).includes("detached")) throw error;
                return null;
            });
        }
    }
    return null;
"""

_COUNT_REQUESTS = """
    globalThis.reportRequests = 0;
    const { Socket } = process.getBuiltinModule("net");
    const write = Socket.prototype.write;
    Socket.prototype.write = function (data, ...rest) {
        if (Buffer.from(data).includes('"method":"cost/page"')) globalThis.reportRequests++;
        return write.call(this, data, ...rest);
    };
"""
LATEST_SECONDS = 1
"""The delay after which a visible report is updated, in seconds."""


def in_report(window: Window, body: str, *args: Any) -> Any:
    """Run JavaScript that can use the report's `frame`, and return its result.

    Return None if no report is open.
    """
    return window.page(_IN_REPORT.replace("BODY", body), *args)


def text(window: Window) -> str:
    return str(in_report(window, "return await frame.locator('main').innerText()") or "")


def show(window: Window) -> None:
    window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    wait_for(lambda: "As of" in text(window), "the report")


@pytest.fixture
def shared_window(module_window: Window) -> Window:
    """A window that the module's tests share. Calls that earlier tests recorded are kept."""
    module_window.tidy()
    module_window.show("notes.md", "# Notes\n")
    wait_for(lambda: "token" in (module_window.status() or ""), "the count")
    return module_window


def test_the_report_is_live_and_follows_the_choices(open_window: OpenWindow) -> None:
    """An empty report explains how calls are recorded. An unpriced call is not displayed as
    free.
    """
    window = open_window({"notes.md": "# Notes\n"})  # a workspace without recorded calls
    window.show("notes.md")
    show(window)
    assert "No calls recorded this month." in text(window)
    assert HOW_RECORDED in text(window)
    assert HOW_RECORDED in window.ask("cost/detail")["text"]

    window.ask("cost/record", model="a-model-without-a-price", usage=USAGE)
    wait_for(lambda: len(cells(window)) == 1, "the new call without a request")
    assert cells(window)[0][-1] == "unpriced"
    assert "13,023 tokens have no known price" in text(window)
    assert "$0" not in text(window)

    cached = {"input_tokens": 900, "cache_read_input_tokens": 80_000, "output_tokens": 1_234}
    for _ in range(2):
        window.ask("cost/record", model="gpt-5", usage=USAGE, session="talk")
    window.ask("cost/record", model="claude-opus-4-5", usage=cached)
    wait_for(lambda: sum(int(row[1]) for row in cells(window)) == 4, "all calls")
    rows = window.ask("cost/detail", by=["model"])["rows"]
    assert sorted(cells(window)) == sorted(cells_of(row) for row in rows)
    assert ["claude-opus-4-5", "1", "900", "0", "80k", "1.23k"] in [
        row[:-1] for row in cells(window)
    ]
    assert f"≥{usd_text(window.ask('cost/detail')['totals']['costUsd'])}" in text(window)

    in_report(window, "await frame.locator('#by-session').check(); return true")
    wait_for(lambda: "By session" in text(window), "the grouping by session")
    assert "talk · conversation" in text(window)
    in_report(window, "await frame.locator('#period-custom').check(); return true")
    wait_for(
        lambda: in_report(window, "return await frame.locator('input[type=date]').count()") == 2,
        "the dates",
    )
    in_report(window, "await frame.locator('#until').fill('2020-01-01'); return true")
    wait_for(lambda: "No calls recorded in this range." in text(window), "the chosen range")


def cells(window: Window) -> list[list[str]]:
    """Return the cells of the table "Cost by model", row by row."""
    code = """
        const rows = frame.locator("table[aria-label='Cost by model'] tbody tr");
        return await rows.evaluateAll((all) =>
            all.map((row) => [...row.children].map((cell) => cell.textContent)));
    """
    return in_report(window, code) or []


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the table cells that are expected for a `cost/detail` row."""
    read, write = row["cacheReadTokens"], row["cacheWriteTokens"]
    numbers = (row["promptTokens"] - read - write, write, read, row["completionTokens"])
    cost = "unpriced" if row["costUsd"] is None else usd_text(row["costUsd"])
    return [row["model"], str(row["calls"]), *map(compact_number, numbers), cost]


def test_names_add_no_elements_to_the_report(shared_window: Window) -> None:
    window = shared_window
    for payload in PAYLOADS:
        window.ask("cost/record", model=payload, usage=USAGE, session=payload)
    show(window)
    for group in ("model", "session"):
        in_report(window, "await frame.locator(args[0]).check(); return true", f"#by-{group}")
        wait_for(lambda: all(each in text(window) for each in PAYLOADS), f"the names by {group}")
        assert in_report(window, "return await frame.locator(args[0]).count()", ADDED) == 0


def test_a_hidden_or_closed_report_requests_nothing(shared_window: Window) -> None:
    window = shared_window
    first, second, third = (f"model-{uuid4()}" for _ in range(3))
    show(window)
    window.host(_COUNT_REQUESTS)
    window.ask("cost/record", model=first, usage=USAGE)
    wait_for(lambda: first in text(window), "the new call in the visible report")
    assert requests(window) > 0

    window.host("await vscode.commands.executeCommand('workbench.action.joinAllGroups')")
    window.show("notes.md")
    wait_for(lambda: text(window) == "", "the report behind the document")
    assert_quiet(window, second)
    show(window)
    wait_for(lambda: second in text(window), "the latest report when it is revealed")

    window.host("await vscode.commands.executeCommand('workbench.action.closeAllEditors')")
    window.show("notes.md")
    assert_quiet(window, third)
    show(window)
    wait_for(lambda: third in text(window), "the latest report when it is opened again")


def assert_quiet(window: Window, model: str) -> None:
    """Record a call, and check that the report is not updated."""
    before = requests(window)
    window.ask("cost/record", model=model, usage=USAGE)
    time.sleep(2 * LATEST_SECONDS)
    assert requests(window) == before


def requests(window: Window) -> int:
    """Return how often the extension has requested the report."""
    return int(window.host("return globalThis.reportRequests"))


@pytest.mark.slow  # tests/e2e/cost audits the same page
def test_the_report_is_sound_in_every_theme_and_width(shared_window: Window) -> None:
    window = shared_window
    for model in (
        "gpt-5",
        "claude-sonnet-4-5",
        "a-vendor/a-model-with-a-very-long-name-2026-11-25",
    ):
        for day in (3, 9):
            at = f"2026-11-{day:02}T12:00:00Z"
            window.ask("cost/record", model=model, usage=USAGE, session="a long talk", at=at)
    window.host("await vscode.commands.executeCommand('workbench.action.closeAllEditors')")
    window.host("await vscode.commands.executeCommand('workbench.action.closeSidebar')")
    show(window)
    window.host("await vscode.commands.executeCommand('workbench.action.joinAllGroups')")
    in_report(window, "await frame.locator('#period-all').check(); return true")
    for theme in window.themes():
        for width in WIDTHS:
            window.page("await page.setViewportSize({width: args[0], height: 900})", width + 48)
            wait_for(lambda: "Spend by" in text(window), "the report")
            assert_sound(audit(window.browser, TITLE))
            window.screenshot(f"report-{theme}-{width}")
    window.page("await page.setViewportSize({width: 1100, height: 650})")


_LIVE_PAGE = """
    const module = { exports: {} };
    const load = (name) => name === "vscode" ? vscode : process.getBuiltinModule(name);
    new Function("require", "module", "exports", args[0])(load, module, module.exports);
    const panel = vscode.window.createWebviewPanel("t", "Test", vscode.ViewColumn.One, {});
    const requests = {};
    const request = ({ name }) => new Promise((resolve, reject) => {
        const html = `<h4>${name}</h4>`;
        requests[name] = { reply: () => resolve({ title: "", style: "", html }), reject };
    });
    const page = new module.exports.LivePage(panel, request, { name: "first" });
    panel.onDidDispose(() => page.dispose());
    globalThis.live = { panel, page, requests };
    await until(() => requests.first);
    requests.first.reply();
"""


@pytest.fixture
def live_page(module_window: Window, tmp_path: Path) -> Window:
    """A window with a `live` page in the extension host. The test answers the page's requests."""
    window = module_window
    window.tidy()
    window.host(_LIVE_PAGE, build_page(tmp_path).read_text())
    wait_for(lambda: window.frame_text("main h4") == "first", "the first page")
    return window


def test_a_slow_reply_does_not_replace_a_newer_page(live_page: Window) -> None:
    """If an update fails, the page stays and shows an error until the next update."""
    live_page.host("""
        const { page, requests } = live;
        const slow = page.show({ name: "slow" });
        const fast = page.show({ name: "fast" });
        requests.fast.reply();
        await fast;
        requests.slow.reply();
        await slow;
        const failed = page.show({ name: "failed" });
        requests.failed.reject(new Error("the server is gone"));
        await failed;
    """)
    failure = "Could not read the latest numbers: the server is gone."
    wait_for(lambda: live_page.frame_text("#status") == failure, "the failure")
    assert live_page.frame_text("main h4") == "fast"
    live_page.host("""
        const last = live.page.show({ name: "last" });
        live.requests.last.reply();
        await last;
    """)
    wait_for(lambda: live_page.frame_text("main h4") == "last", "the last page")
    assert live_page.frame_text("#status") == ""


def test_a_reply_after_the_panel_was_closed_is_dropped(live_page: Window) -> None:
    live_page.host("""
        const { panel, page, requests } = live;
        const late = page.show({ name: "late" });
        panel.dispose();
        requests.late.reply();
        await late;
    """)


def test_the_report_says_when_it_could_not_be_updated(shared_window: Window) -> None:
    window = shared_window
    window.ask("cost/record", model="gpt-5", usage=USAGE)
    show(window)
    wait_for(lambda: "gpt-5" in text(window), "the call")
    window.server.configure({"tokenSidecar.server.path": "/bin/false"})
    wait_for(lambda: window.messages() != [], "a message")
    window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    status = "p[role=status]:not([hidden])"
    wait_for(lambda: "the server is not running" in window.frame_text(status), "the failed update")
    assert "gpt-5" in window.frame_text(REPORT)
    window.screenshot("report-not-updated")
    window.server.configure({})
    window.wait_status("")
    window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    wait_for(lambda: window.frame_text(status) == "", "the updated report")
    assert "gpt-5" in window.frame_text(REPORT)
