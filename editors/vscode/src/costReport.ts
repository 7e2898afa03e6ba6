import { Disposable, ViewColumn, window } from "vscode";
import type { Page } from "./generated";
import { type Choice, LivePage } from "./page";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

let shown: { page: LivePage; reveal: () => void } | undefined;

/** Show the workspace's cost report. It is updated while it is visible. */
export async function showCostReport(server: Server, choice?: Choice): Promise<void> {
  if (!shown) {
    shown = open(server, choice);
    return;
  }
  shown.reveal();
  await shown.page.show(choice);
}

function open(server: Server, initial?: Choice): { page: LivePage; reveal: () => void } {
  const where = workspaceParam(server);
  const column = { viewColumn: ViewColumn.Beside, preserveFocus: true };
  const panel = window.createWebviewPanel("tokenSidecar.cost", "Token Sidecar: Cost", column, {});
  const load = (choice: Choice): Promise<Page> => {
    const given = Object.entries(choice).filter(([, value]) => value !== "");
    return server.request<Page>("cost/page", { ...where, ...Object.fromEntries(given) });
  };
  const page = new LivePage(panel, load, initial);
  const news = server.onNews(page.changed);
  panel.onDidDispose(() => {
    Disposable.from(page, news).dispose();
    shown = undefined;
  });
  const reveal = (): void => {
    panel.reveal(undefined, true);
  };
  return { page, reveal };
}
