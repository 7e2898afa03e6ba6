"""Tests inlay hints and code lenses in a real VS Code."""

from __future__ import annotations

from pathlib import Path

from sidecar.counting.exact_engines import Reference
from tests.e2e.vscode.harness import Window, wait_for

SECTIONS = ["# Role\n\nYou review code.\n\n", "# Style\n\nShort sentences. No jargon.\n"]
TEXT = "".join(SECTIONS)
O200K = Reference("o200k_base")
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


def test_hints_and_lenses_are_disabled_by_default(window: Window) -> None:
    window.show("plain.md", TEXT)
    window.wait_status(f"{O200K.count_whole(TEXT)} tokens")
    assert hints(window) == []
    assert lenses(window) == []
    assert not any("tokens" in detail for detail in outline(window))


def test_a_project_file_can_enable_hints(window: Window, project_file: Path) -> None:
    """The project's settings file enables hints and the outline. The user has no settings."""
    project_file.write_text("inlay-hints = true\n")
    window.show("project.md", TEXT)
    expected = [f"{O200K.count_whole(section)} tokens" for section in SECTIONS]
    wait_for(lambda: all(count in drawn(window) for count in expected), "hints on the page")
    for count in expected:
        wait_for(lambda count=count: any(count in each for each in outline(window)), count)
    project_file.unlink()
    wait_for(
        lambda: not any("tokens" in each for each in outline(window)), "the outline to disappear"
    )
    assert hints(window) == []
