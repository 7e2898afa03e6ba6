import { type ExtensionContext, ProgressLocation, ViewColumn, window, workspace } from "vscode";
import { findServer, run } from "./locate";
import type { Server } from "./server";

const MOST_BYTES = 1 << 26;
const POLICY = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">`;

/** Show the page of `token-sidecar map` for the active document's folder. */
export async function showTokenMap(context: ExtensionContext, server: Server): Promise<void> {
  const document = window.activeTextEditor?.document;
  const folder = (document && workspace.getWorkspaceFolder(document.uri)) ?? workspace.workspaceFolders?.[0];
  if (folder?.uri.scheme !== "file") throw new Error("open a folder first");
  const program = await findServer(context);
  if (!program) throw new Error("the server was not found: use Token Sidecar: Install Server");
  const model = server.modelOf(folder.uri);
  const choice = model ? ["--model", model] : [];
  const args = [...program.args.slice(0, -1), "map", folder.uri.fsPath, "--html", "-", ...choice];
  const title = "Token Sidecar: counting the folder";
  const { stdout } = await window.withProgress({ location: ProgressLocation.Window, title }, () =>
    run(program.command, args, { maxBuffer: MOST_BYTES }),
  );
  const panel = window.createWebviewPanel("tokenSidecar.map", `Token Map: ${folder.name}`, ViewColumn.Active, { enableScripts: true });
  panel.webview.html = stdout.replace("<head>", `<head>${POLICY}`);
}
