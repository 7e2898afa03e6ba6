import { Disposable, ViewColumn, window, workspace } from "vscode";
import type { Page } from "./generated";
import { LivePage } from "./page";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

/** Show what coding agents send before the first word. The page is updated when a file is saved. */
export function showFootprint(server: Server): Promise<void> {
  const where = workspaceParam(server);
  const column = { viewColumn: ViewColumn.Beside, preserveFocus: true };
  const panel = window.createWebviewPanel("tokenSidecar.footprint", "What Your Agent Loads", column, {});
  const page = new LivePage(panel, () => server.request<Page>("context/footprintPage", where));
  const saves = workspace.onDidSaveTextDocument(page.changed);
  panel.onDidDispose(() => {
    Disposable.from(page, saves).dispose();
  });
  return Promise.resolve();
}
