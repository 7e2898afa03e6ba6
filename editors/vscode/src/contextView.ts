import {
  EventEmitter,
  type TreeDataProvider,
  TreeItem,
  TreeItemCollapsibleState,
  type TreeView,
  window,
  workspace,
} from "vscode";
import { number, tokens, usd } from "./format";
import type { ContextUsage } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const REFRESH_MS = 200;

interface Row {
  label: string;
  value: string;
  children?: Row[];
}

/** What fills the conversation's context: one row a part, from `context/usage`. */
export class ContextView implements TreeDataProvider<Row> {
  private readonly changed = new EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: TreeView<Row>;
  private readonly disposables: { dispose(): unknown }[];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly server: Server) {
    this.view = window.createTreeView("tokenSidecar.context", { treeDataProvider: this });
    const refresh = (): void => {
      this.refresh();
    };
    const events = [server.onStatus, server.onHealth, this.view.onDidChangeVisibility, window.onDidChangeActiveTextEditor];
    this.disposables = [this.view, this.changed, ...events.map((event) => event(refresh))];
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const each of this.disposables) each.dispose();
  }

  /** Ask again soon, also while somebody types without a pause; a hidden view asks nothing. */
  refresh(): void {
    if (!this.view.visible || this.timer) return; // it asks when it is shown
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.changed.fire(undefined);
    }, REFRESH_MS);
  }

  getTreeItem(row: Row): TreeItem {
    const state = row.children ? TreeItemCollapsibleState.Expanded : TreeItemCollapsibleState.None;
    const item = new TreeItem(row.label, state);
    item.description = row.value;
    item.tooltip = `${row.label}: ${row.value}`;
    return item;
  }

  async getChildren(row?: Row): Promise<Row[]> {
    if (row) return row.children ?? [];
    const document = window.activeTextEditor?.document;
    const several = (workspace.workspaceFolders?.length ?? 0) > 1;
    const folder = several && document ? workspace.getWorkspaceFolder(document.uri) : undefined;
    this.view.description = folder?.name ?? "";
    const usage = await this.server
      .request<ContextUsage>("context/usage", workspaceParam(this.server))
      .catch(() => undefined);
    return usage ? rows(usage) : [];
  }
}

/** The rows of a usage; none when no conversation is known. */
export function rows(usage: ContextUsage): Row[] {
  if (usage.tokens === null) return [];
  const count = tokens({ tokens: usage.tokens, method: usage.method ?? "estimate" });
  const row = (label: string, value: string | number | null | undefined): Row[] =>
    value === null || value === undefined ? [] : [{ label, value: typeof value === "number" ? number(value) : value }];
  return [
    { label: "Context", value: `${count} tokens${usage.percent === null ? "" : ` (${usage.percent}%)`}` },
    ...row("Model", usage.model),
    ...parts("Breakdown", Object.entries<number>({ ...usage.breakdown })),
    ...parts("Largest", usage.largest.map((each) => [each.label, each.tokens])),
    ...row("Available", usage.available),
    ...row("Usable", usage.usable),
    ...row("Window", usage.limit === null ? null : `${number(usage.limit)} (${usage.limitSource ?? "unknown"})`),
    ...row("Turns", usage.turns),
    ...row("Session", usage.session && `${usage.session.id} (${usage.session.source})`),
    ...row("Calibrated by", usage.calibration && `${number(usage.calibration.samples)} replies`),
    ...row("Cost", usage.costUsd === null ? null : usd(usage.costUsd)),
  ];
}

function parts(label: string, entries: [string, number][]): Row[] {
  if (entries.length === 0) return [];
  const children = entries.map(([name, value]) => ({ label: capital(name), value: number(value) }));
  return [{ label, value: "", children }];
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
