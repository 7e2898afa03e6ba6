import {
  EventEmitter,
  type ExtensionContext,
  ThemeColor,
  ThemeIcon,
  type TreeDataProvider,
  TreeItem,
  TreeItemCollapsibleState,
  type TreeView,
  window,
} from "vscode";
import { setState, state } from "./applicable";
import { counted, plain } from "./format";
import type { SessionRow, SessionsParams } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const REFRESH_MS = 200;
const AGES_MS = 60_000;
const ORDER = "sessionOrder";
const ENDED_HIDDEN = "endedHidden";
const ORDERS = { "Last used": "updated", "Cost": "cost", "Context": "context" } as const;
/** The number of sessions that are shown at first. */
const FIRST = 100;
const COLORS: Record<SessionRow["severity"], ThemeColor | undefined> = {
  ok: undefined,
  warning: new ThemeColor("list.warningForeground"),
  error: new ThemeColor("list.errorForeground"),
};

/** The collapsed item that contains the remaining sessions. */
interface Others {
  readonly others: number;
}

/** A tree of the workspace's sessions. Its items are the rows of `context/sessions`. */
export class SessionsView implements TreeDataProvider<SessionRow | Others> {
  private readonly changed = new EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: TreeView<SessionRow | Others>;
  private readonly disposables: { dispose(): unknown }[];
  private readonly ages: NodeJS.Timeout;
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly server: Server,
    private readonly context: ExtensionContext,
  ) {
    this.view = window.createTreeView("tokenSidecar.sessions", { treeDataProvider: this });
    setState({ endedHidden: context.workspaceState.get(ENDED_HIDDEN, false) });
    const events = [server.onNews, server.onHealth, this.view.onDidChangeVisibility, window.onDidChangeActiveTextEditor];
    this.ages = setInterval(this.refresh, AGES_MS);
    this.disposables = [this.view, this.changed, ...events.map((event) => event(this.refresh))];
  }

  dispose(): void {
    clearTimeout(this.timer);
    clearInterval(this.ages);
    for (const each of this.disposables) each.dispose();
  }

  /** Schedule a refresh, at most once every REFRESH_MS. A hidden view refreshes when it becomes visible. */
  readonly refresh = (): void => {
    if (!this.view.visible || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.changed.fire(undefined);
    }, REFRESH_MS);
  };

  /** Let the user choose the session order. */
  async sort(): Promise<void> {
    const order = await window.showQuickPick(Object.keys(ORDERS), { title: "Sort sessions by" });
    if (order) await this.context.workspaceState.update(ORDER, order);
    this.refresh();
  }

  /** Show or hide ended sessions. */
  async hideEnded(endedHidden: boolean): Promise<void> {
    setState({ endedHidden });
    await this.context.workspaceState.update(ENDED_HIDDEN, endedHidden);
    this.refresh();
  }

  getTreeItem(row: SessionRow | Others): TreeItem {
    if (!("id" in row)) {
      const others = new TreeItem(counted(row.others, "more session"), TreeItemCollapsibleState.Collapsed);
      others.id = "others";
      return others;
    }
    // The figures come first, because a narrow side bar cuts off the end of a row.
    const label = plain(joined(row.figures, row.label));
    const item = new TreeItem(label);
    item.id = `${row.source} ${row.id}`;
    item.description = plain(joined(row.detail.slice(row.figures.length).replace(/^ · /, ""), agentOf(row)));
    item.tooltip = [plain(row.label), plain(joined(row.detail, agentOf(row))), plain(row.id)].join("\n");
    item.contextValue = row.pinned ? "pinned" : "session";
    item.iconPath = new ThemeIcon(icon(row), COLORS[row.severity]);
    item.accessibilityInformation = { label: [label, item.description, row.shown ? "shown" : ""].filter(Boolean).join(", ") };
    if (!row.shown) item.command = { command: "tokenSidecar.pinSession", title: "Show This Session", arguments: [row] };
    return item;
  }

  async getChildren(parent?: SessionRow | Others): Promise<(SessionRow | Others)[]> {
    if (parent && "id" in parent) return [];
    const order = this.context.workspaceState.get<keyof typeof ORDERS>(ORDER, "Last used");
    const params: SessionsParams = { ...workspaceParam(this.server), all: true, order: ORDERS[order], ended: !state.endedHidden };
    const asked = this.server.request<SessionRow[]>("context/sessions", parent ? params : { ...params, limit: FIRST });
    const rows = (await asked.catch(() => [])).slice(parent ? FIRST : 0);
    const others = rows.at(-1)?.others ?? 0;
    const known = rows.filter(({ tokens, note }) => tokens !== null || note !== null);
    return others ? [...known, { others }] : known;
  }
}

const joined = (...parts: string[]): string => parts.filter(Boolean).join(" · ");

/** Return the agent of a session, or an empty string if the session's label already names the agent. */
export function agentOf(row: SessionRow): string {
  const isNamed = row.source === "protocol" || `${row.label} `.startsWith(`${row.source} `);
  return isNamed ? "" : row.source;
}

export function icon(row: SessionRow): string {
  if (row.severity !== "ok") return row.severity;
  if (row.pinned) return "pinned";
  if (row.shown) return "eye";
  return row.state === "running" ? "play-circle" : "comment-discussion";
}
