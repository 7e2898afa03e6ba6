"""Checks a page in a real browser for accessibility (with axe-core) and for content that is cut
off.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.vscode.harness import Browser

WIDTHS = (390, 800, 1280)

_AUDIT = """
    const source = require("node:fs").readFileSync(args[0], "utf8");
    const frames = page.frames();
    for (const frame of frames) {
        if (!(await frame.locator(args[1]).count().catch(() => 0))) continue;
        await frame.evaluate(source);
        return await frame.evaluate(async () => {
            const cut = [...document.querySelectorAll("body *")].filter((element) =>
                !element.closest("svg") && element.checkVisibility({ contentVisibilityAuto: true })
                && element.getBoundingClientRect().right > innerWidth + 1);
            const { violations } = await axe.run();
            return {
                width: innerWidth,
                cutOff: cut.map((element) => element.outerHTML.slice(0, 90)),
                violations: violations.flatMap(({ id, nodes }) =>
                    nodes.map(({ html, any }) => `${id}: ${html.slice(0, 90)} ${any[0]?.message ?? ""}`)),
            };
        });
    }
    return null;
"""


def audit(browser: Browser, selector: str = "main") -> Any:
    """Return the problems in the frame that contains this element, or None if there is no such
    frame.
    """
    axe = browser.vscode.modules / "axe-core/axe.min.js"
    return browser.run(_AUDIT, str(axe), selector)


def assert_sound(found: Any) -> None:
    """Assert that a page has no accessibility violations, and no content cut off at the right
    edge.
    """
    assert found is not None, "the page is not shown"
    assert found["cutOff"] == []
    assert found["violations"] == []
