import { randomBytes } from "node:crypto";
import { setTimeout } from "node:timers/promises";
import { ViewColumn, type WebviewPanel, window } from "vscode";
import STYLE from "./costReport.css";
import { number } from "./format";
import type { CostBar, CostChart, CostReport, CostTable } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const PATIENCE_MS = 100;
const FEWEST_COLUMNS = 14;

let panel: WebviewPanel | undefined;

/** Show the cost report of the workspace; a second call refreshes the same panel. */
export async function showCostReport(server: Server): Promise<CostReport> {
  const asked = server.request<CostReport>("cost/detail", { ...workspaceParam(server), charts: true });
  if (!panel) {
    panel = window.createWebviewPanel("tokenSidecar.cost", "Token Sidecar: Cost", { viewColumn: ViewColumn.Beside, preserveFocus: true }, {});
    panel.onDidDispose(() => (panel = undefined));
  }
  const early = await Promise.race([asked, setTimeout(PATIENCE_MS, undefined)]);
  if (!early) panel.webview.html = page("<p>Reading recorded calls …</p>");
  const detail = early ?? (await asked);
  panel.webview.html = page(body(detail));
  panel.reveal(undefined, true);
  return detail;
}

function page(inner: string): string {
  const nonce = randomBytes(16).toString("base64");
  return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'nonce-${nonce}'">
<title>Cost</title><style nonce="${nonce}">${STYLE}</style></head><body>
<h1>Cost of this workspace</h1>${inner}</body></html>`;
}

function body({ rows, totals, table, charts, basis, note, text }: CostReport): string {
  const figures: [string, string][] = [
    ["Cost", totals.costText],
    ["Calls", number(totals.calls)],
    ["Input", number(totals.inputTokens)],
    ["Cache read", number(totals.cacheReadTokens)],
    ["Output", number(totals.outputTokens)],
    ...(totals.unpricedTokens ? [["Unpriced tokens", number(totals.unpricedTokens)] satisfies [string, string]] : []),
  ];
  const cards = figures.map(([name, value]) => `<div><dt>${escape(name)}</dt><dd>${escape(value)}</dd></div>`);
  const notes = [note, basis].filter(Boolean).map((text) => `<p>${escape(text)}</p>`);
  if (!rows.length || !table) return `<p>${escape(text)}</p>${notes.join("")}`;
  const lines = rows.map((row) => `<li>${escape(row.text)}</li>`).join("");
  return `<dl>${cards.join("")}</dl>${notes.join("")}${charts.map(chart).join("")}
<h2>All calls</h2>${grid(table)}<h2>Line by line</h2><ul>${lines}</ul>`;
}

function grid({ heads, names, rows, total }: CostTable): string {
  const line = (cells: string[], tag: "td" | "th"): string =>
    `<tr>${cells.map((cell, at) => `<${tag}${at < names ? ' class="name"' : ""}>${escape(cell)}</${tag}>`).join("")}</tr>`;
  const foot = total.length ? `<tfoot>${line(total, "td")}</tfoot>` : "";
  return `<table><thead>${line(heads, "th")}</thead><tbody>${rows.map((row) => line(row, "td")).join("")}</tbody>${foot}</table>`;
}

function chart({ by, title, bars }: CostChart): string {
  return `<section><h2>${escape(title)}</h2>${by === "day" ? columns(bars) : bars.map(bar).join("")}</section>`;
}

// Sizes are SVG attributes: the content security policy refuses `style` attributes.
function bar({ label, share, text }: CostBar): string {
  return `<div class="bar"><span>${escape(label)}</span><svg aria-hidden="true"><rect width="${100 * share}%" height="100%"/></svg><b>${escape(text)}</b></div>`;
}

function columns(bars: CostBar[]): string {
  const drawn = bars.map(({ label, share, text }, at) =>
    `<rect x="${10 * at + 1}" y="${100 - 100 * share}" width="8" height="${100 * share}"><title>${escape(`${label}: ${text}`)}</title></rect>`);
  const most = bars.reduce((one, other) => (other.share > one.share ? other : one));
  const [first, last] = [bars[0]?.label ?? "", bars.at(-1)?.label ?? ""];
  const ends = bars.length < FEWEST_COLUMNS ? [first === last ? first : `${first} – ${last}`] : [first, last];
  const label = `Highest day: ${most.text} on ${most.label}`;
  return `<p>${escape(label)}</p><svg class="days" viewBox="0 0 ${10 * Math.max(bars.length, FEWEST_COLUMNS)} 100" preserveAspectRatio="none" role="img" aria-label="${escape(label)}">
${drawn.join("")}</svg><div class="ends">${ends.map((each) => `<span>${escape(each)}</span>`).join("")}</div>`;
}

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);
}
