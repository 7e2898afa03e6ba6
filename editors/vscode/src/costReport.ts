import { randomBytes } from "node:crypto";
import { ViewColumn, type WebviewPanel, window } from "vscode";
import { number } from "./format";
import type { CostReport } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const COLUMN = { viewColumn: ViewColumn.Beside, preserveFocus: true };

let panel: WebviewPanel | undefined;

/** Show what the workspace has cost, in one panel that a second call fills again. */
export async function showCostReport(server: Server): Promise<CostReport> {
  const detail = await server.request<CostReport>("cost/detail", workspaceParam(server));
  if (!panel) {
    panel = window.createWebviewPanel("tokenSidecar.cost", "Token Sidecar: Cost", COLUMN, {});
    panel.onDidDispose(() => (panel = undefined));
  }
  panel.webview.html = page(detail);
  panel.reveal(undefined, true);
  return detail;
}

function page({ rows, totals }: CostReport): string {
  const nonce = randomBytes(16).toString("base64");
  const figures = [
    ["Cost", totals.costText],
    ["Calls", number(totals.calls)],
    ["Input", number(totals.inputTokens)],
    ["Output", number(totals.outputTokens)],
    ...(totals.unpricedTokens ? [["Unpriced tokens", number(totals.unpricedTokens)]] : []),
  ];
  const lines = rows.map((row) => `<li>${escape(row.text)}</li>`).join("");
  return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'nonce-${nonce}'">
<title>Cost</title><style nonce="${nonce}">${STYLE}</style></head><body>
<h1>Cost of this workspace</h1>
<dl>${figures.map(([name, value]) => `<div><dt>${escape(name ?? "")}</dt><dd>${escape(value ?? "")}</dd></div>`).join("")}</dl>
${rows.length ? `<h2>By model and category</h2><ul>${lines}</ul>` : "<p>No calls are recorded yet.</p>"}
</body></html>`;
}

// The editor's own colours and fonts, so that it follows the theme.
const STYLE = `
body { color: var(--vscode-foreground); font-family: var(--vscode-font-family); padding: 1rem 1.5rem; }
h1 { font-size: 1.3em; font-weight: 600; } h2 { font-size: 1em; font-weight: 600; margin-top: 1.5rem; }
dl { display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 1rem 0; }
dl div { background: var(--vscode-editorWidget-background); border: 1px solid var(--vscode-widget-border, transparent);
  border-radius: 4px; padding: 0.5rem 1rem; min-width: 6rem; }
dt { color: var(--vscode-descriptionForeground); font-size: 0.85em; } dd { font-size: 1.25em; margin: 0.2rem 0 0; }
ul { list-style: none; margin: 0; padding: 0; }
li { border-bottom: 1px solid var(--vscode-widget-border, var(--vscode-editorWidget-border)); padding: 0.4rem 0;
  font-family: var(--vscode-editor-font-family); font-size: var(--vscode-editor-font-size); }`;

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);
}
