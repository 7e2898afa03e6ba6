import { Disposable, type WebviewView, type WebviewViewProvider, window, workspace } from "vscode";
import type { Page } from "./generated";
import { LivePage } from "./page";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

const AGES_MS = 60_000;

/** The view that shows what fills the context window, and the forecast. */
export class ContextView implements WebviewViewProvider, Disposable {
  private readonly registration: Disposable;

  constructor(private readonly server: Server) {
    this.registration = window.registerWebviewViewProvider("tokenSidecar.context", this);
  }

  dispose(): void {
    this.registration.dispose();
  }

  resolveWebviewView(view: WebviewView): void {
    const page = new LivePage(view, () => {
      const document = window.activeTextEditor?.document;
      const several = (workspace.workspaceFolders?.length ?? 0) > 1;
      const folder = several && document ? workspace.getWorkspaceFolder(document.uri) : undefined;
      view.description = folder?.name ?? "";
      return this.server.request<Page>("context/page", workspaceParam(this.server));
    });
    const ages = setInterval(page.changed, AGES_MS);
    const { server } = this;
    const events = [server.onNews, server.onHealth, window.onDidChangeActiveTextEditor, workspace.onDidSaveTextDocument].map(
      (event) => event(page.changed),
    );
    view.onDidDispose(() => {
      clearInterval(ages);
      Disposable.from(page, ...events).dispose();
    });
  }
}
