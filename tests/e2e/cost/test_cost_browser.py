"""Tests the cost page in a real browser: color schemes, widths and accessibility."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from operator import mul
from pathlib import Path

import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.cost_page import LedgerSource, whole_page
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.cost.sums import Scope
from tests.e2e import editors_setup
from tests.e2e.page_audit import WIDTHS, assert_sound, audit
from tests.e2e.vscode.harness import Browser

LONG = "Explain why the scheduler of the nightly import fails on the last day of a leap year"
COLORS = """
    return await page.evaluate(() => [document.body, document.querySelector(".plot rect.c0")].flatMap(
        (element) => [getComputedStyle(element).backgroundColor, getComputedStyle(element).fill]));
"""
EMULATE = "await page.emulateMedia({colorScheme: args[0], forcedColors: args[1]})"
BUTTON = """
    return await page.locator(`label:has(#${args[0]}) span`).evaluate((element) =>
        getComputedStyle(element).backgroundColor);
"""
LAST_TITLE = "return await page.locator('section:visible h2').last().innerText()"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser(editors_setup.ensure_vscode(), editors_setup.ensure_chromium())
    yield browser
    browser.stop()


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a cost page for a year of calls with many models and sessions."""
    folder = tmp_path_factory.mktemp("costs")
    book, now = CostBook(folder / "state", zone=UTC), datetime(2026, 11, 25, 12, tzinfo=UTC)
    models = ("gpt-5", "claude-sonnet-4-5", "a-vendor/with-a-model-whose-name-is-long-2026-11-25")
    for number in range(120):
        usage = {
            "input_tokens": 40,
            "cache_read_input_tokens": 900_000 * number,
            "cache_creation_input_tokens": 7000,
            "output_tokens": 12_400,
        }
        book.record(
            CostRecordParams(
                model=models[number % 3],
                usage=usage,
                session=f"s{number % 12}",
                at=now - timedelta(days=number * 2),
            )
        )
    labels = {f"s{number}": f"{LONG} {number}" for number in range(11)}
    target = folder / "costs.html"
    with book.ledger.reader() as connection:
        source = LedgerSource(
            connection=connection,
            prices=book.prices,
            scope=Scope(),
            now=now,
            zone=UTC,
            label_of=labels.get,
        )
        target.write_text(whole_page(source, {}), encoding="utf-8")
    book.close()
    return target


COMBINATIONS = list(product(["light", "dark"], ["none", "active"], WIDTHS))
USUAL = {("light", "none", 390), ("dark", "none", 800), ("dark", "active", 390)}


@pytest.mark.parametrize(
    ("scheme", "contrast", "width"),
    [pytest.param(*each, marks=() if each in USUAL else pytest.mark.slow) for each in COMBINATIONS],
)
def test_nothing_is_cut_off_and_everything_is_accessible(
    browser: Browser, costs: Path, scheme: str, contrast: str, width: int
) -> None:
    browser.run("await page.setViewportSize({width: args[0], height: 900})", width)
    browser.run(EMULATE, scheme, contrast)
    browser.run("await page.goto(args[0])", costs.as_uri())
    browser.run("await page.locator('#period-all').check()")
    for key in ("session", "model", "week"):
        browser.run("await page.locator(args[0]).check()", f"#by-{key}")
        browser.run(
            "for (const each of await page.locator('summary:visible').all()) await each.click()"
        )
        assert_sound(audit(browser))


def test_the_keyboard_chooses_period_and_grouping(browser: Browser, costs: Path) -> None:
    browser.run("await page.goto(args[0])", costs.as_uri())
    assert browser.run(LAST_TITLE) == "By model"
    press = "await page.keyboard.press(args[0])"
    browser.run(press, "Tab")
    browser.run(press, "ArrowRight")
    assert browser.run("return await page.locator('#period-all').isChecked()")
    browser.run(press, "Tab")
    for _ in range(2):
        browser.run(press, "ArrowRight")
    assert browser.run(LAST_TITLE) == "By session"


GRID = """
    return await page.evaluate((colors) => {
        for (const [name, value] of Object.entries(colors))
            document.documentElement.style.setProperty(`--vscode-${name}`, value);
        document.body.className = "vscode-high-contrast";
        const { stroke, strokeOpacity } = getComputedStyle(document.querySelector(".plot line"));
        return [...stroke.match(/\\d+/g).map(Number), Number(strokeOpacity)];
    }, args[0]);
"""
HIGH_CONTRAST = {
    "editor-background": "#000000",
    "foreground": "#ffffff",
    "panel-border": "#6fc3df",
    "contrastBorder": "#6fc3df",
}


def test_grid_lines_are_faint_in_high_contrast(browser: Browser, costs: Path) -> None:
    """Borders are bright in this theme. Grid lines of the same color would hide the curves."""
    browser.run("await page.goto(args[0])", costs.as_uri())
    *rgb, opacity = browser.run(GRID, HIGH_CONTRAST)
    linear = [(opacity * value / 255) ** 2.2 for value in rgb]
    luminance = sum(map(mul, (0.2126, 0.7152, 0.0722), linear))
    contrast = (luminance + 0.05) / 0.05
    assert 1.2 < contrast < 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_choice_is_visible_in_forced_colors(browser: Browser, costs: Path, scheme: str) -> None:
    browser.run(EMULATE, scheme, "active")
    browser.run("await page.goto(args[0])", costs.as_uri())
    assert browser.run(BUTTON, "by-model") != browser.run(BUTTON, "by-agent")
    browser.run(EMULATE, scheme, "none")


def test_the_page_follows_the_browsers_color_scheme(browser: Browser, costs: Path) -> None:
    drawn = {}
    for scheme in ("light", "dark"):
        browser.run("await page.emulateMedia({colorScheme: args[0]})", scheme)
        browser.run("await page.goto(args[0])", costs.as_uri())
        browser.run("await page.locator('#period-all').check()")
        drawn[scheme] = browser.run(COLORS)
    assert drawn["light"][0] == "rgb(255, 255, 255)"
    assert drawn["dark"][0] == "rgb(20, 23, 27)"
    assert drawn["light"][3] != drawn["dark"][3]
