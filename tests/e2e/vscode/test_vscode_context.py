"""A conversation in a real VS Code: the context view, the cost report, the model, the reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sidecar.counting.engines.reference import Reference
from tests.e2e.vscode.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.vscode.harness import Window

    OpenWindow = Callable[..., Window]

TEXT = "Explain the failing 試験 to a newcomer. 🙂\n"
O200K = f"{Reference('o200k_base').count_whole(TEXT):,} tokens"
CL100K = f"{Reference('cl100k_base').count_whole(TEXT):,} tokens"
TURNS = [
    {"role": "user", "content": "Why does the test of the parser fail?"},
    {"role": "assistant", "content": "It expects a comma that the grammar left out."},
]
USAGE = {"input_tokens": 12_345, "output_tokens": 678}
VIEW = "page.locator('.pane', {has: page.locator('.title', {hasText: /^Token Context$/i})})"


def tree(window: Window) -> str:
    """What the context view shows."""
    return str(window.page(f"return await {VIEW}.locator('.pane-body').innerText()"))


def report(window: Window) -> Any:
    """Text and colours of the cost report's page."""
    code = """
        for (const frame of page.frames()) {
            if (await frame.locator("h1:has-text('Cost of this workspace')").count()) {
                return await frame.evaluate(() => ({
                    text: document.body.innerText,
                    color: getComputedStyle(document.body).color,
                }));
            }
        }
        return null;
    """
    return window.page(code)


@pytest.fixture
def talking(open_window: OpenWindow) -> Window:
    """A window with a conversation whose usage a vendor reported, and a call that was paid."""
    window = open_window({"notes.md": TEXT}, window__autoDetectColorScheme=True)
    window.show("notes.md")
    window.wait_status(O200K)
    window.page("await page.emulateMedia({colorScheme: 'dark'})")
    window.ask("context/set", session="s1", model="gpt-5", systemPrompt="Be brief.")
    window.ask("context/append", session="s1", turns=TURNS, usage=USAGE)
    return window


def test_the_context_view(talking: Window) -> None:
    """Its rows are those of `context/usage`; a reset empties it."""
    usage = talking.ask("context/usage")
    assert usage["tokens"] == 12_345 + 678
    talking.host("await vscode.commands.executeCommand('tokenSidecar.contextUsage')")
    wait_for(lambda: f"{usage['tokens']:,} tokens" in tree(talking), "the occupancy in the view")
    for row in ("gpt-5", "Breakdown", "System"):
        assert row in tree(talking)
    talking.screenshot("context")
    talking.ask("context/append", turns=[{"role": "user", "content": "And how is it fixed?"}])
    after = talking.ask("context/usage")["tokens"]
    assert after > usage["tokens"]
    wait_for(lambda: f"{after:,} tokens" in tree(talking), "the new occupancy in the view")
    talking.host("await vscode.commands.executeCommand('tokenSidecar.resetContext')")
    wait_for(lambda: "No conversation" in tree(talking), "the view to be empty")


def test_the_cost_report_follows_the_theme(talking: Window) -> None:
    """It shows each row's text, in the theme's own colours."""
    nothing = talking.ask("cost/detail", by=["model", "category"])
    recorded = talking.ask(
        "cost/record", session="s1", model="gpt-5", usage=USAGE, requestId="r1", category="main"
    )
    assert recorded["costUsd"] > 0
    talking.ask("cost/record", session="s1", model="gpt-5-mini", usage=USAGE, category="summary")
    rows = talking.ask("cost/detail")["rows"]
    assert len(rows) == len(nothing["rows"]) + 2
    talking.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    wait_for(lambda: report(talking) is not None, "the report")
    for row in rows:
        assert row["text"] in report(talking)["text"]
    talking.screenshot("cost-dark")
    dark = report(talking)["color"]
    talking.page("await page.emulateMedia({colorScheme: 'light'})")
    wait_for(lambda: report(talking)["color"] != dark, "the light theme")
    talking.screenshot("cost-light")
    talking.page("await page.emulateMedia({colorScheme: 'dark'})")


def test_what_nothing_is_priced_for_is_not_free(open_window: OpenWindow) -> None:
    """The report says what is unpriced; nothing of it is shown as $0."""
    window = open_window({"notes.md": TEXT})
    window.show("notes.md")
    window.wait_status(O200K)
    window.ask("cost/record", model="nobody-knows-me", usage=USAGE, requestId="unpriced-1")
    window.host("await vscode.commands.executeCommand('tokenSidecar.costReport')")
    wait_for(lambda: report(window) is not None, "the report")
    text = report(window)["text"]
    assert "unpriced" in text.split("Calls")[0]
    assert "$0.0" not in text


def test_a_warning_stands_in_the_language_status(talking: Window) -> None:
    """Nothing pops up; what the server warns of is there to be read."""
    turns = [{"role": "user", "content": "a long story " * 400}]
    talking.ask("context/set", session="s2", limit=1000)
    talking.ask("context/append", session="s2", turns=turns)
    warned = "page.locator('.monaco-hover', {hasText: /context/i})"
    talking.page("await page.locator('#status\\\\.languageStatus a').hover()")
    talking.page(f"await {warned}.first().waitFor()")
    text = str(talking.page(f"return await {warned}.first().innerText()"))
    assert "%" in text or "over" in text
    talking.page("await page.mouse.move(400, 300)")
    assert talking.messages() == []


def test_select_a_model(talking: Window) -> None:
    """The picker's choice counts at once, and is written to no file."""
    talking.host("void vscode.commands.executeCommand('tokenSidecar.selectModel')")
    talking.page("await page.locator('.quick-input-list-entry').first().waitFor()")
    talking.page("await page.keyboard.type('gpt-4')")
    named = "page.locator('.label-name').filter({hasText: /^gpt-4$/})"
    talking.page(f"await {named}.first().click()")
    talking.wait_status(CL100K)
    assert sorted(path.name for path in talking.root.iterdir()) == ["notes.md"]
    inspect = "return vscode.workspace.getConfiguration('tokenSidecar').inspect('model')"
    assert "globalValue" not in talking.host(inspect)
    talking.host("await vscode.commands.executeCommand('tokenSidecar.selectModel', 'gpt-5')")
    talking.wait_status(O200K)


def test_probe_says_that_endpoints_are_off(talking: Window) -> None:
    """Without endpoints nothing is sent, and the command says so."""
    found = talking.host(
        "return await vscode.commands.executeCommand('tokenSidecar.probeEndpoints')"
    )
    assert found == []
    wait_for(lambda: any("No endpoint" in each for each in talking.messages()), "the message")
