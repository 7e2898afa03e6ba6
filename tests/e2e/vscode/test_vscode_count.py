"""Tests exact counts in a real VS Code while text is typed, also in hints and code lenses."""

from __future__ import annotations

from typing import Any

from sidecar.counting.exact_engines import Reference
from tests.e2e.vscode.harness import STATUS_ITEM, Window, wait_for

O200K = Reference("o200k_base")
MIXED = "# 計画 🚀\r\n\r\nnaïve café — 東京都 👩‍👩‍👧\r\n/ slash at a start\r\n\r\n\tend 🏁"


def exact(text: str) -> str:
    """Return the status bar text for an exact count."""
    return f"{O200K.count_whole(text):,} tokens"


def count(window: Window) -> Any:
    """Run the count command, and return the counts of the active document and the selection."""
    return window.host("return await vscode.commands.executeCommand('tokenSidecar.count')")


def text_of(window: Window) -> str:
    """Return the active document's text without changing its line endings."""
    return str(window.host("return vscode.window.activeTextEditor.document.getText()"))


def wait_selected(window: Window, tokens: int) -> None:
    """Wait until the status shows this number of selected tokens."""
    selected = f" tokens, {tokens} selected"
    wait_for(lambda: selected in (window.status() or ""), f"{selected!r} in the status bar")


def select(window: Window, *ranges: tuple[int, int, int, int]) -> list[str]:
    """Select ranges, and return their text. Positions are line and character, in UTF-16 code
    units.
    """
    code = """
        const editor = vscode.window.activeTextEditor;
        editor.selections = args[0].map((each) => new vscode.Selection(...each));
        return editor.selections.map((each) => editor.document.getText(each));
    """
    return [str(text) for text in window.host(code, ranges)]


def test_typing_shows_the_exact_count(window: Window) -> None:
    window.show("typed.md", "")
    window.focus()
    text = "Review the diff, then answer in one paragraph."
    window.page("await page.keyboard.type(args[0], {delay: 5})", text)
    window.wait_status(exact(text))
    assert text_of(window) == text
    items = "return await page.locator('.statusbar-item[id^=\"token-sidecar.\"]').evaluateAll"
    assert window.page(f"{items}(found => found.map(each => each.id))") == [STATUS_ITEM]
    window.screenshot("typed")


def test_edits_after_wide_characters_are_applied_at_the_right_place(window: Window) -> None:
    """The document contains CJK characters, emoji and CRLF line endings."""
    window.show("mixed.md", MIXED, status=exact(MIXED))
    edits = """
        const editor = vscode.window.activeTextEditor;
        const at = (line, from, to) => new vscode.Range(line, from, line, to);
        const edits = [
            (edit) => edit.insert(new vscode.Position(0, 7), " 🎉東"),
            (edit) => edit.replace(at(2, 6, 10), "thé 🍵"),
            (edit) => edit.delete(new vscode.Range(1, 0, 2, 0)),
            (edit) => edit.insert(new vscode.Position(99, 0), "\\n최종\\n"),
            (edit) => { edit.insert(new vscode.Position(0, 0), "🅰"); edit.delete(at(2, 0, 2)); },
        ];
        for (const each of edits) await editor.edit(each);
    """
    window.host(edits)
    text = text_of(window)
    assert "\r\n" in text
    assert text != MIXED
    counted = count(window)["document"]
    assert (counted["tokens"], counted["method"]) == (O200K.count_whole(text), "exact")
    window.wait_status(exact(text))


def test_undo_is_counted_and_a_closed_document_disappears(window: Window) -> None:
    window.show("undo.md", "one two three\n", status=exact("one two three\n"))
    window.focus()
    window.page("await page.keyboard.type('four')")
    window.wait_status(exact("fourone two three\n"))
    window.page("await page.keyboard.press('Control+z')")
    window.wait_status(exact("one two three\n"))
    close = "await vscode.commands.executeCommand('workbench.action.revertAndCloseActiveEditor')"
    window.host(f"while (vscode.window.activeTextEditor) {close}")
    wait_for(lambda: "tokens" not in (window.status() or ""), "the count to disappear")


def test_an_untitled_document_is_counted(window: Window) -> None:
    open_it = "await vscode.workspace.openTextDocument({content: args[0], language: 'markdown'})"
    window.host(f"await vscode.window.showTextDocument({open_it})", "never saved 🙂")
    window.wait_status(exact("never saved 🙂"))


