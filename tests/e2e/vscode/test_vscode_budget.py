"""Tests an exceeded budget in a real VS Code: the diagnostic, the fix and undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sidecar.counting.exact_engines import Reference
from tests.e2e.vscode.harness import Window, wait_for

BUDGET = 60
CONFIGURATION = f'[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = {BUDGET}\n'
LINES = [f"{number}. Answer in short sentences, and name the file." for number in range(1, 10)]
TEXT = "# Agents\n\n" + "\n".join(LINES) + "\n"
O200K = Reference("o200k_base")


def diagnostics(window: Window) -> list[dict[str, Any]]:
    """Return the diagnostics that our server reports for the active document."""
    code = """
        const { uri } = vscode.window.activeTextEditor.document;
        return vscode.languages.getDiagnostics(uri)
            .filter((each) => each.source === "token-sidecar")
            .map(({ code, message, severity, range }) =>
                ({ code: code.value ?? code, message, severity, line: range.start.line }));
    """
    return [dict(each) for each in window.host(code)]


def decoration(window: Window, name: str) -> list[str]:
    """Return the badge, color and tooltip of a file in the explorer."""
    code = """
        const row = page.locator(".explorer-folders-view .monaco-list-row", { hasText: args[0] });
        return await row.first().evaluate((element) => {
            const label = element.querySelector(".monaco-icon-label");
            const badge = getComputedStyle(label, "::after").content;
            const name = element.querySelector(".label-name");
            return [badge, getComputedStyle(name).color, label.getAttribute("aria-label") ?? ""];
        });
    """
    return [str(part) for part in window.page(code, name)]


def test_the_explorer_marks_files_near_and_over_a_budget(
    window: Window, project_file: Path
) -> None:
    """The setting `fileDecorations` can remove the marks."""
    project_file.write_text(CONFIGURATION)
    window.host("await vscode.commands.executeCommand('workbench.view.explorer')")
    near = "one " * (BUDGET * 9 // 10)
    window.show("AGENTS.md", near)
    share = 100 * O200K.count_whole(near) // BUDGET
    plain = decoration(window, ".token-sidecar.toml")
    wait_for(
        lambda: f"{share}" in decoration(window, "AGENTS.md")[0],
        lambda: f"{share} in {decoration(window, 'AGENTS.md')}",
    )
    full = " ".join(["one"] * BUDGET)
    assert O200K.count_whole(full) == BUDGET
    window.show("AGENTS.md", full)
    wait_for(lambda: "99" in decoration(window, "AGENTS.md")[0], "the mark of a used-up budget")
    window.show("AGENTS.md", "one " * BUDGET + "two three four")
    wait_for(lambda: "!" in decoration(window, "AGENTS.md")[0], "the mark of an exceeded budget")
    window.screenshot("explorer-dark")
    assert decoration(window, "AGENTS.md")[1] != plain[1]
    window.server.configure({"tokenSidecar.fileDecorations": False})
    wait_for(lambda: "!" not in decoration(window, "AGENTS.md")[0], "no mark")


def text_of(window: Window) -> str:
    """Return the active document's text without changing its line endings."""
    return str(window.host("return vscode.window.activeTextEditor.document.getText()"))


def test_an_exceeded_budget_is_fixed_and_undone(window: Window, project_file: Path) -> None:
    """A warning starts where the budget ends. The fix shortens the text, and undo restores it."""
    assert BUDGET < O200K.count_whole(TEXT) < 2 * BUDGET + 30
    project_file.write_text(CONFIGURATION)
    window.show("AGENTS.md", TEXT[:60], status=f"{O200K.count_whole(TEXT[:60])} tokens")
    wait_for(lambda: diagnostics(window) == [], "the end of the previous test's diagnostics")
    window.focus()
    window.page("await page.keyboard.press('Control+End')")
    window.page("await page.keyboard.insertText(args[0])", TEXT[60:])
    wait_for(lambda: text_of(window) == TEXT, "the text")
    # while the text is inserted, the warning that the budget is nearly used up may appear first
    wait_for(
        lambda: [diagnostic["code"] for diagnostic in diagnostics(window)] == ["budget-exceeded"],
        "the diagnostic of the whole text",
    )
    wait_for(lambda: diagnostics(window)[0]["line"] > 2, "the diagnostic at the end of the budget")
    window.page("await page.locator('.squiggly-warning, .squiggly-error').first().waitFor()")
    color = "page.locator(\"[id='token-sidecar.token-sidecar.status']\").getAttribute('class')"
    wait_for(lambda: "-kind" in str(window.page(f"return await {color}")), "the warning's color")
    window.screenshot("budget")

    window.host("void vscode.commands.executeCommand('tokenSidecar.fitToBudget')")
    window.page("await page.locator('.quick-input-list-row').first().waitFor()")
    window.screenshot("fixes")
    window.page("await page.keyboard.press('Enter')")
    wait_for(lambda: text_of(window) != TEXT, "the fix to be applied")
    fitted = text_of(window)
    assert O200K.count_whole(fitted) <= BUDGET
    assert TEXT.startswith(fitted.rstrip("\n"))
    wait_for(
        lambda: all(d["code"] != "budget-exceeded" for d in diagnostics(window)),
        "the diagnostic to disappear",
    )

    window.host("await vscode.commands.executeCommand('undo')")
    wait_for(lambda: text_of(window) == TEXT, "the undo")
    wait_for(lambda: diagnostics(window) != [], "the diagnostic to reappear")


def test_fit_without_a_budget_asks_for_a_size(window: Window) -> None:
    window.show("plain.md", TEXT, status=f"{O200K.count_whole(TEXT)} tokens")
    window.host("void vscode.commands.executeCommand('tokenSidecar.fitToBudget')")
    window.page("await page.locator('.quick-input-widget input').waitFor()")
    window.page("await page.keyboard.type('40'); await page.keyboard.press('Enter')")
    wait_for(lambda: text_of(window) != TEXT, "the fitted text")
    assert O200K.count_whole(text_of(window)) <= 40
