import { type ExtensionContext, window, workspace } from "vscode";
import type { Api } from "./api";
import { registerCommands } from "./commands";
import { ContextView } from "./contextView";
import { BudgetDecorations } from "./decorations";
import { registerMcpServer } from "./mcp";
import { Server } from "./server";
import { SECTION } from "./settings";
import { SessionsView } from "./sessionsView";
import { StatusBar, languageStatus } from "./status";

let server: Server | undefined;

/** Start the server and show its results. The extension itself does no counting. */
export function activate(context: ExtensionContext): Api {
  const log = window.createOutputChannel("Token Sidecar", { log: true });
  const running = (server = new Server(context, log));
  const sessions = new SessionsView(running, context);
  context.subscriptions.push(log, new StatusBar(running), new ContextView(running), sessions, languageStatus(running));
  context.subscriptions.push(new BudgetDecorations());
  registerCommands(context, running, sessions);
  registerMcpServer(context, log);
  context.subscriptions.push(
    workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration(`${SECTION}.server`)) void running.restart();
      else if (event.affectsConfiguration(SECTION)) running.settingsChanged();
    }),
  );
  // Not awaited, because opening a window must not wait for a process.
  void running.restart();
  return {
    request: (method, params) => running.request(method, params),
    onDidChangeStatus: (listener) => running.onStatus(listener),
  };
}

export async function deactivate(): Promise<void> {
  await server?.dispose();
}