def test_a_selection_is_counted_next_to_the_document(window: Window) -> None:
    window.show("selected.md", MIXED, status=exact(MIXED))
    (chosen,) = select(window, (0, 2, 2, 8))
    expected = O200K.count_whole(chosen)
    wait_selected(window, expected)
    assert (window.status() or "").startswith(exact(MIXED))
    assert count(window)["selection"]["tokens"] == expected
    window.screenshot("selection")
    select(window, (0, 0, 0, 0))
    window.host("await until(() => vscode.window.activeTextEditor.selection.isEmpty)")
    assert count(window)["selection"] is None


def test_a_selection_is_recounted_for_a_new_model(window: Window) -> None:
    """The recount does not wait for a key press."""
    cl100k = Reference("cl100k_base")
    window.show("models.md", MIXED, status=exact(MIXED))
    (chosen,) = select(window, (0, 2, 2, 8))
    wait_selected(window, O200K.count_whole(chosen))
    choose = "await vscode.commands.executeCommand('tokenSidecar.selectModel', args[0])"
    window.host(choose, "gpt-4")
    assert cl100k.count_whole(chosen) != O200K.count_whole(chosen)
    wait_selected(window, cl100k.count_whole(chosen))
    window.host(choose, "gpt-5")
    wait_selected(window, O200K.count_whole(chosen))
    select(window, (0, 0, 0, 0))


def test_several_selections_are_summed(window: Window) -> None:
    window.show("several.md", "alpha beta\ngamma delta\n")
    chosen = select(window, (0, 0, 0, 5), (1, 0, 1, 11))
    assert chosen == ["alpha", "gamma delta"]
    expected = sum(map(O200K.count_whole, chosen))
    wait_selected(window, expected)


def test_a_large_document_is_counted_exactly(window: Window) -> None:
    """The document is about 1 MB long, and is counted again after an edit."""
    text = "The quick brown 狐 jumps over 13 lazy dogs.\n" * 20_000
    window.show("large.md", text, status=exact(text))
    window.focus()
    window.page("await page.keyboard.type('x')")
    window.wait_status(exact("x" + text))


SECTIONS = ["# Role\n\nYou review code.\n\n", "# Style\n\nShort sentences. No jargon.\n"]
TEXT = "".join(SECTIONS)
LENSES = "page.locator('.codelens-decoration').allInnerTexts()"


def hints(window: Window) -> list[str]:
    """Return the active document's inlay hint labels."""
    code = """
        const { document } = vscode.window.activeTextEditor;
        const all = new vscode.Range(0, 0, document.lineCount, 0);
        const found = await vscode.commands.executeCommand(
            "vscode.executeInlayHintProvider", document.uri, all);
        return found.map(({ label }) => typeof label === "string" ? label : label[0].value);
    """
    return [str(label).strip() for label in window.host(code)]


def lenses(window: Window) -> list[str]:
    """Return each code lens's text on the page."""
    return [str(text) for text in window.page(f"return await {LENSES}")]


def outline(window: Window) -> list[str]:
    """Return the details that the outline displays after each name."""
    code = """
        const { uri } = vscode.window.activeTextEditor.document;
        const found = await vscode.commands.executeCommand(
            "vscode.executeDocumentSymbolProvider", uri);
        return found.map(({ detail }) => detail);
    """
    return [str(detail) for detail in window.host(code)]


def drawn(window: Window) -> str:
    """Return the text that the editor displays, including hints."""
    lines = window.page("return await page.locator('.view-lines').innerText()")
    return str(lines).replace("\xa0", " ")


def test_hints_lenses_and_outline_show_the_tokens_of_sections(window: Window) -> None:
    """Hints, code lenses and outline counts disappear when they are disabled."""
    window.server.configure({"tokenSidecar.inlayHints": True, "tokenSidecar.codeLens": True})
    window.show("hinted.md", TEXT)
    expected = [f"{O200K.count_whole(section)} tokens" for section in SECTIONS]
    wait_for(lambda: all(count in drawn(window) for count in expected), "hints on the page")
    wait_for(lambda: [text.strip() for text in lenses(window)] == expected, "two lenses")
    window.screenshot("hints")
    for count in expected:
        wait_for(lambda count=count: any(count in each for each in outline(window)), count)
    window.server.configure({})
    wait_for(lambda: hints(window) == [], "the hints to disappear")
    wait_for(lambda: lenses(window) == [], "the lenses to disappear")
    assert not any("tokens" in detail for detail in outline(window))
