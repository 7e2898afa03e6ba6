"""Tests every step of docs/tutorial/vscode.md except the installation (see
test_vscode_install.py).
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e import tutorials
from tests.e2e.tutorials import promised, sample, sentence
from tests.e2e.vscode.harness import STATUS_ITEM, Window, build_vsix, wait_for

PAGE = tutorials.read("vscode")
RUN = """
    await page.keyboard.press("F1");
    await page.keyboard.type(args[0]);
    await page.locator(".quick-input-list-row", { hasText: args[0] }).first().click();
"""
FIXES = """
    const { uri } = vscode.window.activeTextEditor.document;
    const [found] = vscode.languages.getDiagnostics(uri);
    if (!found) return [];
    const ask = "vscode.executeCodeActionProvider";
    return (await vscode.commands.executeCommand(ask, uri, found.range)).map(({ title }) => title);
"""


def test_the_installation_names_the_extension_that_is_built() -> None:
    assert build_vsix().name == promised(PAGE, r"code --install-extension (\S+)")


def test_the_tutorial_works(window: Window, project_file: Path) -> None:
    name = promised(PAGE, r"create the file `(.*?)`")
    window.show(name, "")
    window.focus()
    window.page("await page.keyboard.type(args[0], {delay: 5})", sentence(PAGE))
    counted = window.wait_status(promised(PAGE, "The status bar shows `(.*?)`"))
    window.page("await page.keyboard.press('Control+Shift+ArrowLeft')")
    wait_for(lambda: "selected" in (window.status() or ""), "the count of the selection")
    window.page("await page.keyboard.press('End')")
    wait_for(lambda: window.status() == counted, "the selection to disappear")

    window.page(RUN, promised(PAGE, r"Run \*\*(Token Sidecar: Select .*?)\*\*"))
    window.page("await page.locator('.quick-input-widget input:focus').waitFor()")
    window.page("await page.keyboard.type(args[0])", promised(PAGE, "and choose `(.*?)`"))
    window.page("await page.keyboard.press('Enter')")
    try:
        window.wait_status("~")
        window.page("await page.locator(`[id='${args[0]}'] a`).hover()", STATUS_ITEM)
        window.page("await page.locator('.monaco-hover', { hasText: '±' }).first().waitFor()")

        assert project_file.name == promised(PAGE, r"Create the file `(.*?)`")
        project_file.write_text(sample(PAGE, "toml"), "utf-8")
        window.page("await page.locator('.squiggly-warning').first().waitFor()")
        item = "page.locator(`[id='${args[0]}']`).getAttribute('class')"
        wait_for(
            lambda: "warning-kind" in window.page(f"return await {item}", STATUS_ITEM),
            "the yellow status item",
        )
        offered = "\n".join(window.host(FIXES))
        assert "Fit to budget: keep the start" in offered
        assert "Raise the budget" in offered
    finally:
        window.host("await vscode.commands.executeCommand('tokenSidecar.selectModel', 'gpt-5')")
