"""Tests the menu that opens when the user clicks on the count."""

from __future__ import annotations

import pytest

from sidecar.counting.exact_engines import Reference
from tests.e2e.page_audit import assert_sound, audit
from tests.e2e.vscode.harness import STATUS_ITEM, Window, wait_for

TEXT = "# Plan\n\nRead the ticket, find the failing test, and fix the naïve façade.\n"
CHECK = """
    await page.locator(".quick-input-box input").fill(args[0]);
    const named = page.locator(".label-name").filter({ hasText: new RegExp(`^${args[0]}$`) });
    await page.locator(".quick-input-list-entry").filter({ has: named }).first().click();
"""
MAP = "main:has(.map)"
SAVE_EDITED = """
    const document = await vscode.workspace.openTextDocument(vscode.Uri.file(args[0]));
    const edit = new vscode.WorkspaceEdit();
    edit.insert(document.uri, new vscode.Position(0, 0), "Please. ");
    await vscode.workspace.applyEdit(edit);
    await document.save();
"""
FOOTPRINT = "main:has(> h1:first-child + section > .states)"
ROWS = "page.locator('.quick-input-widget .quick-input-list-row')"


def exact(name: str) -> str:
    """Return the menu's text for an exact count."""
    return f"{Reference(name).count_whole(TEXT):,} tokens"


def rows(window: Window) -> list[str]:
    """Return the menu's rows."""
    return [str(row) for row in window.page(f"return await {ROWS}.allInnerTexts()")]


def shows(window: Window, start: str) -> bool:
    """Return whether a row of the menu starts with this text."""
    return any(row.startswith(start) for row in rows(window))


@pytest.fixture
def plan(window: Window) -> Window:
    """The window with a document that has been counted."""
    window.show("plan.md", TEXT, status=exact("o200k_base"))
    return window


def test_a_click_on_the_count_opens_the_menu(plan: Window) -> None:
    plan.page("await page.locator(`[id='${args[0]}'] a`).click()", STATUS_ITEM)
    wait_for(lambda: len(rows(plan)) >= 9, "the menu")
    plan.screenshot("menu")
    assert "Count document" in rows(plan)[0]
    plan.page("await page.keyboard.press('Enter')")
    wait_for(lambda: plan.messages() != [], "the count")
    assert plan.messages()[0].startswith(exact("o200k_base"))


def test_compared_models_are_listed_with_their_counts(plan: Window) -> None:
    """Each model's count comes from the model's own tokenizer."""
    compare = "vscode.commands.executeCommand('tokenSidecar.compareModels')"
    plan.host(f"globalThis.compared = {compare}")
    wait_for(lambda: len(rows(plan)) > 3, "the models")
    for model in ("gpt-4", "gpt-5"):
        plan.page(CHECK, model)
    plan.page("await page.keyboard.press('Enter')")
    for name in ("cl100k_base", "o200k_base"):
        wait_for(lambda name=name: shows(plan, exact(name)), f"the count by {name}")
    plan.screenshot("compare")
    plan.page("await page.keyboard.press('Escape')")
    counts = plan.host("return await globalThis.compared")
    found = {count["model"]: count["tokens"] for count in counts}
    assert found["gpt-5"] == Reference("o200k_base").count_whole(TEXT)
    assert found["gpt-4"] == Reference("cl100k_base").count_whole(TEXT)


def test_the_language_status_shows_that_the_server_runs(plan: Window) -> None:
    plan.page("await page.locator('#status\\\\.languageStatus a').hover()")
    health = "page.locator('.monaco-hover', {hasText: 'Token Sidecar: running'})"
    plan.page(f"await {health}.first().waitFor()")
    plan.screenshot("health")
    plan.page("await page.mouse.move(400, 300)")


def test_the_footprint_shows_what_agents_send_and_follows_saved_files(plan: Window) -> None:
    hiding, hidden = plan.show("CLAUDE.md", TEXT), plan.show("AGENTS.md", "Be brief.")
    plan.host("await vscode.commands.executeCommand('tokenSidecar.footprint')")
    wait_for(lambda: "hidden by CLAUDE.md" in plan.frame_text(FOOTPRINT), "the hidden file")
    assert plan.frame_text(FOOTPRINT).startswith("What your agent loads")
    assert_sound(audit(plan.browser, FOOTPRINT))
    plan.screenshot("footprint")
    hiding.unlink()
    plan.host(SAVE_EDITED, str(hidden))
    wait_for(lambda: "hidden by CLAUDE.md" not in plan.frame_text(FOOTPRINT), "the change")


def test_the_token_map_shows_where_the_tokens_are(plan: Window) -> None:
    """The webview shows the page that `token-sidecar map` writes, and runs no scripts."""
    plan.show("docs/long.md", TEXT * 40)
    choose = "await vscode.commands.executeCommand('tokenSidecar.selectModel', args[0])"
    plan.host(choose, "gpt-4")
    try:
        plan.host("await vscode.commands.executeCommand('tokenSidecar.tokenMap')")
        wait_for(lambda: "docs/long.md" in plan.frame_text(MAP), "the map")
    finally:
        plan.host(choose, "gpt-5")
    assert plan.frame_text(MAP).startswith("Token map of folder")
    assert "for gpt-4" in plan.frame_text(MAP), "the chosen model"
    assert_sound(audit(plan.browser, MAP))
    plan.screenshot("map")
