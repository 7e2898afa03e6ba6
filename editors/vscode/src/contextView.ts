import {
  EventEmitter,
  ThemeIcon,
  type TreeDataProvider,
  TreeItem,
  TreeItemCollapsibleState,
  type TreeView,
  window,
  workspace,
} from "vscode";
import { plain } from "./format";
import type { ContextUsage, SessionRow, StatusUpdate, ViewRow } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const REFRESH_MS = 200;
const AGES_MS = 60_000;

/** A session, or a row of the shown session's view. */
export interface Row extends Pick<ViewRow, "label" | "value" | "children"> {
  session?: SessionRow;
}

/** A tree of the workspace's sessions; the rows are those of `context/sessions` and `context/usage`. */
export class ContextView implements TreeDataProvider<Row> {
  private readonly changed = new EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: TreeView<Row>;
  private readonly disposables: { dispose(): unknown }[];
  private readonly seen = new Map<string | null, string>();
  private readonly ages: NodeJS.Timeout;
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly server: Server) {
    this.view = window.createTreeView("tokenSidecar.context", { treeDataProvider: this });
    const events = [server.onHealth, this.view.onDidChangeVisibility, window.onDidChangeActiveTextEditor];
    const status = server.onStatus((update) => {
      if (this.isNews(update)) this.refresh();
    });
    this.ages = setInterval(this.refresh, AGES_MS);
    this.disposables = [this.view, this.changed, status, ...events.map((event) => event(this.refresh))];
  }

  dispose(): void {
    clearTimeout(this.timer);
    clearInterval(this.ages);
    for (const each of this.disposables) each.dispose();
  }

  /** Refresh soon, at most every REFRESH_MS; a hidden view does nothing. */
  readonly refresh = (): void => {
    if (!this.view.visible || this.timer) return; // refreshed when it becomes visible
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.changed.fire(undefined);
    }, REFRESH_MS);
  };

  getTreeItem(row: Row): TreeItem {
    const { Expanded, None } = TreeItemCollapsibleState;
    const { session } = row;
    const item = new TreeItem(plain(row.label), row.children.length > 0 ? Expanded : None);
    item.description = plain(row.value);
    item.tooltip = [plain(row.label), item.description].filter(Boolean).join(": ");
    if (!session) return item;
    item.id = `${session.source} ${session.id} ${session.shown} ${row.children.length > 0}`;
    item.contextValue = session.pinned ? "pinned" : "session";
    item.iconPath = new ThemeIcon(session.pinned ? "pinned" : session.shown ? "eye" : "comment");
    if (!session.shown) item.command = { command: "tokenSidecar.pinSession", title: "Show This Session", arguments: [row] };
    return item;
  }

  async getChildren(row?: Row): Promise<Row[]> {
    if (row) return row.children;
    const document = window.activeTextEditor?.document;
    const several = (workspace.workspaceFolders?.length ?? 0) > 1;
    const folder = several && document ? workspace.getWorkspaceFolder(document.uri) : undefined;
    this.view.description = folder?.name ?? "";
    return this.rows().catch(() => []);
  }

  private async rows(): Promise<Row[]> {
    const where = workspaceParam(this.server);
    const [sessions, usage] = await Promise.all([
      this.server.request<SessionRow[]>("context/sessions", { ...where, all: true }),
      this.server.request<ContextUsage>("context/usage", { ...where, contents: true }),
    ]);
    return sessions
      .filter(({ tokens, note }) => tokens !== null || note !== null)
      .map((session) => ({ label: session.label, value: session.detail, children: session.shown ? usage.rows : [], session }));
  }

  private isNews({ workspace: of, context, cost }: StatusUpdate): boolean {
    const now = JSON.stringify([context, cost]);
    const before = this.seen.get(of);
    this.seen.set(of, now);
    return now !== before;
  }
}
