"""Tests a conversation in a real VS Code: context view, cost report, model picker and reset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.counting.exact_engines import Reference
from tests.e2e.page_audit import assert_sound, audit
from tests.e2e.vscode.harness import CONTEXT, Window, wait_for

TEXT = "Explain the failing 試験 to a newcomer. 🙂\n"
O200K = f"{Reference('o200k_base').count_whole(TEXT):,} tokens"
CL100K = f"{Reference('cl100k_base').count_whole(TEXT):,} tokens"
TURNS = [
    {"role": "user", "content": "Why does the test of the parser fail?"},
    {"role": "assistant", "content": "It expects a comma that the grammar left out."},
]
USAGE = {"input_tokens": 12_345, "output_tokens": 678}


@pytest.fixture
def talking(module_window: Window) -> Iterator[Window]:
    """A window with a conversation whose usage has been reported."""
    window = module_window
    window.tidy()
    window.show("notes.md", TEXT, status=O200K)
    window.ask("context/set", session="s1", model="gpt-5", systemPrompt="Be brief.")
    window.ask("context/append", session="s1", turns=TURNS, usage=USAGE)
    yield window
    for session in window.ask("context/sessions"):
        window.ask("context/reset", session=session["id"])


def test_the_context_view_shows_the_rows_of_context_usage(talking: Window) -> None:
    """Resetting the conversation clears the view."""
    usage = talking.ask("context/usage")
    assert usage["tokens"] == 12_345 + 678
    talking.host("await vscode.commands.executeCommand('tokenSidecar.contextUsage')")
    wait_for(lambda: f"{usage['tokens']:,} of" in talking.context(), "the occupancy in the view")
    for part in ("gpt-5", "Reserved for the reply", "Free", "from the model catalogue"):
        assert part in talking.context()
    talking.screenshot("context")
    talking.ask("context/append", turns=[{"role": "user", "content": "And how is it fixed?"}])
    after = talking.ask("context/usage")["tokens"]
    assert after > usage["tokens"]
    wait_for(lambda: f"{after:,} of" in talking.context(), "the new occupancy in the view")
    talking.host("await vscode.commands.executeCommand('tokenSidecar.resetContext')")
    wait_for(lambda: "No conversation" in talking.context(), "the view to be empty")
    talking.show("CLAUDE.md", TEXT)
    wait_for(lambda: "CLAUDE.md" in talking.context(), "the footprint")
    assert "What your agent loads" in talking.context()
    assert_sound(audit(talking.browser, CONTEXT))
    talking.screenshot("footprint-in-context")


def test_a_nearly_full_context_is_legible_in_every_theme(talking: Window) -> None:
    talking.host("await vscode.commands.executeCommand('tokenSidecar.contextUsage')")
    for _theme in talking.themes():
        for limit, severity in ((15_000, "warning"), (13_600, "error")):
            talking.ask("context/set", session="s1", limit=limit)
            shown = f".size.{severity}"
            wait_for(lambda: talking.frame_text(shown) != "", severity)  # noqa: B023
            assert_sound(audit(talking.browser, CONTEXT))


def test_a_warning_is_shown_in_the_language_status(talking: Window) -> None:
    """Server warnings appear in the language status, not as notifications."""
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


def test_a_selected_model_counts_at_once(talking: Window) -> None:
    """Selecting a model changes no files."""
    before = sorted(talking.root.iterdir())
    talking.host("void vscode.commands.executeCommand('tokenSidecar.selectModel')")
    talking.page("await page.locator('.quick-input-list-entry').first().waitFor()")
    talking.page("await page.keyboard.type('gpt-4')")
    named = "page.locator('.label-name').filter({hasText: /^gpt-4$/})"
    talking.page(f"await {named}.first().click()")
    talking.wait_status(CL100K)
    assert sorted(talking.root.iterdir()) == before
    inspect = "return vscode.workspace.getConfiguration('tokenSidecar').inspect('model')"
    assert "globalValue" not in talking.host(inspect)
    talking.host("await vscode.commands.executeCommand('tokenSidecar.selectModel', 'gpt-5')")
    talking.wait_status(O200K)


def test_a_probe_without_endpoints_says_how_to_add_one(talking: Window) -> None:
    found = talking.host(
        "return await vscode.commands.executeCommand('tokenSidecar.probeEndpoints')"
    )
    assert found == []
    declared = "No endpoint is configured. Add one to tokenSidecar.endpoint"
    wait_for(lambda: any(declared in message for message in talking.messages()), "the message")


def test_a_fit_plan_is_applied_and_undone(talking: Window) -> None:
    """A dialog shows the plan. Undo restores the removed messages."""
    turns = [
        {"role": role, "content": f"{number} " + "words that fill the window " * 40}
        for number in range(10)
        for role in ("user", "assistant")
    ]
    talking.ask("context/set", session="s3", model="gpt-4o", limit=4000)
    before = talking.ask("context/append", session="s3", turns=turns)["tokens"]
    talking.host("void vscode.commands.executeCommand('tokenSidecar.fitContext')")
    dialog = "page.locator('.monaco-dialog-box')"
    talking.page(f"await {dialog}.waitFor()")
    shown = str(talking.page(f"return await {dialog}.innerText()"))
    assert f"{before:,} -> " in shown
    talking.page(f"await {dialog}.getByText('Fit Context', {{exact: true}}).click()")
    wait_for(lambda: talking.ask("context/usage")["tokens"] < before, "the smaller context")
    talking.host("await vscode.commands.executeCommand('tokenSidecar.undoFitContext')")
    assert talking.ask("context/usage")["tokens"] == before
    usage = talking.ask("context/usage")
    mark = "" if usage["method"] in ("exact", "endpoint") else "~"
    taken_back = f"Undone: the context is back to {mark}{before:,} tokens."
    wait_for(lambda: taken_back in " ".join(talking.messages()), "the message")


def test_probe_explains_why_a_server_does_not_count(window: Window) -> None:
    """The list explains why each endpoint is not used for counting, and what to do next."""
    settings = {
        "tokenSidecar.model": "qwen-x",
        "tokenSidecar.endpoint": [{"url": "http://127.0.0.1:9", "models": ["qwen-*"]}],
    }
    window.server.configure(settings)
    window.show("probed.md", TEXT, status="~")
    probe = "await vscode.commands.executeCommand('tokenSidecar.probeEndpoints')"
    rows = "page.locator('.quick-input-list-entry')"

    def probed() -> str:
        window.host("await vscode.commands.executeCommand('workbench.action.closeQuickOpen')")
        window.host(probe)
        window.page(f"await {rows}.first().waitFor()")
        (row,) = window.page(f"return await {rows}.allInnerTexts()")
        return str(row)

    row = probed()
    assert "http://127.0.0.1:9" in row
    assert "window unknown" in row
    assert "endpoints are disabled: set use-endpoint" in row
    window.server.configure(settings | {"tokenSidecar.tokenize.useEndpoint": True})
    wait_for(lambda: "start the server or correct its url" in probed(), probed)
